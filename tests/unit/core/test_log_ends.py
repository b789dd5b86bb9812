"""Committed offsets outside their log are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import Fault, OffsetNoticeError
from offsetmgr.types import TopicPartition
from tests.unit.core.core import Core, at, tp

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle


VERIFY_S = 60.0
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
def test_an_offset_outside_its_log_is_reported(offset: int) -> None:
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
def test_both_ends_of_a_log_belong_to_it(offset: int) -> None:
    """The start is the first record, the high watermark the next one to come."""
    core, handle = begun()
    handle.rewind(offset)
    core.advance(3 * ROUND_S)
    assert core.holds() == at(offset)
    assert told(core) == []


def test_unreadable_ends_do_not_hold_back_a_commit() -> None:
    """The look is not to be the reason why nothing is committed."""
    core, handle = begun()
    core.coordinator.inject("topic_logs", *[Refuse(29)] * 10)
    handle.submit(21)
    core.advance(1.1)
    assert core.holds() == at(21)
    assert told(core) == []


def test_groups_and_topics_that_are_verified_together_share_a_look() -> None:
    """Twenty groups of a topic, one of them of fifty others, ask for ends once or twice a round."""
    core, _ = begun(verify_interval_s=4.0)
    others = [TopicPartition(f"other-{number}", 0) for number in range(50)]
    for other in others:
        core.broker.create_topic(other.topic, 1)
    core.broker.commit_externally("g0", dict.fromkeys(others, at(0)))
    groups = [f"g{number}" for number in range(20)]
    for group in groups:
        for partition in range(2):
            core.put(at(30), partition, group)
        core.factory.spawn_many(group, [tp(0), tp(1), *(others if group == "g0" else ())])
    core.advance(7.0)
    assert sum(len(core.requests("fetch", group)) for group in groups) >= 40
    assert 1 <= looks(core) <= 3
    assert told(core) == [("OFFSET_OUTSIDE_LOG", 30)] * 40
