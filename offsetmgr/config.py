"""Settings of the managers, checked when made; the service's are in ``service.settings``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, TypeGuard

from offsetmgr.errors import InvalidValueError

MAY_BE_ZERO: Final = frozenset({"recommit_interval_s", "verify_interval_s"})
"""Settings that 0 switches off."""

LARGEST: Final = 2**63 - 1
"""A larger number is a mistake, and too large for a time or a length in Python."""

MOST: Final = {"request_timeout_s": 300}
"""Upper bounds: librdkafka takes a time-out of over an hour for none, and then its own of 10 s."""


def is_number(value: object, kind: type | tuple[type, ...]) -> TypeGuard[float]:
    """True if it is one of ``kind``, and finite; it may be an integer too large for any float."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True)
class CommitSettings:
    """Times and limits of commits.  All times are seconds."""

    commit_interval_s: float = 1.0
    """A submitted offset is committed at most this long after it was submitted, while all is
    well; offsets submitted meanwhile replace it."""

    request_timeout_s: float = 5.0
    """Time that the coordinator has to answer a commit or fetch, at most 300.  After it the outcome
    of a commit is unknown and is read back.  The broker's own limit for a commit is 5 s."""

    retry_backoff_s: float = 0.2
    """First pause after an error; doubled on each further one, with jitter."""

    retry_backoff_max_s: float = 30.0
    """Longest pause after an error."""

    error_limit: int = 64
    """Unread errors a manager keeps; older ones are dropped and counted."""

    recommit_interval_s: float = 86_400.0
    """Unchanged offsets of live managers are committed again this often, so that the broker's
    ``offsets.retention.minutes`` (7 days) never expires them; 0 switches it off."""

    verify_interval_s: float = 300.0
    """Time between two verifications of what is committed, one request for a group; 0 switches
    them off.  A verification comes right before a commit that is due."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first setting that makes no sense."""
        for field in fields(self):
            value = getattr(self, field.name)
            kind = int if field.name == "error_limit" else (int, float)
            least = 0 if field.name in MAY_BE_ZERO else 0.001
            most = MOST.get(field.name, LARGEST)
            if not is_number(value, kind) or not least <= value <= most:
                hint = f"give a number from {least} to {most}"
                raise InvalidValueError(field.name, value, "is not possible", hint)
        if self.retry_backoff_max_s < self.retry_backoff_s:
            problem, hint = "is lower than retry_backoff_s", f"give at least {self.retry_backoff_s}"
            raise InvalidValueError("retry_backoff_max_s", self.retry_backoff_max_s, problem, hint)
