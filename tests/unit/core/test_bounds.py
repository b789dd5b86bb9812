"""Offsets outside their partition's log, by policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import Future
from offsetmgr.coordinator.base import Failure, PartitionLog, TopicLog
from offsetmgr.coordinator.memory import Answer, Refuse, Unknown
from offsetmgr.errors import Fault, OffsetCommitError, OffsetNoticeError, error_info
from offsetmgr.types import StopResult
from tests.unit.core.core import LOADING, POISON, TIMED_OUT, TOPIC_DENIED, Core, at, tp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager import ManagerHandle

VERIFY_S = 60.0
LEADER_NOT_AVAILABLE = 5
ROUND_S = VERIFY_S + 2.0


def begun(policy: str, **settings: Any) -> tuple[Core, ManagerHandle]:
    """A manager at 10, in a log that holds 5 to 20."""
    settings = {"verify_interval_s": VERIFY_S, "recommit_interval_s": 0, **settings}
    core = Core(on_out_of_range=policy, **settings)
    core.broker.create_topic("t", 3)
    for partition in range(3):
        core.broker.set_log(tp(partition), 5, 20)
    core.put(at(10))
    return core, core.spawn()


def told(core: Core) -> list[tuple[str, int | None]]:
    """What was told so far: codes and offsets."""
    return [(e.code, getattr(e, "offset", None)) for _, e in core.listener.failures]


def looks(core: Core) -> int:
    """How often the ends of logs were read."""
    return len(core.requests("topic_logs", group=""))


@pytest.mark.fault(24)
@pytest.mark.parametrize("offset", [3, 21, 2**63 - 1])
def test_warn_commits_and_tells(offset: int) -> None:
    """Within a round, once, with the ends of the log; the commit is as quick as any."""
    core, handle = begun("warn")
    handle.rewind(offset, "m")
    core.advance(1.1)
    assert core.holds() == at(offset, "m")
    assert looks(core) == 0
    core.advance(5 * ROUND_S)
    assert told(core) == [("OFFSET_OUTSIDE_LOG", offset)]
    (_, error), *_ = core.listener.failures
    assert isinstance(error, OffsetNoticeError)
    assert error.info.fault is Fault.CALLER
    assert "it lies outside the log, which holds 5 to 20" in str(error)
    assert core.holds() == at(offset, "m")
    assert not handle.status().dirty


@pytest.mark.fault(24)
@pytest.mark.parametrize("offset", [5, 12, 20])
@pytest.mark.parametrize("policy", ["warn", "refuse", "clamp"])
def test_both_ends_of_the_log_are_within_it(policy: str, offset: int) -> None:
    """The start is the first record, the high watermark the next one to come."""
    core, handle = begun(policy)
    handle.rewind(offset)
    core.advance(3 * ROUND_S)
    assert core.holds() == at(offset)
    assert told(core) == []


@pytest.mark.fault(24)
@pytest.mark.parametrize("offset", [3, 21])
def test_refuse_does_not_commit(offset: int) -> None:
    """Told once, whoever waits is answered, it stays dirty and visible; a good one goes."""
    core, handle = begun("refuse")
    handle.rewind(offset)
    core.advance(30.0)
    assert core.holds() == at(10)
    assert told(core) == [("OFFSET_OUT_OF_RANGE", offset)]
    assert handle.status().dirty
    (result,) = core.flush([handle], 10.0)
    assert (result.committed, result.uncommitted) == (at(10), at(offset))
    assert isinstance(result.error, OffsetCommitError)
    assert "holds 5 to 20; submit an offset within" in str(result.error)
    handle.rewind(12)
    core.advance(1.1)
    assert core.holds() == at(12)
    assert handle.status().last_error is None


@pytest.mark.fault(24)
@pytest.mark.parametrize(("offset", "nearest"), [(3, 5), (21, 20)])
def test_clamp_commits_the_nearest_end(offset: int, nearest: int) -> None:
    """With its metadata, and told; nothing is left to be committed."""
    core, handle = begun("clamp")
    handle.rewind(offset, "m")
    core.advance(1.1)
    assert core.holds() == at(nearest, "m")
    assert told(core) == [("OFFSET_OUTSIDE_LOG", offset)]
    assert f"{nearest} is committed instead" in str(core.listener.failures[0][1])
    assert handle.status().committed == at(nearest, "m")
    assert not handle.status().dirty
    core.advance(3 * ROUND_S)
    assert len(told(core)) == 1


@pytest.mark.parametrize("policy", ["refuse", "clamp"])
def test_within_the_ends_that_are_known_nothing_is_asked(policy: str) -> None:
    """The ends are read at first, and again when an offset goes beyond them."""
    core, handle = begun(policy)
    for offset in range(11, 21):
        handle.submit(offset)
        core.advance(1.1)
        assert core.holds() == at(offset)
    assert looks(core) == 1
    core.broker.set_log(tp(), 5, 100)
    handle.submit(30)
    core.advance(1.1)
    assert core.holds() == at(30)
    assert looks(core) == 2
    assert told(core) == []


@pytest.mark.parametrize("policy", ["refuse", "clamp"])
def test_a_slow_look_delays_no_other_partition(policy: str) -> None:
    """What is waited for is the log of one topic; the group's other offsets are committed."""
    core, handle = begun(policy)
    peer = core.spawn(1)
    peer.submit(11)
    core.advance(1.1)
    core.coordinator.inject("topic_logs", Answer(4.0))
    handle.submit(15)
    for offset in (12, 13, 14):
        peer.submit(offset)
        core.advance(1.1)
        assert core.holds(1) == at(offset)
    core.advance(2.0)
    assert core.holds() == at(15)


