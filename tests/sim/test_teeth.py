"""The simulation finds bugs: known ones are planted, and each is found within a few seeds."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from actors import Latest
from offsetmgr.manager import factory as factory_module
from offsetmgr.manager import lifecycle
from offsetmgr.manager.group_committer import Flight, GroupCommitter
from offsetmgr.manager.history import CommitHistory
from offsetmgr.manager.offset_manager import OffsetManager
from offsetmgr.manager.partition_state import PartitionState, Waiter
from offsetmgr.manager.plan import CommitPlan
from offsetmgr.manager.submits import GroupSubmits, SubmitBuffer, SubmitStatus
from tests.sim.run import (
    PREEMPTED_SEEDS,
    SERVICE_SEEDS,
    SeedError,
    main,
    run_seed,
    silence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.requests import CommitRequest, Results
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

MOST_SEEDS = 500


OTHERS = set(SERVICE_SEEDS[:MOST_SEEDS])
SEEDS = [seed for seed in range(MOST_SEEDS) if seed not in OTHERS]


def found(seeds: Iterable[int] = SEEDS) -> str:
    """What the simulation says of the planted bug."""
    with silence():
        for seed in seeds:
            try:
                run_seed(seed)
            except SeedError as error:
                return str(error)
    pytest.fail("no seed has found the bug")


def test_pipelined_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request before the first is answered is found."""
    pump, answered = GroupCommitter._pump, GroupCommitter._answered

    def impatient(self: GroupCommitter) -> None:
        before, self._group.flight = self._group.flight, None
        pump(self)
        if self._group.flight is None:
            self._group.flight = before

    def forgiving(self: GroupCommitter, flight: Any, result: Any, now: float) -> None:
        later, self._group.flight = self._group.flight, flight
        answered(self, flight, result, now)
        self._group.flight = None if later is flight else later

    monkeypatch.setattr(GroupCommitter, "_pump", impatient)
    monkeypatch.setattr(GroupCommitter, "_answered", forgiving)
    assert "two requests in flight" in found()


def test_no_read_back_after_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was given up and is simply sent again is found."""
    committed = CommitPlan.committed

    def hasty(self: CommitPlan, request: CommitRequest, result: Any, now: float) -> Any:
        notes = committed(self, request, result, now)
        self._reads.unknown.clear()
        return notes

    monkeypatch.setattr(CommitPlan, "committed", hasty)
    assert "was written before it was read" in found()


def test_lost_commits_that_nobody_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A given-up commit that lands behind a newer one, and stays, is found."""
    monkeypatch.setattr(CommitHistory, "doubt", lambda *_: None)
    lost = ("was acknowledged; at last", "was to be committed, and", "nobody else has committed")
    told = found()
    assert any(each in told for each in lost)


def test_clean_as_soon_as_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset that counts as committed before the coordinator said so is found."""
    commit = CommitPlan._commit

    def early(self: CommitPlan, now: float, results: Results) -> CommitRequest | None:
        request = commit(self, now, results)
        for partition, version in () if request is None else request.versions.items():
            self._members[partition].submits.settle(version.number)
        return request

    monkeypatch.setattr(CommitPlan, "_commit", early)
    assert re.search("was to be committed, and|called committed and was not", found())


def test_a_stop_that_drops_the_last_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that ends at once, whatever is still to be committed, is found."""

    def drop(state: lifecycle.State, _event: object) -> lifecycle.Outcome:
        return state._replace(phase=lifecycle.Phase.STOPPED), (lifecycle.Finish(),)

    ready = {**lifecycle.TABLE, (lifecycle.Phase.READY, lifecycle.StopAsked): drop}
    monkeypatch.setattr(lifecycle, "TABLE", ready)
    assert "nothing went wrong, yet this was left" in found()


def test_a_stop_that_waits_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that outlives its deadline is found."""
    monkeypatch.setattr(Waiter, "expire", lambda _self: [])
    assert "was not answered by its deadline" in found()


def test_a_mailbox_that_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox of committed offsets that makes its actor wait for the reader is found."""
    put = Latest.put

    def patient(self: Latest[object], value: object) -> object:
        with self._lock:
            if self._holds():
                threading.Condition(self._lock).wait()
        return put(self, value)

    monkeypatch.setattr(Latest, "put", patient)
    assert "an actor waits" in found()


def test_a_queue_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that pile up where nobody reads them are found."""

    def unlimited(
        group: GroupSubmits, where: TopicPartition, owner: str, _limit: int, observer: Observer
    ) -> PartitionState:
        return PartitionState(group, where, owner, 1_000_000, observer)

    monkeypatch.setattr(factory_module, "PartitionState", unlimited)
    assert "unread errors" in found()


def test_callers_that_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes that were answered at their deadline, and are kept all the same, are found."""
    init = Waiter.__init__

    def endless(
        self: Waiter, states: Iterable[PartitionState], deadline: float, timeout: float
    ) -> None:
        init(self, states, deadline, timeout)
        self.deadline = float("inf")

    monkeypatch.setattr(Waiter, "__init__", endless)
    assert "flushes wait in it" in found()


def test_commits_before_the_initial_offset_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower offset that is committed because nobody has looked yet is found."""

    def blind(self: SubmitBuffer, committed: OffsetAndMetadata | None) -> tuple[SubmitStatus, None]:
        self.established = True
        del committed
        return (SubmitStatus.DIRTY if self.dirty else SubmitStatus.CLEAN), None

    monkeypatch.setattr(SubmitBuffer, "establish", blind)
    assert "the committed offset went back" in found()


def test_a_restart_that_forgets_the_request_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that waits for ever for an answer that went to a dead committer is found."""
    wait = GroupCommitter._await_flight
    waited: list[Flight | None] = []

    def once(self: GroupCommitter) -> None:
        if self._group.flight not in waited:
            waited.append(self._group.flight)
            wait(self)

    monkeypatch.setattr(GroupCommitter, "_await_flight", once)
    assert "a minute after all faults ended" in found()


def test_submits_that_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower offset that is taken without a rewind is found."""
    put = SubmitBuffer.put

    def careless(self: SubmitBuffer, *value: Any) -> None:
        if not self.closed:
            self.floor = 0
        put(self, *value)

    monkeypatch.setattr(SubmitBuffer, "put", careless)
    assert re.search(": took .* after Life", found())


def test_a_wake_up_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submits of which the committer never learns are found."""
    monkeypatch.setattr(GroupSubmits, "_wake", lambda _self: None)
    assert "a minute after all faults ended" in found()


def test_a_manager_that_believes_what_is_older_than_its_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A last submit that is given up for what its committer had found before is found."""
    monkeypatch.setattr(OffsetManager, "_as_of_now", lambda _self, event: event)
    assert "nothing went wrong, yet this was left" in found(PREEMPTED_SEEDS[:MOST_SEEDS])


def test_an_end_that_is_told_after_its_name_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens would take it for the end of the next manager of that name."""
    finish = OffsetManager._finish

    def late(self: OffsetManager, answer: Any) -> None:
        told: list[tuple[Any, ...]] = []
        observer = mock.Mock(wraps=self._observer)
        observer.stopped = lambda *args: told.append(args)
        before, self._observer = self._observer, observer
        finish(self, answer)
        self._observer = before
        for args in told:
            before.stopped(*args)

    monkeypatch.setattr(OffsetManager, "_finish", late)
    assert "ended, though nobody stopped it" in found(PREEMPTED_SEEDS[:MOST_SEEDS])


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
