"""Failed commits in the log."""

from __future__ import annotations

from structlog.testing import capture_logs

from actors.testing import ManualClock
from offsetmgr.errors import OffsetCommitError, OffsetFetchError, error_info
from offsetmgr.seldom import INTERVAL_S
from offsetmgr.service.failure_log import FailureLog
from offsetmgr.types import ManagerKey


def refused(key: ManagerKey, code: int = 25) -> OffsetCommitError:
    """A commit that Kafka did not take."""
    return OffsetCommitError(*key, 7, error_info(code), "")


def test_the_first_failure_is_told_in_full_and_the_rest_counted() -> None:
    """A thousand partitions that fail at every retry are one line, and a figure later."""
    clock = ManualClock()
    failures = FailureLog(clock)
    with capture_logs() as logs:
        for number in range(1_000):
            key = ManagerKey("etl", "orders", number)
            failures.failed(key, refused(key))
    assert [each["event"] for each in logs] == ["commit_failed"]
    assert logs[0]["code"] == "UNKNOWN_MEMBER_ID"
    assert "live members" in logs[0]["error"]
    clock.advance(INTERVAL_S)
    key = ManagerKey("etl", "orders", 3)
    with capture_logs() as logs:
        failures.failed(key, refused(key))
    assert [each["not_shown_before"] for each in logs] == [999]


def test_another_group_or_another_code_is_told_at_once() -> None:
    """One group's trouble does not hide another's, nor a new kind of trouble."""
    failures = FailureLog(ManualClock())
    one, other = ManagerKey("a", "t", 0), ManagerKey("b", "t", 0)
    with capture_logs() as logs:
        failures.failed(one, refused(one))
        failures.failed(other, refused(other))
        failures.failed(one, refused(one, code=3))
        failures.failed(one, OffsetFetchError(*one, None, error_info(14), ""))
    assert [each["event"] for each in logs] == ["commit_failed"] * 3 + ["fetch_failed"]
