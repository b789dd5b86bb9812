"""Times and durations as people type them."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import Final

from offsetmgr.errors import InvalidValueError

_DAYS: Final = r"(?:([0-9]+)D)?"
_CLOCK: Final = r"(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?"
_DURATIONS: Final = (
    # In this form an M without a T before it is a month.
    re.compile(f"P{_DAYS}(?:T(?=[0-9]){_CLOCK})?", re.IGNORECASE),
    re.compile(f"{_DAYS}{_CLOCK}", re.IGNORECASE),
)
_UNITS_S: Final = 86_400, 3_600, 60, 1
_MAX_DAYS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_S, _LAST_S = -62_135_596_800.0, 253_402_300_799.0


def parse_duration(text: str, field: str) -> float:
    """Return seconds from ``P1DT2H30M5S`` or ``1d2h30m5s``.  Raises InvalidValueError."""
    parts = _parts(text)
    if not any(parts):
        hint = "give such as PT2H30M or 2h30m, with D, H, M and S"
        raise InvalidValueError(field, text, "is not a duration", hint)
    seconds = sum(float(part or 0) * unit for part, unit in zip(parts, _UNITS_S, strict=True))
    if seconds > _MAX_DAYS * 86_400:
        raise InvalidValueError(field, text, "is too long", f"give at most {_MAX_DAYS} days")
    return seconds


def _parts(text: str) -> tuple[str | None, ...]:
    """Return the numbers of days, hours, minutes and seconds; none if it is not a duration."""
    matches = (duration.fullmatch(text.strip()) for duration in _DURATIONS)
    return next((match.groups() for match in matches if match), ())


def parse_time(text: str, field: str) -> float:
    """Return seconds since 1970 from ``2026-01-31T13:05:00``, in UTC if no zone is given.

    Negative before 1970.  Raises InvalidValueError.
    """
    plain = text.strip()
    if plain.endswith(("Z", "z")):
        plain = f"{plain[:-1]}+00:00"
    try:
        time = datetime.fromisoformat(plain)
    except ValueError:
        hint = "give such as 2026-01-31T13:05:00 (UTC) or 2026-01-31T13:05:00+01:00"
        raise InvalidValueError(field, text, "is not a time", hint) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return (time - _EPOCH).total_seconds()


def parse_since(text: str, field: str, now_s: float) -> float:
    """Return seconds since 1970 from a time, or from how long ago it is."""
    if _parts(text):
        return now_s - parse_duration(text, field)
    return parse_time(text, field)


def time_text(at_s: float) -> str:
    """Return a time as ``parse_time`` takes it, to the millisecond, in UTC.

    Clients of older Kafkas may commit with any time: beyond the years 1 to 9999 it is their end.
    """
    at_s = min(max(at_s, _FIRST_S), _LAST_S)
    moment = datetime.fromtimestamp(round(at_s * 1_000) / 1_000, timezone.utc)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def time_before(at_s: float) -> str:
    """Return the last time before one, for ``--to-history``."""
    return time_text(at_s - 0.001)


def seconds_text(seconds: float | None) -> str | None:
    """Return a length of time as people say it, such as ``25 s`` or ``3.5 h``; at least ``0 s``."""
    if seconds is None or math.isinf(seconds):
        return None
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
