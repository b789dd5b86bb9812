"""What becomes of an actor that failed: the policy, the decision and the notice."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.ref import ActorRef

__all__ = ["DEFAULT", "ChildStopped", "Directive", "Supervision"]


class Directive(enum.Enum):
    """A parent's decision on a child that failed."""

    RESTART = "restart"
    """A fresh instance, after the policy's backoff; the ref and the inbox stay."""

    STOP = "stop"
    """The end: the child's children stop, then the parent is told `ChildStopped`."""


@dataclass(frozen=True)
class Supervision:
    """How often an actor may fail, and how long it rests before it is started again.

    The n-th failure within `window_s` seconds rests `backoff_s * 2**(n-1)`
    seconds, at most `backoff_max_s`. More than `max_restarts` failures within
    the window stop the actor.

    Raises:
        ValueError: a figure is out of its range.

    """

    max_restarts: int = 5
    window_s: float = 60.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuse figures that mean nothing."""
        if self.max_restarts < 0:
            raise ValueError(
                f"max_restarts={self.max_restarts} is negative: use 0 to never restart"
            )
        if not self.window_s > 0:
            raise ValueError(f"window_s={self.window_s} must be above 0 seconds")
        if not 0 <= self.backoff_s <= self.backoff_max_s:
            raise ValueError(
                f"backoff_s={self.backoff_s} must lie between 0 and "
                f"backoff_max_s={self.backoff_max_s} seconds"
            )

    def recent(self, failures_s: Sequence[float], now_s: float) -> list[float]:
        """Keep the times of failure that still count: in the window, and no more than matter."""
        within = [at_s for at_s in failures_s if now_s - at_s < self.window_s]
        return within[-(self.max_restarts + 1) :]

    def decide(self, failures: int) -> Directive:
        """Restart until `failures` within the window exceed the limit."""
        return Directive.RESTART if failures <= self.max_restarts else Directive.STOP

    def rest_s(self, failures: int) -> float:
        """Seconds between the latest of `failures` and the restart."""
        doublings = min(failures - 1, 64)  # beyond, a float would overflow long after the cap
        return min(self.backoff_s * 2.0**doublings, self.backoff_max_s)


DEFAULT = Supervision()


@dataclass(frozen=True)
class ChildStopped:
    """Told to a parent when a child was stopped because it failed."""

    child: ActorRef[Any]
    """The child; it is dead."""

    reason: BaseException
    """What the child raised last."""
