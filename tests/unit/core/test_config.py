"""Settings are checked when they are made."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from offsetmgr.config import LARGEST, MAY_BE_ZERO, CommitSettings
from offsetmgr.errors import InvalidValueError

NAMES = [field.name for field in fields(CommitSettings)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [True, "1", None, float("nan"), float("inf"), [1], -1, -0.5, LARGEST + 1, 10**400],
    ids=lambda value: str(value)[:20],
)
def test_an_impossible_time_or_length_is_refused_by_name(name: str, value: Any) -> None:
    """No connection is opened with an impossible setting."""
    problem = f"^{name} .* is not possible; give a number from 0(.001)? to [0-9]+$"
    with pytest.raises(InvalidValueError, match=problem):
        CommitSettings(**{name: value})


def test_a_request_may_take_five_minutes_and_no_more() -> None:
    """Above an hour librdkafka would take ten seconds instead, and say nothing."""
    assert CommitSettings(request_timeout_s=300).request_timeout_s == 300
    with pytest.raises(InvalidValueError, match=r"give a number from 0\.001 to 300$"):
        CommitSettings(request_timeout_s=300.5)


@pytest.mark.parametrize("name", NAMES)
def test_zero_is_refused_where_it_would_spin(name: str) -> None:
    """A pause of nothing is a loop; recommits and verification it switches off."""
    settings: dict[str, Any] = {name: 0}
    if name in MAY_BE_ZERO:
        assert getattr(CommitSettings(**settings), name) == 0
    else:
        with pytest.raises(InvalidValueError, match=f"^{name} 0 is not possible"):
            CommitSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"error_limit": 2.5}, r"error_limit 2\.5 is not possible"),
        ({"retry_backoff_s": 0.2, "retry_backoff_max_s": 0.1}, "retry_backoff_max_s 0.1 is lower"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(settings: dict[str, Any], problem: str) -> None:
    """A count is whole; of two settings that contradict each other the one to change is named."""
    with pytest.raises(InvalidValueError, match=f"^{problem}"):
        CommitSettings(**settings)
