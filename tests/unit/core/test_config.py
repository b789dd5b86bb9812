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


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MAY_BE_ZERO])
def test_zero_is_refused_where_it_would_spin(name: str) -> None:
    """A pause of nothing is a loop; a limit of nothing is a mailbox without room."""
    with pytest.raises(InvalidValueError, match=f"^{name} 0 is not possible"):
        CommitSettings(**dict[str, Any]({name: 0}))


@pytest.mark.parametrize("name", sorted(MAY_BE_ZERO))
def test_zero_switches_off(name: str) -> None:
    """Recommits and verification can be turned off."""
    settings: dict[str, Any] = {name: 0}
    assert getattr(CommitSettings(**settings), name) == 0


def test_a_fraction_is_refused_as_a_count() -> None:
    """A count is whole."""
    with pytest.raises(InvalidValueError, match=r"^error_limit 2\.5 is not possible"):
        CommitSettings(error_limit=2.5)  # type: ignore[arg-type]


def test_the_longest_pause_is_not_the_shorter_one() -> None:
    """Two settings that contradict each other name the one to change."""
    with pytest.raises(InvalidValueError, match=r"^retry_backoff_max_s 0\.1 is lower than"):
        CommitSettings(retry_backoff_s=0.2, retry_backoff_max_s=0.1)
