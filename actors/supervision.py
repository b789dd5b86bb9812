"""How often an actor that fails is restarted, and how long it rests before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFAULT", "NEVER_GIVE_UP", "Supervision"]

_MOST_DOUBLINGS: Final = 64
"""Beyond these the back-off is at its maximum in any case."""


@dataclass(frozen=True)
class Supervision:
    """The restart policy of one actor.

    The n-th failure within `window_s` seconds rests `backoff_s * 2**(n-1)` seconds, at most
    `backoff_max_s`.  More than `max_restarts` failures within the window stop the actor; None
    restarts it however often it fails.
    """

    max_restarts: int | None = 5
    window_s: float = 60.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0

    def recent(self, failures_s: Sequence[float], now_s: float) -> list[float]:
        """Return the times of failure that still count, no more than a decision needs."""
        most = _MOST_DOUBLINGS if self.max_restarts is None else self.max_restarts + 1
        return [at_s for at_s in failures_s if now_s - at_s < self.window_s][-most:]

    def rest_s(self, failures: int) -> float | None:
        """Return the seconds from the latest of `failures` to the restart; None to give up."""
        if self.max_restarts is not None and failures > self.max_restarts:
            return None
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return min(self.backoff_s * 2.0**doublings, self.backoff_max_s)


DEFAULT: Final = Supervision()
NEVER_GIVE_UP: Final = Supervision(max_restarts=None)
