"""Limits of what is under way, with a share for each client."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS: Final = 1_000
"""Requests under way at once that do not wait."""


class Quota:
    """Limits what is under way of one kind; a quarter of it may be of one client."""

    def __init__(self, limit: int, kind: str) -> None:
        self.taken = 0
        self._limit = limit
        self._share = max(1, limit // 4)
        self._kind = kind
        self._by: Counter[str] = Counter()

    @contextmanager
    def place(self, who: str, amount: int = 1) -> Iterator[None]:
        """Take ``amount`` while inside.  Raises OverloadedError where a limit is reached.

        What is alone is never too much.
        """
        for taken, limit, whose in (
            (self.taken, self._limit, ""),
            (self._by[who], self._share, " of one client"),
        ):
            if taken and taken + amount > limit:
                text = f"{taken} {self._kind}{whose} are under way, and {limit} is the limit"
                raise OverloadedError(f"{text}; try again later")
        self.taken += amount
        self._by[who] += amount
        try:
            yield
        finally:
            self.taken -= amount
            self._by[who] -= amount
            if not self._by[who]:
                del self._by[who]