@pytest.mark.parametrize("policy", ["warn", "refuse", "clamp"])
def test_where_the_ends_cannot_be_read_it_is_committed(policy: str) -> None:
    """The look is not to be the reason why nothing is committed."""
    core, handle = begun(policy)
    core.coordinator.inject("topic_logs", *[Refuse(29)] * 10)
    handle.submit(21)
    core.advance(1.1)
    assert core.holds() == at(21)
    assert told(core) == []


def test_what_was_moved_up_does_not_fall_where_the_ends_cannot_be_read() -> None:
    """The start of a log only rises: what lay below it lies below it still."""
    core, handle = begun("clamp")
    core.broker.set_log(tp(), 50, 100)
    handle.submit(11)
    core.advance(1.1)
    assert core.holds() == at(50)
    core.coordinator.inject("topic_logs", *[Refuse(29)] * 10)
    handle.submit(12)
    core.advance(2.0)
    assert core.holds() == at(50)
    assert told(core) == [("OFFSET_OUTSIDE_LOG", 11), ("OFFSET_OUTSIDE_LOG", 12)]
    handle.submit(60)
    core.advance(2.0)
    assert core.holds() == at(60)


@pytest.mark.parametrize("offset", [3, 21])
def test_what_is_moved_leaves_its_leader_epoch_behind(offset: int) -> None:
    """That is of the record before the offset that was submitted, and of no other."""
    core, handle = begun("clamp")
    handle.rewind(offset, "m", leader_epoch=7)
    core.advance(1.1)
    holds = core.holds()
    assert holds is not None
    assert (holds.metadata, holds.leader_epoch) == ("m", None)


def test_of_who_is_gone_no_ends_are_kept() -> None:
    """Though its log was looked at while it was watched for what might land."""
    core, handle = begun("warn", request_timeout_s=20.0)
    core.spawn(1).submit(12)
    core.coordinator.inject("commit", Unknown(7, None))
    handle.submit(11)
    core.advance(2.0)
    handle.submit(12)
    core.advance(2.0)
    core.stop(handle, 1.0)
    core.advance(10 * ROUND_S)
    assert looks(core) > 0
    bounds: Any = core.committer().cell._actor
    assert list(bounds._plan._bounds._ends) == [tp(1)]


