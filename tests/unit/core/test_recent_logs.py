"""Looks at the ends of logs that groups share."""

from __future__ import annotations

from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.base import Failure, PartitionLog, TopicLog
from offsetmgr.errors import error_info
from offsetmgr.manager.recent_logs import RECENT_S, RecentLogs
from tests.unit.core.core import Core, at, tp

VERIFY_S = 300.0
GROUPS = 100

LOG = TopicLog({0: PartitionLog(5, 20)}, topic_id="a")


def crowd() -> Core:
    """Many groups at 10, in a log that holds 5 to 20."""
    core = Core(verify_interval_s=VERIFY_S, recommit_interval_s=0)
    core.broker.create_topic("t", 1)
    core.broker.set_log(tp(), 5, 20)
    for number in range(GROUPS):
        core.put(at(10), group=f"g{number}")
        core.factory.spawn(f"g{number}", "t", 0)
    core.advance(1.0)
    return core


def test_many_groups_on_a_topic_read_its_ends_a_few_times() -> None:
    """Rounds of a hundred groups lie within half an interval; each looks at what stands."""
    core = crowd()
    core.advance(2 * VERIFY_S)
    assert sum(len(core.requests("fetch", f"g{n}")) for n in range(GROUPS)) >= 2 * GROUPS
    assert 1 <= len(core.requests("topic_logs", group="")) <= 2 * VERIFY_S / RECENT_S
    assert core.listener.failures == []


def test_what_lies_outside_of_what_others_have_read_is_read_anew() -> None:
    """The log has grown meanwhile; where it has not, that is told as soon as ever."""
    core = crowd()
    keep_up = [core.factory.managers(f"g{number}")[0] for number in range(10, 30)]
    core.factory.managers("g2")[0].submit(1_000)
    for end in range(20, 100):
        core.broker.set_log(tp(), 5, end)
        for manager in keep_up:
            manager.submit(end)
        core.advance(VERIFY_S / 40)
    assert [(key.group, error.code) for key, error in core.listener.failures] == [
        ("g2", "OFFSET_OUTSIDE_LOG")
    ]


def test_what_was_read_serves_for_a_while() -> None:
    """And no longer; a topic that could not be read not at all, nor is it kept."""
    recent = RecentLogs(CommitSettings())
    failed = TopicLog({}, Failure(error_info(3)))
    recent.put({"t": LOG, "u": failed}, 100.0)
    assert recent.get(["t", "u", "v"], 100.0 + RECENT_S - 1) == {"t": LOG}
    assert recent.get(["t"], 100.0 + RECENT_S) == {}
    recent.put({"v": LOG}, 100.0 + RECENT_S)
    assert list(recent._logs) == ["v"]


def test_who_looks_more_often_reads_more_often() -> None:
    """What others have read is old after a part of the interval, and at once without looks."""
    recent = RecentLogs(CommitSettings(verify_interval_s=10.0))
    recent.put({"t": LOG}, 100.0)
    assert recent.get(["t"], 101.9) == {"t": LOG}
    assert recent.get(["t"], 102.0) == {}
    never = RecentLogs(CommitSettings(verify_interval_s=0.0))
    never.put({"t": LOG}, 100.0)
    assert never.get(["t"], 100.0) == {}
