"""An offset belongs to one log: topics that are deleted and recreated under their managers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from offsetmgr.coordinator.logs import LOOK_AGE_S
from offsetmgr.coordinator.memory import Refuse, Respond, Unknown
from offsetmgr.errors import OffsetCommitError, OffsetNoticeError, OffsetRegressionError
from offsetmgr.manager import Submission
from offsetmgr.manager.plan import CommitPlan, CommitRequest
from tests.unit.core.core import TIMED_OUT, Core, at, tp

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import StopResult

FORMER = 100
"""The last offset of the former log."""

SMALLER, EQUAL, LONGER = 30, 100, 150
"""Ends of new logs."""


def recreate(core: Core, end: int, *, gap_s: float = 0.0, partitions: int = 3) -> None:
    core.broker.delete_topic("t")
    core.advance(gap_s)
    core.create_topic(end, partitions=partitions)


def began(*, commit: bool = True) -> tuple[Core, ManagerHandle]:
    """Return a manager that has read and committed up to ``FORMER``."""
    core = Core(recommit_interval_s=0)
    core.create_topic(FORMER)
    handle = core.spawn()
    if commit:
        core.submit(handle, FORMER)
        assert core.holds() == at(FORMER)
    return core, handle


def stopped_in_doubt() -> tuple[Core, ManagerHandle]:
    """Return a manager that stopped before its last commit lands, and whose topic is recreated."""
    core, handle = began()
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
    core.submit(handle, FORMER + 1)
    core.stop(handle, 0.5)
    core.advance(1.0)
    recreate(core, SMALLER)
    return core, handle


def codes(core: Core) -> list[str]:
    return [error.code for _, error in core.listener.failures]


def assert_refused(result: StopResult, offset: int) -> None:
    """The result says which offset is not committed, why, and what to do."""
    assert result.uncommitted == at(offset)
    assert isinstance(result.error, OffsetCommitError)
    assert result.error.code == "TOPIC_RECREATED"
    assert "only offsets that were read from the new one are committed" in str(result.error)


class TestFormerOffsets:
    """No offset of the former log is committed, whatever the ends of the new one."""

    @pytest.mark.fault(36)
    @pytest.mark.parametrize("end", [SMALLER, EQUAL, LONGER])
    @pytest.mark.parametrize("gap_s", [0.0, 10.0])
    def test_a_waiting_offset_is_refused_once(self, end: int, gap_s: float) -> None:
        """Submitted before the deletion, due after it."""
        core, handle = began(commit=False)
        handle.submit(FORMER)
        recreate(core, end, gap_s=gap_s)
        core.advance(120.0)
        assert core.holds() is None
        assert codes(core).count("TOPIC_RECREATED") == 1
        (result,) = core.flush([handle], 5.0)
        assert_refused(result, FORMER)
        assert_refused(core.factory.stop(5.0)[handle.key], FORMER)

    @pytest.mark.parametrize(
        ("end", "again"), [(SMALLER, FORMER + 1), (LONGER, FORMER + 1), (SMALLER, FORMER + 5)]
    )
    def test_a_repeated_offset_or_one_beyond_the_new_log_is_refused(
        self, end: int, again: int
    ) -> None:
        """A driver that has not noticed sends its last offset again, or reads on."""
        core, handle = began()
        recreate(core, end)
        handle.submit(FORMER + 1)
        core.advance(5.0)
        handle.submit(again)
        (result,) = core.flush([handle], 5.0)
        assert_refused(result, again)
        assert core.holds() is None


class TestNewOffsets:
    """Offsets that were read from the new log are committed."""

    def test_a_rewind_follows_the_new_log_with_one_notice(self) -> None:
        """A query that goes on in the new log reports lower offsets."""
        core, handle = began()
        recreate(core, SMALLER)
        for offset in (7, 12, 30):
            (handle.rewind if offset == 7 else handle.submit)(offset)
            core.advance(2.0)
        assert core.holds() == at(30)
        ((_, notice),) = core.listener.failures
        assert isinstance(notice, OffsetNoticeError)
        assert (notice.code, notice.offset) == ("TOPIC_RECREATED", FORMER)

    def test_a_lower_offset_is_taken_once_the_topic_was_looked_at(self) -> None:
        """The first is refused as a regression, which makes the manager look."""
        core, handle = began()
        recreate(core, SMALLER)
        with pytest.raises(OffsetRegressionError):
            handle.submit(7)
        core.advance(2.0)
        core.submit(handle, 8)
        assert core.holds() == at(8)

    def test_a_higher_offset_within_the_new_log_is_taken(self) -> None:
        """The log is longer than the former one."""
        core, handle = began()
        recreate(core, LONGER)
        handle.submit(FORMER + 1)
        core.advance(5.0)
        handle.submit(FORMER + 20)
        core.advance(5.0)
        assert core.holds() == at(FORMER + 20)
        assert core.flush([handle], 5.0)[0].uncommitted is None

    def test_an_offset_that_somebody_else_committed_there_is_kept(self) -> None:
        """It is the floor, as any other external change."""
        core, handle = began()
        recreate(core, LONGER)
        core.put(at(3))
        handle.submit(FORMER + 1)
        core.advance(5.0)
        assert core.holds() == at(3)
        assert handle.status().committed == at(3)

    def test_every_manager_of_the_topic_begins_again(self) -> None:
        """Also one that was not asked for anything when the first of them noticed."""
        core, handle = began()
        other = core.spawn(1)
        recreate(core, SMALLER)
        core.submit(handle, FORMER + 1)
        core.submit(other, FORMER)
        assert core.holds(1) is None
        assert codes(core).count("TOPIC_RECREATED") == 2


class TestNamedTopics:
    """A submitter that names the topic's id leaves nothing to guess."""

    @pytest.mark.parametrize("error", [None, RuntimeError])
    def test_an_offset_of_another_topic_is_refused_at_once(
        self, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Operators see the error; the caller gets it also if an observer fails over it."""
        core, _ = began()
        failed = Mock(side_effect=error)
        monkeypatch.setattr(core.listener, "failed", failed)
        refused = core.factory.submit("g", {tp(): FORMER + 1}, topic_ids={"t": "former"})
        assert refused[tp()].code == "TOPIC_RECREATED"
        failed.assert_called_once()

    @pytest.mark.parametrize("end", [SMALLER, LONGER])
    def test_an_offset_that_came_before_the_topic_was_known_is_refused(self, end: int) -> None:
        """A restarted service gets the offsets of its clients again."""
        core = Core()
        core.create_topic(end, partitions=1)
        handle = core.factory.spawn("g", "t", 0)
        core.factory.submit("g", {tp(): Submission(FORMER)}, topic_ids={"t": "former"})
        core.advance(5.0)
        assert core.holds() is None
        (result,) = core.flush([handle], 5.0)
        assert_refused(result, FORMER)

    @pytest.mark.parametrize("gap_s", [0.0, 400.0])
    def test_an_offset_of_the_new_topic_is_taken_once_it_was_looked_at(self, gap_s: float) -> None:
        """The kind: one manager of a topic has noticed that it was recreated, another one has not.

        Also where the offset was deleted with the topic, so that it is verified no more.
        """
        core, handle = began()
        other = core.spawn(1)
        core.submit(other, FORMER)
        recreate(core, SMALLER, gap_s=gap_s)
        handle.rewind(7)
        core.advance(5.0)
        topic_ids = core.factory.topic_ids({"g": [handle.key.topic_partition]})
        submit = partial(core.factory.submit, "g", {tp(1): 9}, topic_ids=topic_ids)
        assert submit()[tp(1)].code == "TOPIC_RECREATED"
        core.advance(2.0)
        assert submit() == {}
        core.advance(2.0)
        assert core.holds(1) == at(9)


class TestRaces:
    """Kafka's commit names no topic id, so a recreated topic can still get a former offset."""

    def test_a_commit_that_lands_in_the_new_log_is_replaced_by_its_start(self) -> None:
        """At least once: the group begins where the new log does."""
        core, handle = began()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        core.submit(handle, FORMER + 1)
        recreate(core, SMALLER)
        core.advance(400.0)
        assert core.holds() == at(0)
        assert handle.status().committed == at(0)
        handle.submit(9)
        core.advance(5.0)
        assert core.holds() == at(9)

    @pytest.mark.parametrize("ends", ["never", "before it lands", "and starts again"])
    @pytest.mark.parametrize("lands_after_s", [None, 0.5, 8.0])
    def test_a_start_of_unknown_outcome_does_not_bring_the_former_offset_back(
        self, ends: str, lands_after_s: float | None
    ) -> None:
        """The kind: a commit in doubt of the former log is taken for one of the log as it is.

        Also by a manager that has stopped, or that took over from one.
        """
        core, handle = began()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        core.submit(handle, FORMER + 1)
        if ends != "never":
            core.stop(handle, 0.5)
            core.advance(1.0)
        recreate(core, SMALLER)
        core.coordinator.inject("commit", Unknown(TIMED_OUT, lands_after_s))
        if ends == "and starts again":
            core.spawn()
        core.advance(1_000.0)
        assert core.holds() == at(0)

    def test_a_start_is_read_back_after_a_crash_over_its_unknown_outcome(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kind: a stopped manager that puts an offset right commits again unread."""
        core, _ = stopped_in_doubt()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 0.5))
        committed = CommitPlan.committed

        def fail(plan: CommitPlan, request: CommitRequest, *answer: Any, **rest: Any) -> Any:
            if at(0) not in (version.value for version in request.managers.values()):
                return committed(plan, request, *answer, **rest)
            monkeypatch.setattr(CommitPlan, "committed", committed)
            raise RuntimeError("among the steps of an answer")

        monkeypatch.setattr(CommitPlan, "committed", fail)
        core.advance(1_000.0)
        assert core.holds() == at(0)
        assert core.commits().count({0: 0}) == 1

    def test_a_dropped_offset_is_not_put_back_in_place_of_the_start(self) -> None:
        """The kind: the number of a version that was dropped stands for another value."""
        core, handle = began()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        core.submit(handle, FORMER + 10)
        handle.rewind(FORMER + 1)
        core.advance(5.0)
        assert core.holds() == at(FORMER + 1)
        handle.submit(FORMER + 3)
        recreate(core, LONGER)
        core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
        core.advance(1_000.0)
        assert core.holds() == at(0)

    def test_the_next_manager_begins_without_a_stray_offset_that_is_being_replaced(self) -> None:
        """The kind: a commit of a former log's offset lands while nobody has its manager."""
        core, handle = began()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 20.0))
        core.submit(handle, FORMER + 1)
        recreate(core, SMALLER)
        core.advance(6.0)
        core.stop(handle, 0.5)
        while core.holds() is None:
            core.advance(0.5)
        assert core.holds() == at(FORMER + 1)
        assert core.spawn().initial_offset(timeout=0) is None
        core.advance(5.0)
        assert core.holds() == at(0)

    @pytest.mark.parametrize("log", ["first", "recreated"])
    def test_a_late_commit_of_an_offset_of_others_is_of_the_log_as_it_is(self, log: str) -> None:
        """The kind: an offset that this manager found has no number of its own submits.

        Where the commit that keeps it from expiring lands late, and the group was deleted
        meanwhile, it is not a commit of a former log, nor replaced by the log's start.
        """
        core = Core(verify_interval_s=0, recommit_interval_s=100)
        core.create_topic(LONGER)
        core.put(at(FORMER))
        handle = core.spawn()
        core.advance(1.0)
        if log == "recreated":
            core.submit(handle, FORMER + 1)
            recreate(core, LONGER)
            core.put(at(SMALLER))
            core.flush([handle], 5.0)
            core.advance(1.0)
        found, sent = core.holds(), len(core.commits())
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        while len(core.commits()) == sent:
            core.advance(1.0)
        core.broker.forget("g")
        core.advance(1_000.0)
        assert core.holds() == found

    def test_an_offset_that_waits_to_be_replaced_is_not_an_external_change(self) -> None:
        """The kind: an offset of the former log is read again before its replacement is committed.

        It was committed in the moment in which the topic was recreated, so it was never in doubt.
        """
        core = Core(recommit_interval_s=0, verify_interval_s=1.0, retry_backoff_s=5.0)
        core.create_topic(FORMER)
        handle = core.spawn()
        core.submit(handle, FORMER)
        recreate(core, LONGER)
        core.put(at(FORMER))
        core.coordinator.inject("commit", Refuse(14), Refuse(14))
        core.advance(60.0)
        assert core.holds() == at(0)
        assert codes(core).count("OFFSET_CHANGED_EXTERNALLY") == 0

    def test_a_stopped_manager_leaves_a_replacement_to_its_successor(self) -> None:
        """The kind: the answer to a look arrives after another manager took over."""
        core, handle = stopped_in_doubt()
        core.coordinator.inject("topic_logs", Respond(4.0))
        while not handle._manager.stray:
            core.advance(0.1)
        core.spawn()
        core.advance(400.0)
        assert core.holds() == at(0)
        assert core.commits().count({0: 0}) == 1

    def test_a_look_comes_before_a_commit_unless_it_was_just_made(self) -> None:
        """Frequent commits share their looks."""
        core = Core(commit_interval_s=LOOK_AGE_S / 10, latency_s=LOOK_AGE_S / 20)
        core.create_topic(1000, partitions=1)
        handle = core.spawn()
        before = len(core.requests("topic_ids", group=""))
        for offset in range(50):
            handle.submit(offset)
            core.advance(LOOK_AGE_S / 5)
        commits = len(core.commits())
        assert commits > 40
        assert len(core.requests("topic_ids", group="")) - before < commits / 2

    def test_groups_share_a_look(self) -> None:
        """A look under way serves everybody who needs one."""
        core = Core(latency_s=0.05)
        core.broker.create_topic("t")
        for group in "abcdefgh":
            core.factory.spawn(group, "t", 0)
        core.advance(1.0)
        assert len(core.requests("topic_ids", group="")) == 1

    @pytest.mark.parametrize("failure", [-195, 3])
    def test_a_look_that_fails_is_reported(self, failure: int) -> None:
        """An offset that waits for the ends of its log does not wait in silence."""
        core, handle = began()
        recreate(core, SMALLER)
        core.submit(handle, FORMER + 1)
        core.coordinator.inject("topic_logs", *[Refuse(failure)] * 3)
        handle.submit(9)
        core.advance(1.5)
        assert core.holds() != at(9)
        assert "at offset 9 failed" in str(handle.status().last_error)
        core.advance(30.0)
        assert core.holds() == at(9)

    def test_nothing_is_committed_while_the_id_cannot_be_read(self) -> None:
        """It is tried again, and said why."""
        core, handle = began()
        core.coordinator.inject("topic_ids", *[Refuse(-195)] * 3)
        handle.submit(FORMER + 1)
        core.advance(1.5)
        assert core.holds() == at(FORMER)
        why = "the id of topic t is not known: Kafka did not answer"
        assert why in str(handle.status().last_error)
        core.advance(30.0)
        assert core.holds() == at(FORMER + 1)


