"""Which lane the commits of a group take: always the same one, and all lanes alike."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

LEFT_LIMIT: Final = 4_096
"""Released groups whose lane is known still, those released last."""

_L = TypeVar("_L")


class Lanes(Generic[_L]):
    """Hands out lanes to groups; for any thread.

    Commits of many groups take as long as those of the fullest lane: by a hash of the name one of
    twelve has a seventh more of a thousand groups than its share, and two groups may meet in one
    while the others are empty.  So a group gets the lane that fewest have, and keeps it; also where
    it is released and comes again, as its client may still write what was given up long ago.
    """

    def __init__(self, lanes: Sequence[_L]) -> None:
        self._lanes = lanes
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._groups = [0] * len(lanes)
        """How many have each."""
        self._left: dict[str, int] = {}

    def of(self, group: str) -> _L:
        """The lane of ``group``, from now until it is released."""
        number = self._taken.get(group)
        if number is None:
            number = self._take(group)
        return self._lanes[number]

    def release(self, group: str) -> None:
        """Nothing of ``group`` is to be committed for now."""
        with self._lock:
            number = self._taken.pop(group, None)
            if number is None:
                return
            self._groups[number] -= 1
            self._left[group] = number
            if len(self._left) > LEFT_LIMIT:
                del self._left[next(iter(self._left))]

    def _take(self, group: str) -> int:
        with self._lock:
            number = self._taken.get(group)
            if number is None:
                number = self._left.pop(group, self._groups.index(min(self._groups)))
                self._taken[group] = number
                self._groups[number] += 1
            return number
