"""Errors in the driver's log: soon, and never a flood."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.client.failure_log import FailureLog
from offsetmgr.errors import OffsetCommitError, error_info
from offsetmgr.seldom import INTERVAL_S
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    import pytest


def fail(
    told: FailureLog, partition: int, now_s: float, *, group: str = "g", code: int = 7
) -> None:
    """One failed commit."""
    error = OffsetCommitError(group, "t", partition, 5, error_info(code))
    told.failed(ManagerKey(group, "t", partition), error, now_s)


def test_a_thousand_partitions_that_fail_at_once_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first is told at once; the next after a while, with how many were left out."""
    told = FailureLog()
    for partition in range(1_000):
        fail(told, partition, 0.0)
    assert len(caplog.messages) == 1
    assert "g/t/0" in caplog.messages[0]
    fail(told, 3, INTERVAL_S)
    assert caplog.messages[1].endswith("(and 999 more of g before)")


def test_another_group_and_another_trouble_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is hidden behind what was told of something else."""
    told = FailureLog()
    fail(told, 0, 0.0)
    fail(told, 0, 0.0, group="h")
    fail(told, 0, 0.0, code=30)
    assert len(caplog.messages) == 3