class TestDeletedTopics:
    @pytest.mark.parametrize("committed", [True, False])
    def test_an_idle_manager_learns_of_a_topic_that_was_recreated_long_after(
        self, *, committed: bool
    ) -> None:
        """The kind: a manager without an offset was verified no more.

        It went on refusing lower offsets, and clients were never told of the new topic.
        """
        core, handle = began(commit=committed)
        recreate(core, SMALLER, gap_s=400.0)
        core.advance(400.0)
        (topic_id,) = core.broker.topic_ids(["t"]).values()
        assert core.factory.topic_ids({"g": [tp()]}) == {"t": topic_id}
        core.submit(handle, 7)
        assert core.holds() == at(7)

    @pytest.mark.parametrize("between", [False, True], ids=["at rest", "between two answers"])
    def test_an_offset_that_kafka_deleted_with_its_topic_is_reported_as_such(
        self, *, between: bool
    ) -> None:
        """It is not an external change by a person.

        Nor where the id was read before the deletion, and the offset after it.
        """
        core, _ = began()
        if between:
            core.coordinator.inject("fetch", Respond(1.0))
            looks = len(core.requests("topic_ids", group=""))
            while len(core.requests("topic_ids", group="")) == looks:
                core.advance(0.1)
        core.broker.delete_topic("t")
        core.advance(400.0)
        assert codes(core) == ["TOPIC_DELETED"]
        (_, error), *_ = core.listener.failures
        assert isinstance(error, OffsetNoticeError)
        assert "Kafka deleted the group's offset with it" in str(error)


def test_a_kafka_without_topic_ids_commits_unseen() -> None:
    """Brokers before 2.8; a topic of the memory coordinator that was never created."""
    core = Core()
    handle = core.spawn()
    core.submit(handle, 5)
    assert core.holds() == at(5)
    assert handle._manager.topic_id == ""
