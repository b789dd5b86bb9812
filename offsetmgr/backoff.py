"""Pauses between tries; standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

_DOUBLINGS: Final = 30
"""More would only make large numbers: the longest pause is reached before."""


def pause_s(failures: int, first_s: float, longest_s: float, rng: Random | None = None) -> float:
    """Return the seconds to wait after ``failures`` (from 1) in a row.

    It is ``first_s`` after the first, twice as long after each further one, at most ``longest_s``.
    With ``rng`` it is between half of that and the whole, so that callers spread.
    """
    whole_s = min(longest_s, first_s * 2.0 ** min(failures - 1, _DOUBLINGS))
    return whole_s if rng is None else whole_s * rng.uniform(0.5, 1.0)


class Backoff:
    """Counts failures in a row, and returns the pause after each."""

    __slots__ = ("_first_s", "_longest_s", "_rng", "failures")

    def __init__(self, first_s: float, longest_s: float, rng: Random | None = None) -> None:
        """As for ``pause_s``."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._rng = rng
        self.failures = 0
        """Since the last success."""

    def failed(self) -> float:
        """Count a failure; return the seconds until the next try."""
        self.failures += 1
        return pause_s(self.failures, self._first_s, self._longest_s, self._rng)

    def succeeded(self) -> None:
        """Begin again with the first pause."""
        self.failures = 0
