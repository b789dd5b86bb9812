"""Committed offsets outside their log, and topics that were made anew, are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import Fault, OffsetNoticeError
from tests.unit.core.core import Core, at, tp

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle


VERIFY_S = 60.0


LEADER_NOT_AVAILABLE = 5


ROUND_S = VERIFY_S + 2.0


def begun(**settings: Any) -> tuple[Core, ManagerHandle]:
    """A manager at 10, in a log that holds 5 to 20."""
    settings = {"verify_interval_s": VERIFY_S, "recommit_interval_s": 0, **settings}
    core = Core(**settings)
    core.broker.create_topic("t", 3)
    for partition in range(3):
        core.broker.set_log(tp(partition), 5, 20)
    core.put(at(10))
    return core, core.spawn()


def told(core: Core) -> list[tuple[str, int | None]]:
    return [(e.code, getattr(e, "offset", None)) for _, e in core.listener.failures]


def looks(core: Core) -> int:
    return len(core.requests("topic_logs", group=""))


@pytest.mark.fault(24)
@pytest.mark.parametrize("offset", [3, 21, 2**63 - 1])
def test_warn_commits_and_tells(offset: int) -> None:
    """Within a round, once, with the ends of the log; the commit is as quick as any."""
    core, handle = begun()
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
def test_both_ends_of_the_log_are_within_it(offset: int) -> None:
    """The start is the first record, the high watermark the next one to come."""
    core, handle = begun()
    handle.rewind(offset)
    core.advance(3 * ROUND_S)
    assert core.holds() == at(offset)
    assert told(core) == []


def test_where_the_ends_cannot_be_read_it_is_committed() -> None:
    """The look is not to be the reason why nothing is committed."""
    core, handle = begun()
    core.coordinator.inject("topic_logs", *[Refuse(29)] * 10)
    handle.submit(21)
    core.advance(1.1)
    assert core.holds() == at(21)
    assert told(core) == []


def test_a_round_of_warnings_is_one_request_for_the_group() -> None:
    """Whatever it commits meanwhile."""
    core, handle = begun()
    core.spawn(1)
    for offset in range(11, 11 + 2 * int(ROUND_S)):
        core.broker.set_log(tp(), 5, offset)
        handle.submit(offset)
        core.advance(1.0)
    assert 1 <= looks(core) <= 3
    assert told(core) == []


@pytest.mark.fault(23)
def test_old_offsets_are_not_committed_onto_a_topic_made_anew_in_silence() -> None:
    """The new log ends below them: told within a round."""
    core, handle = begun()
    handle.submit(20)
    core.advance(2.0)
    core.broker.delete_topic("t")
    core.broker.create_topic("t", 3)
    core.broker.set_log(tp(), 0, 2)
    handle.submit(21)
    core.advance(2 * ROUND_S)
    codes = {code for code, _ in told(core)}
    assert "OFFSET_OUTSIDE_LOG" in codes
    assert core.holds() == at(21)


@pytest.mark.fault(23)
def test_a_recreated_topic_is_reported_even_if_the_offsets_lie_within_it() -> None:
    """Once, by the next look at its log, and never of one that is as it was."""
    core, handle = begun()
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
    assert "the topic was recreated, as 2, not 1; offsets of before count records" in str(error)
    assert core.holds() == at(25)
    assert not handle.status().dirty
