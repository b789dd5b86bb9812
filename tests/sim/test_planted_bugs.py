"""The simulation finds bugs: known ones are planted, and each is found within a few seeds.

Most are planted at the port: a coordinator that does what a wrong manager would have it do.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from actors import Future
from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import Verdict, error_info
from offsetmgr.mailboxes import Mailbox
from offsetmgr.manager import events, group_committer, log_steps, plan, step
from offsetmgr.manager.offset_manager import Group, OffsetManager, Phase, Waiter
from tests.sim.run import RECREATED_SEEDS, SERVICE_SEEDS, SeedError, main, run_seed, silence
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType


MOST_SEEDS = 500
SEEDS = [seed for seed in range(MOST_SEEDS) if seed not in SERVICE_SEEDS]
LOADING = error_info(14)

_T = TypeVar("_T")
_U = TypeVar("_U")


def found(likely: int = 0, seeds: Iterable[int] = SEEDS) -> str:
    """The simulation's report on the planted bug, which seed ``likely`` finds, or did once."""
    with silence():
        for seed in (likely, *seeds):
            try:
                run_seed(seed)
            except SeedError as error:
                return str(error)
    pytest.fail("no seed has found the bug")


def changed(answer: Future[_T], change: Callable[[_T], _U]) -> Future[_U]:
    """Return a future of what ``change`` makes of the answer."""
    after: Future[_U] = Future()
    answer.add_done_callback(lambda done: after.set(change(done.get())))
    return after


class Twice(MemoryCoordinator):
    """Gets each commit a second time before the first is answered."""

    def commit(self, *args: Any) -> Future[CommitResult]:
        super().commit(*args)
        return super().commit(*args)


class Refusing(MemoryCoordinator):
    """Calls an unknown outcome a refusal, so that it is simply sent again."""

    def commit(self, *args: Any) -> Future[CommitResult]:
        def refused(result: CommitResult) -> CommitResult:
            failures = result.failures.items()
            return CommitResult(
                {
                    where: Failure(LOADING) if each.info.verdict is Verdict.UNKNOWN else each
                    for where, each in failures
                }
            )

        return changed(super().commit(*args), refused)


class Hopeful(MemoryCoordinator):
    """Calls everything committed that was sent."""

    def commit(self, *args: Any) -> Future[CommitResult]:
        return changed(super().commit(*args), lambda _: CommitResult({}))


class Blind(MemoryCoordinator):
    """Finds nothing committed anywhere, so that lower offsets are committed."""

    def fetch(self, *args: Any) -> Future[FetchResult]:
        def nothing(result: FetchResult) -> FetchResult:
            return result._replace(offsets=dict.fromkeys(result.offsets))

        return changed(super().fetch(*args), nothing)


class Silent(MemoryCoordinator):
    """Leaves one commit without an answer, as if its committer had not waited for it."""

    def commit(self, *args: Any) -> Future[CommitResult]:
        answer = super().commit(*args)
        return Future() if len(self.requests) == 3 else answer


@pytest.mark.parametrize(
    ("coordinator", "told"),
    [
        (Twice, "two requests in flight"),
        (Refusing, "was written before it was read"),
        (Hopeful, "was acknowledged, and never was committed"),
        (Blind, "the committed offset went back|nobody else has committed there"),
        (Silent, "a minute after all faults ended"),
    ],
)
def test_wrong_use_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, coordinator: type[MemoryCoordinator], told: str
) -> None:
    """Forbidden requests and impossible answers are found."""
    monkeypatch.setattr(World, "coordinator_type", coordinator)
    assert re.search(told, found())


def test_lost_commits_that_nobody_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A given-up commit that lands behind a newer one, and stays, is found."""
    await_landing = OffsetManager.await_landing

    def forget(manager: OffsetManager, *times: Any) -> None:
        manager.in_doubt = ()
        await_landing(manager, *times)

    monkeypatch.setattr(OffsetManager, "await_landing", forget)
    lost = "was acknowledged; at last|was to be committed, and|nobody else has committed"
    assert re.search(lost, found(32))


def test_a_stop_that_drops_the_last_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that ends at once, whatever is still to be committed, is found."""

    def drop(manager: OffsetManager, *times: Any) -> events.Effects:
        return step._stop(manager, *times) if manager.closed else []

    monkeypatch.setattr(step, "_end", drop)
    assert "nothing went wrong, yet this was left" in found(92)


def test_a_stop_that_waits_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that outlives its deadline is found."""
    monkeypatch.setattr(Waiter, "expire", lambda _self: [])
    assert "was not answered by its deadline" in found()


def test_a_mailbox_that_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox of committed offsets that makes its actor wait for the reader is found."""
    put = Mailbox.put

    def patient(self: Mailbox[object], value: object) -> object:
        with self._lock:
            if self._values:
                threading.Condition(self._lock).wait()
        return put(self, value)

    monkeypatch.setattr(Mailbox, "put", patient)
    assert "an actor waits" in found()


def test_callers_that_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes that were answered at their deadline, and are kept all the same, are found."""

    def keep(manager: OffsetManager, event: events.FlushAsked, *times: Any) -> events.Effects:
        if event.waiter is not None:
            manager.flushes = (*manager.flushes, (manager.number, event.waiter))
        return step._flush(manager, events.FlushAsked(), *times)

    for phase in (Phase.FETCHING, Phase.READY, Phase.IN_DOUBT):
        monkeypatch.setitem(step.TRANSITIONS[phase], events.FlushAsked, keep)
    assert "flushes that are over are kept" in found()


def test_a_wake_up_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submits of which the committer never learns are found."""
    monkeypatch.setattr(Group, "queue_submit", lambda *_: None)
    assert "a minute after all faults ended" in found()


@pytest.mark.parametrize(
    ("where", "name", "wrong", "likely"),
    [
        pytest.param(plan, "refusal", lambda *_: None, 1, id="no look before a commit"),
        pytest.param(group_committer, "LOOK_AGE_S", 1e9, 1, id="an old look"),
        pytest.param(
            log_steps, "is_of_former_log", lambda *_: False, 141, id="no comparison of ids"
        ),
    ],
)
def test_offsets_of_a_former_log(
    monkeypatch: pytest.MonkeyPatch, where: ModuleType, name: str, wrong: object, likely: int
) -> None:
    """An offset that is committed to a log that it was not read from is found."""
    monkeypatch.setattr(where, name, wrong)
    told = found(likely, RECREATED_SEEDS[:MOST_SEEDS])
    assert "a log that it was not read from" in told


def test_a_failing_seed_says_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 1, names the seed and the command that replays it alone."""
    monkeypatch.setattr(Waiter, "expire", lambda _self: [])
    assert main(range(MOST_SEEDS)) == 1
    told = capsys.readouterr().out
    seed = int(told.split()[1].rstrip(":"))
    assert f"make sim SEEDS={seed}:{seed + 1}" in told
    assert "the last steps:" in told