@pytest.mark.parametrize("lands_after_s", [0.0, 1.0, 8.0, 60.0, None])
def test_what_was_moved_and_lost_is_known_again(lands_after_s: float | None) -> None:
    """It is looked for as it was sent, not as it was submitted."""
    core, handle = begun("clamp", request_timeout_s=2.0)
    core.coordinator.inject("commit", Unknown(TIMED_OUT, lands_after_s))
    handle.submit(1_000)
    core.advance(5.0)
    assert core.holds() == at(20)
    assert not handle.status().dirty
    core.advance(1_000.0)
    assert core.holds() == at(20)
    assert told(core) == [("OFFSET_OUTSIDE_LOG", 1_000), ("_TIMED_OUT", 20)]


def test_what_was_moved_is_put_back_as_it_was_committed() -> None:
    """Also where its manager is stopped, and a lost commit has landed behind it."""
    core, handle = begun("clamp", request_timeout_s=2.0)
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 6.0))
    handle.submit(15)
    core.advance(3.2)
    handle.submit(1_000)
    core.advance(2.0)
    assert core.holds() == at(20)
    for _ in range(10):
        core.coordinator.inject("commit", Refuse(LOADING))
    core.advance(6.0)
    assert core.holds() == at(15)
    assert handle.status().dirty
    core.stop(handle, 0.05)
    core.advance(100.0)
    assert core.holds() == at(20)


def test_a_hot_loop_of_submits_does_not_starve() -> None:
    """What was looked at is committed, though something newer waits by then."""
    core, handle = begun("refuse", commit_interval_s=0.1)
    for offset in range(11, 200):
        core.broker.set_log(tp(), 5, offset)
        handle.submit(offset)
        core.advance(0.05)
        holds = core.holds()
        assert holds is not None
        assert holds.offset > offset - 10
    assert told(core) == []


def test_a_round_of_warnings_is_one_request_for_the_group() -> None:
    """Whatever it commits meanwhile."""
    core, handle = begun("warn")
    core.spawn(1)
    for offset in range(11, 11 + 2 * int(ROUND_S)):
        core.broker.set_log(tp(), 5, offset)
        handle.submit(offset)
        core.advance(1.0)
    assert 1 <= looks(core) <= 3
    assert told(core) == []


@pytest.mark.fault(23)
@pytest.mark.parametrize("policy", ["warn", "refuse"])
def test_old_offsets_are_not_committed_onto_a_topic_made_anew_in_silence(policy: str) -> None:
    """The new log ends below them: told within a round, or refused."""
    core, handle = begun(policy)
    handle.submit(20)
    core.advance(2.0)
    core.broker.delete_topic("t")
    core.broker.create_topic("t", 3)
    core.broker.set_log(tp(), 0, 2)
    handle.submit(21)
    core.advance(2 * ROUND_S)
    codes = {code for code, _ in told(core)}
    assert codes & {"OFFSET_OUTSIDE_LOG", "OFFSET_OUT_OF_RANGE"}
    assert (core.holds() == at(21)) is (policy == "warn")


@pytest.mark.fault(23)
def test_a_deleted_topic_is_told_and_its_offset_is_not_brought_back() -> None:
    """By the look, where nothing is submitted; the keep-alive leaves it alone."""
    core, _ = begun("warn")
    core.broker.delete_topic("t")
    core.advance(5 * ROUND_S)
    assert told(core) == [("OFFSET_CHANGED_EXTERNALLY", 10)]
    assert core.holds() is None


def test_a_topic_that_grows_just_works() -> None:
    """A new partition is one more manager."""
    core, _ = begun("refuse")
    core.broker.create_topic("t", 4)
    handle = core.spawn(3)
    handle.submit(0)
    core.advance(1.1)
    assert core.holds(3) == at(0)


def test_a_flush_does_not_wait_for_the_interval_where_the_log_is_looked_at() -> None:
    """What was submitted during the look is committed as soon as what waited for it."""
    core, handle = begun("refuse", commit_interval_s=3600.0)
    core.broker.set_log(tp(), 5, 40)
    core.coordinator.inject("topic_logs", Answer(2.0))
    handle.submit(28)
    core.factory.flush([handle.key], 10.0)
    core.advance(1.0)
    handle.submit(30)
    future = core.factory.flush([handle.key], 10.0)
    core.advance(5.0)
    assert future.get(timeout=0) == {handle.key: StopResult(at(30))}


