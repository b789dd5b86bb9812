"""Errors in the driver's log: soon, and never a flood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.client.failure_log import FailureLog
from offsetmgr.errors import OffsetCommitError, error_info
from offsetmgr.repeats import INTERVAL_S
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    import pytest


def fail(
    told: FailureLog, partition: int, now_s: float, *, group: str = "g", code: int = 7
) -> None:
    error = OffsetCommitError(group, "t", partition, 5, error_info(code))
    told.failed(ManagerKey(group, "t", partition), error, now_s)


def test_a_thousand_partitions_that_fail_at_once_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first is told at once, however long they fail; their end is told after the last."""
    told = FailureLog()
    for partition in range(1_000):
        fail(told, partition, 0.0)
    fail(told, 3, INTERVAL_S)
    assert len(caplog.messages) == 1
    assert "g/t/0" in caplog.messages[0]
    for partition in range(1_000):
        assert len(caplog.messages) == 1
        told.committed(ManagerKey("g", "t", partition))
    assert caplog.messages[1:] == [
        "offsets of group g are committed again: REQUEST_TIMED_OUT is over"
    ]


def test_an_intermittent_failure_is_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cause that is over and comes back soon waits for its turn, and is counted meanwhile."""
    told = FailureLog()
    for _ in range(3):
        fail(told, 0, 0.0)
        told.committed(ManagerKey("g", "t", 0))
    assert len(caplog.messages) == 2
    fail(told, 0, INTERVAL_S)
    assert caplog.messages[2].endswith("(and 2 more of g before)")


def test_a_stopped_manager_fails_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """It hides no later failure of its group."""
    told = FailureLog()
    fail(told, 0, 0.0)
    told.forget([ManagerKey("g", "t", 0)])
    fail(told, 1, INTERVAL_S)
    assert len(caplog.messages) == 2


def test_another_group_and_another_cause_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is hidden behind what was told of something else."""
    told = FailureLog()
    fail(told, 0, 0.0)
    fail(told, 0, 0.0, group="h")
    fail(told, 0, 0.0, code=30)
    assert len(caplog.messages) == 3
