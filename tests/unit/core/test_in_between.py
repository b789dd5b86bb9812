"""What comes between two steps: other threads, older looks, crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import Future, InboxFullError
from offsetmgr.coordinator.base import Failure, FetchResult
from offsetmgr.coordinator.memory import Answer, Refuse
from offsetmgr.errors import error_info
from offsetmgr.manager import factory as factory_module
from offsetmgr.manager import plan as plan_module
from offsetmgr.manager import telling
from offsetmgr.manager.factory_actor import FactoryActor
from offsetmgr.manager.names import Names
from offsetmgr.manager.requests import FetchRequest, ReadBackRequest
from offsetmgr.manager.telling import Teller
from offsetmgr.types import StopResult
from tests.unit.core.core import POISON, Core, at, tp
from tests.unit.core.planned import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.coordinator.base import TopicLog
    from offsetmgr.coordinator.memory import Request
    from offsetmgr.types import ManagerKey

TIMED_OUT = -185
UNKNOWN_TOPIC = 3
LOADING = 14
TOO_LARGE = 12
DENIED = 29


def once(real: Callable[..., Any], before: Callable[[], object]) -> Callable[..., Any]:
    """``real``, with ``before`` ahead of its first call."""
    first = [before]

    def wrapped(*args: Any, **named: Any) -> Any:
        while first:
            first.pop()()
        return real(*args, **named)

    return wrapped


class TestAStopBetweenSettlingAndTelling:
    """A manager hears of what is older than the submit that came with its stop."""

    @pytest.fixture
    def core(self) -> Core:
        """A group that commits each second."""
        return Core(commit_interval_s=1.0)

    def stops_with(self, core: Core, answers: list[Future[Any]]) -> Callable[[], None]:
        """Submit 20 and stop, as other threads do while the committer's is not running."""

        def stop() -> None:
            (handle,) = core.factory.managers("g")
            handle.submit(20)
            answers.append(core.stop(handle, 10.0))

        return stop

    def check(self, core: Core, answers: list[Future[Any]]) -> None:
        """The last submit is committed and told."""
        core.advance(3.0)
        (answer,) = answers
        assert list(answer.get(timeout=0).values()) == [StopResult(at(20))]
        assert core.holds() == at(20)

    def test_of_a_commit(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """10 is committed; so is 20."""
        core.spawn().submit(10)
        answers: list[Future[Any]] = []
        stop = self.stops_with(core, answers)
        monkeypatch.setattr(Teller, "tell_all", once(Teller.tell_all, stop))
        self.check(core, answers)

    def test_of_a_refusal(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """10 was refused for good, which says nothing of 20."""
        handle = core.spawn()
        core.coordinator.inject("commit", Refuse(TOO_LARGE))
        handle.submit(10, "too much")
        answers: list[Future[Any]] = []
        stop = self.stops_with(core, answers)
        monkeypatch.setattr(Teller, "_changed", once(Teller._changed, stop))
        self.check(core, answers)

    def test_of_the_initial_offset(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing was submitted when it came; then 20 was."""
        core.factory.spawn("g", "t", 0)
        answers: list[Future[Any]] = []
        stop = self.stops_with(core, answers)
        monkeypatch.setattr(telling, "_answer", once(telling._answer, stop))
        self.check(core, answers)


class TestLooksAtLogs:
    """What waits for the ends of its log may be out of date when they come."""

    @pytest.mark.parametrize("policy", ["refuse", "clamp"])
    def test_what_waited_before_a_rewind_is_not_committed_after_it(self, policy: str) -> None:
        """The rewind lies within the ends that are known, and need not wait."""
        core = Core(on_out_of_range=policy, verify_interval_s=0, recommit_interval_s=0)
        core.broker.create_topic("t", 2)
        for partition in (0, 1):
            core.broker.set_log(tp(partition), 0, 20)
        first, other = core.spawn(), core.spawn(1)
        first.submit(15)
        other.submit(1)
        core.advance(2)
        core.broker.set_log(tp(), 0, 1000)
        core.coordinator.inject("topic_logs", Answer(latency_s=3.0))
        first.submit(500)
        core.advance(1.5)
        first.rewind(5)
        other.submit(2)
        core.advance(1.2)
        assert core.holds() == at(5)
        core.advance(5)
        first.submit(6)
        core.advance(5)
        assert core.holds() == at(6)
        assert [commit[0] for commit in core.commits()] == [15, 5, 6]

    def test_a_look_of_a_committer_that_crashed_is_not_its_successors(self) -> None:
        """The ends that it brings are older than what was submitted since."""
        core = Core(on_out_of_range="clamp", verify_interval_s=0, recommit_interval_s=0)
        core.broker.create_topic("t", 1)
        core.broker.set_log(tp(), 0, 20)

        def slow(topics: Sequence[str], *_: Any, **__: Any) -> Future[Mapping[str, TopicLog]]:
            """Read at once, and told two seconds later."""
            found = core.broker.topic_logs(topics, None, stable=False)
            answer: Future[Mapping[str, TopicLog]] = Future()
            core.system.timers.call_after(2.0, lambda: answer.set(found))
            return answer

        core.coordinator.topic_logs = slow  # type: ignore[method-assign]
        core.put(at(10))
        handle = core.spawn()
        handle.submit(20)
        core.advance(1.1)
        core.committer().tell(POISON)
        core.advance(0.5)
        core.broker.set_log(tp(), 0, 1000)
        handle.submit(900)
        core.advance(10)
        assert core.holds() == at(900)

    def test_what_was_clamped_is_committed_once_the_log_holds_it(self) -> None:
        """The same offset again is news: it was not the one that was committed."""
        core = Core(on_out_of_range="clamp", verify_interval_s=0, recommit_interval_s=0)
        core.broker.create_topic("t", 1)
        core.broker.set_log(tp(), 0, 20)
        handle = core.spawn()
        handle.submit(30)
        core.advance(3)
        assert core.holds() == at(20)
        core.broker.set_log(tp(), 0, 100)
        handle.submit(30)
        assert core.flush([handle], 5.0) == [StopResult(at(30))]
        assert core.holds() == at(30)

    def test_what_waits_for_a_look_does_not_hold_the_others_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where more are dirty than one request can carry."""
        monkeypatch.setattr(plan_module, "BATCH_LIMIT", 2)
        core = Core(on_out_of_range="refuse", verify_interval_s=0, recommit_interval_s=0)
        core.broker.create_topic("t", 3)
        handles = [core.spawn(partition) for partition in range(3)]
        for partition, handle in enumerate(handles):
            core.broker.set_log(tp(partition), 0, 20)
            handle.submit(1)
        core.advance(3)
        for partition in range(3):
            core.broker.set_log(tp(partition), 0, 1000)
        core.coordinator.inject("topic_logs", Answer(latency_s=4.0))
        handles[0].submit(500)
        handles[1].submit(500)
        core.advance(0.1)
        handles[2].submit(15)
        core.advance(2.0)
        assert core.holds(2) == at(15)
        core.advance(5.0)
        assert [core.holds(0), core.holds(1)] == [at(500), at(500)]


@pytest.mark.parametrize("policy", ["refuse", "clamp"])
def test_who_submits_more_quickly_than_logs_are_read_is_committed_all_the_same(
    policy: str,
) -> None:
    """At the head of a growing log there is always something newer than the ends just read."""
    core = Core(on_out_of_range=policy, verify_interval_s=0, recommit_interval_s=0)
    core.broker.create_topic("t", 1)
    core.broker.set_log(tp(), 0, 0)

    def slow(topics: Sequence[str], *_: Any, **__: Any) -> Future[Mapping[str, TopicLog]]:
        """Read half-way through a look of 50 ms."""
        answer: Future[Mapping[str, TopicLog]] = Future()

        def read() -> None:
            found = core.broker.topic_logs(topics, None, stable=False)
            core.system.timers.call_after(0.025, lambda: answer.set(found))

        core.system.timers.call_after(0.025, read)
        return answer

    core.coordinator.topic_logs = slow  # type: ignore[method-assign]
    handle = core.spawn()
    flush = None
    for number in range(1, 500):
        core.broker.set_log(tp(), 0, number)
        handle.submit(number)
        if number == 400:
            flush = core.factory.flush([handle.key], 1.5)
        core.advance(0.02)
    assert len(core.commits()) >= 5
    assert flush is not None
    (result,) = flush.get(timeout=0).values()
    assert result.uncommitted is None
    assert result.committed is not None
    assert result.committed.offset >= 400


def test_what_is_refused_for_good_is_not_sent_at_every_turn() -> None:
    """A busy submitter has always something newer, which may fare no better."""
    core = Core(commit_interval_s=1.0, verify_interval_s=0, latency_s=0.01)
    handle = core.spawn()
    core.coordinator._plan = lambda r: Refuse(DENIED) if r.operation == "commit" else None
    for number in range(1_000):
        handle.submit(number + 1)
        core.advance(0.01)
    assert 5 <= len(core.commits()) <= 11


def test_who_flushes_does_not_wait_an_interval_for_what_is_newer_than_a_refusal() -> None:
    """The hurry was spent on the older one, which was under way."""
    core = Core(commit_interval_s=60.0, verify_interval_s=0, latency_s=0.5)
    handle = core.spawn()
    core.advance(1.0)
    core.coordinator.inject("commit", Refuse(DENIED))
    handle.submit(1)
    core.factory.flush([handle.key], 30.0)
    core.advance(0.2)
    handle.submit(2)
    flush = core.factory.flush([handle.key], 30.0)
    core.advance(1.0)
    assert flush.get(timeout=0) == {handle.key: StopResult(at(2))}


def test_a_flush_that_meets_the_end_of_its_group_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was looked up before, and nobody is left to commit it."""
    core = Core()
    handle = core.spawn()
    handle.submit(1)
    real = Names.find_all

    def find_all(names: Names, keys: Iterable[ManagerKey]) -> Any:
        found = real(names, keys)
        monkeypatch.setattr(Names, "find_all", real)
        core.stop(handle, 5.0)
        core.advance(2.0)
        return found

    monkeypatch.setattr(Names, "find_all", find_all)
    flush = core.factory.flush([handle.key], 60.0)
    core.advance(1.0)
    assert flush.get(timeout=0) == {handle.key: StopResult(at(1))}


def test_a_spawn_that_finds_no_room_leaves_the_name_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the manager would be there, and served by nobody."""
    monkeypatch.setattr(factory_module, "INBOX_LIMIT", 2)
    core = Core()
    core.advance(1.0)
    core.factory.spawn("g", "t", 0)
    core.factory.spawn("g", "t", 1)
    with pytest.raises(InboxFullError):
        core.factory.spawn("g", "t", 2)
    core.advance(1.0)
    core.spawn(2).submit(7)
    core.advance(2.0)
    assert core.holds(2) == at(7)


def test_a_commit_that_lands_as_the_factory_restarts_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new committer hears of it before its managers are named to it."""
    core = Core(on_external_change="pause", verify_interval_s=0, recommit_interval_s=0)
    handle = core.spawn()
    handle.submit(50)
    core.advance(2)
    core.coordinator.inject("commit", Answer(latency_s=0.5))
    handle.submit(60)
    core.advance(1.2)
    real = FactoryActor._start_committer

    def start_committer(factory: FactoryActor, tray: Any) -> Any:
        ref = real(factory, tray)
        # Another thread of the pool runs it, while this one goes on with its managers.
        core.system._manual_clock.advance(0.6)
        core.system.timers.fire_due()
        core.system._sim_dispatcher._ready.remove(ref.cell)
        ref.cell.run(10)
        return ref

    monkeypatch.setattr(FactoryActor, "_start_committer", start_committer)
    core.factory._ref.tell(POISON)
    core.advance(20)
    assert core.listener.failures == []
    handle.submit(70)
    core.advance(10)
    assert core.holds() == at(70)


def test_what_is_watched_no_longer_is_not_read_any_more() -> None:
    """A manager that is gone, and whose initial offset was still wanted after a crash."""
    group = Group(verify_interval_s=0)
    group.start(0, 1, committed=10)
    group.submit(100)
    group.answer(group.commit())
    group.submit(200)
    group.answer(group.commit(), {0: TIMED_OUT})
    group.now += 60
    group.read({0: 100})
    group.answer(group.commit())
    group.detach(0)
    group.crash()
    request = group.due()
    assert isinstance(request, FetchRequest)
    refused = {tp(0): Failure(error_info(UNKNOWN_TOPIC))}
    group.plan.fetched(request, FetchResult({tp(1): at(10)}, refused), group.now)
    asked = []
    for _ in range(60):
        group.now += 0.3
        request = group.plan.next_request(group.now)[0]
        asked.append(type(request))
        if isinstance(request, FetchRequest):
            group.plan.fetched(request, FetchResult({}, refused), group.now)
        elif isinstance(request, ReadBackRequest):
            group.plan.read_back(request, FetchResult({tp(0): at(7)}, {}), group.now)
    assert {FetchRequest, ReadBackRequest} <= set(asked)
    assert asked[-1] is type(None)


@pytest.mark.parametrize("timeout_s", [0.0, 30.0])
def test_a_stop_that_dies_with_an_instance_of_the_manager_is_known_to_the_next(
    timeout_s: float,
) -> None:
    """The factory crashes: what comes behind the end of its children is handled by nobody."""
    core = Core(latency_s=0.0)
    handle = core.spawn()
    handle.submit(1)
    core.advance(2)
    refusing = [True]

    def plan(request: Request) -> Refuse | None:
        return Refuse(LOADING) if refusing and request.operation == "commit" else None

    core.coordinator._plan = plan
    handle.submit(2)
    core.advance(1.5)
    manager = core.manager(handle).cell
    core.factory._ref.tell(POISON)
    while not manager._stop_requested:
        runnable = core.system._sim_dispatcher.pick()
        if runnable is not None:
            core.system._step(runnable)
        else:
            core.system._manual_clock.advance(0.1)
            core.system.timers.fire_due()
    assert manager.alive
    stopped = core.stop(handle, timeout_s)
    core.system.timers.fire_due()
    core.advance(10.0)
    if timeout_s:
        refusing.clear()
        core.advance(15.0)
        assert stopped.get(timeout=0) == {handle.key: StopResult(at(2))}
    # Its name is free, whatever Kafka says.
    assert core.factory.get(handle.key) is None
