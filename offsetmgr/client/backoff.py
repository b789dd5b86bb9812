"""When the sender speaks next: heartbeats while all is well, pauses while the service is away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
DEFAULT_LEASE_S: Final = 30.0
MIN_LEASE_S: Final = 0.3
"""A shorter lease is not kept: heartbeats would be all that the client does."""

SEND_INTERVAL_S: Final = 0.02
"""Pause between two requests while less than a full one waits: what is submitted meanwhile
replaces what waits, so a query that submits in a tight loop costs fifty requests a second."""

_MOST_DOUBLINGS: Final = 10


class SendTimes:
    """Points in time, on the clock that `now` is read from."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.failures = 0
        """In a row."""
        self._heard_at: float | None = None
        self._lease_s = DEFAULT_LEASE_S
        self.resume_at = 0.0
        """Nothing is sent before."""
        self.send_at = 0.0
        """The next offsets are sent then, where they are few and nobody waits for them."""

    @property
    def beat_at(self) -> float:
        """The next heartbeat is due."""
        return 0.0 if self._heard_at is None else self._heard_at + self._lease_s / 3

    def lapsed(self, now: float) -> bool:
        """True if the lease ran out since the service was heard last."""
        return self._heard_at is not None and now - self._heard_at > self._lease_s

    def heard(self, now: float) -> None:
        """The service answered: that renewed the lease."""
        self._heard_at = now

    def succeeded(self) -> None:
        """A request was answered as it should be, which alone ends the back-off."""
        self.failures = 0
        self.resume_at = 0.0

    def lease(self, lease_s: float) -> None:
        """The service said how long it keeps a silent client."""
        self._lease_s = max(lease_s, MIN_LEASE_S)

    def sent(self, now: float) -> None:
        """Offsets went out."""
        self.send_at = now + SEND_INTERVAL_S

    def failed(self, now: float, at_least_s: float = 0.0) -> None:
        """A request failed; the service may have asked for a pause of `at_least_s`."""
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.failures, _MOST_DOUBLINGS))
        self.failures += 1
        self.resume_at = now + max(at_least_s, longest_s * self._rng.uniform(0.5, 1.0))

    def expedite(self) -> None:
        """Somebody waits: try at once."""
        self.resume_at = 0.0
        self.send_at = 0.0