@pytest.mark.fault(23)
@pytest.mark.parametrize("policy", ["warn", "clamp"])
def test_a_topic_made_anew_is_told_though_the_offsets_lie_within_it(policy: str) -> None:
    """Once, by the next look at its log, and never of one that is as it was."""
    core, handle = begun(policy)
    handle.submit(12)
    core.advance(3 * ROUND_S)
    assert told(core) == []
    core.broker.delete_topic("t")
    core.broker.create_topic("t", 3)
    core.broker.set_log(tp(), 0, 100)
    core.advance(3 * ROUND_S)
    handle.submit(25)
    core.advance(5 * ROUND_S)
    errors = {error.code: error for _, error in core.listener.failures}
    assert len(told(core)) == len(errors)
    assert errors.keys() == {"OFFSET_CHANGED_EXTERNALLY", "TOPIC_RECREATED"}
    error = errors["TOPIC_RECREATED"]
    assert isinstance(error, OffsetNoticeError)
    assert error.info.fault is Fault.OPERATOR
    assert "the topic was made anew, as 2, not 1; offsets of before count records" in str(error)
    assert core.holds() == at(25)
    assert not handle.status().dirty


@pytest.mark.parametrize("policy", ["warn", "refuse", "clamp"])
def test_a_look_that_is_never_answered_is_made_again(policy: str) -> None:
    """Though nothing new waits for one; and the committer rests until then."""
    core, handle = begun(policy)
    asked, real = [], core.coordinator.topic_logs

    def topic_logs(*args: Any, **named: Any) -> Future[Any]:
        asked.append(core.system.clock.now())
        return Future() if len(asked) == 1 else real(*args, **named)

    core.coordinator.topic_logs = topic_logs  # type: ignore[method-assign]
    handle.submit(15)
    core.advance(3 * ROUND_S)
    assert core.holds() == at(15)
    assert len(asked) > 1


@pytest.mark.parametrize("policy", ["warn", "refuse", "clamp"])
def test_what_was_acknowledged_is_put_back_though_its_log_was_cut(policy: str) -> None:
    """Of a lost commit that lands behind it: otherwise the group stays ahead of a rewind."""
    core, handle = begun(policy, request_timeout_s=2.0, verify_interval_s=0)
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 6.0))
    handle.submit(18)
    core.advance(1.5)
    handle.rewind(11)
    core.advance(3.0)
    assert handle.status().committed == at(11)
    core.broker.set_log(tp(), 15, 20)
    core.committer().try_tell(POISON)  # its successor knows of no ends
    core.coordinator.inject("commit", Refuse(LOADING))
    core.advance(60.0)
    assert core.holds() == at(11)
    assert not handle.status().dirty


@pytest.mark.fault(24)
@pytest.mark.parametrize("named", [False, True])
def test_a_rewind_is_not_moved_to_the_start_of_a_log_that_is_gone(*, named: bool) -> None:
    """A topic made anew begins at 0, whatever start was known before the ends were unreadable."""
    core, handle = begun("clamp")
    core.broker.set_log(tp(), 50, 100)
    handle.submit(11)
    core.advance(1.1)
    core.broker.delete_topic("t")
    core.broker.create_topic("t", 3)
    core.broker.set_log(tp(), 0, 10)
    if named:  # which topic it is is known, but its leader is not there yet
        topic_id = core.broker.topic_logs(["t"])["t"].topic_id
        unled = PartitionLog(0, 0, Failure(error_info(LEADER_NOT_AVAILABLE)))
        answer: Future[Mapping[str, TopicLog]] = Future()
        answer.set({"t": TopicLog({0: unled}, topic_id=topic_id)})
        core.coordinator.topic_logs = lambda *_, **__: answer  # type: ignore[method-assign]
    else:
        core.coordinator.inject("topic_logs", Refuse(TOPIC_DENIED))
    handle.rewind(3)
    core.advance(2.0)
    assert core.holds() == at(3)
