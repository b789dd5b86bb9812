"""Track which messages of a partition are acknowledged, for the next commit.

The offset to commit is the lowest one that is not acknowledged.  The acknowledged ranges above it
go into the commit's metadata, so that a restart delivers again only what was not acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import ceil, log2
from typing import Final, Generic, TypeVar

from offsetmgr.acked_ranges import decode_ranges, encode_ranges, encoded_chars
from offsetmgr.types import MAX_METADATA_CHARS, OffsetAndMetadata

_LOOKAHEAD: Final = 64
"""Offsets for which room is looked for at once."""

_RESERVE: Final = 2 * encoded_chars(2**63)
"""Characters for one range of offsets that do not exist: these are seen when they are passed."""

_BITS: Final = 5
"""Of a number, in each character."""

_T = TypeVar("_T")


class AckTracker(Generic[_T]):
    """The acknowledged offsets of one partition, and an item for each pending one.

    ``offset`` is the lowest one that is not acknowledged; that is what to commit.  Offsets are
    delivered in rising order and acknowledged in any.  An offset that is passed over does not exist
    (compaction, transaction markers) and counts as acknowledged.

    ``encoded_chars`` is the exact size of the commit's metadata.  While callers deliver only where
    ``has_room`` is true it cannot exceed ``limit_chars``, whatever is acknowledged in which order.
    """

    def __init__(
        self, offset: int, metadata: str = "", *, limit_chars: int = MAX_METADATA_CHARS
    ) -> None:
        """Begin at what is committed; raise ValueError where ``metadata`` holds no ranges."""
        self.offset = offset
        self.encoded_chars = 0
        self._limit_chars = limit_chars
        self._next = offset
        self._room = 0  # offsets from `_next` on that can be delivered without a look
        self._pending: dict[int, _T] = {}
        # Acknowledged ranges above `offset`, rising and apart: first offsets, and ends.
        self._starts: list[int] = []
        self._ends: list[int] = []
        if metadata:
            for start, end in decode_ranges(offset, metadata):
                self._acknowledge_range(start, end)

    @property
    def pending(self) -> int:
        """Offsets delivered and not acknowledged."""
        return len(self._pending)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Acknowledged ranges above ``offset``, each as first offset and end."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def position(self) -> OffsetAndMetadata:
        """Return what to commit."""
        return OffsetAndMetadata(self.offset, encode_ranges(self.offset, self.ranges))

    @property
    def oldest(self) -> _T | None:
        """Return the item of ``offset``; None where it was not delivered yet."""
        return self._pending.get(self.offset)

    @property
    def has_room(self) -> bool:
        """True if one more offset can be delivered and every order of acks fits the metadata.

        The lowest offset of all can be delivered always: its ack makes the metadata no longer.
        """
        return self._room > 0 or self._has_room()

    def _has_room(self) -> bool:
        pending = len(self._pending)
        if not pending:
            return True
        end = max(self._next, self._ends[-1]) if self._ends else self._next
        limit_chars = self._limit_chars - _RESERVE
        # An ack makes at most one range more, and splits no gap longer than the window.
        chars = 1 + encoded_chars(end + _LOOKAHEAD - self.offset)
        room = (limit_chars - self.encoded_chars) // chars - pending
        if room > 0:
            if end == self._next:
                self._room = min(room, _LOOKAHEAD)
            return True
        # Each range follows a gap of at least one offset that is pending or not delivered yet; a
        # number n takes at most 1 + log2(n) / 5 characters, so equal gaps and ranges take most.
        window = end + 1 - self.offset
        ahead = len(self._starts) - bisect_right(self._starts, self._next)
        most = max(1, min(pending + 1 + ahead, window // 2))
        return ceil(2 * most * (1 + log2(max(1.0, window / (2 * most))) / _BITS)) <= limit_chars

    def is_pending(self, offset: int) -> bool:
        return offset in self._pending

    def is_acknowledged(self, offset: int) -> bool:
        if offset < self.offset:
            return True
        at = bisect_right(self._starts, offset)
        return at > 0 and offset < self._ends[at - 1]

    def deliver(self, offset: int, item: _T) -> bool:
        """Take in that ``offset`` comes to the application; False if it is acknowledged already."""
        if offset == self._next and self._room:
            self._room -= 1
            self._next = offset + 1
            self._pending[offset] = item
            return True
        self._room = 0
        if offset > self._next:
            self._acknowledge_range(self._next, offset)
        self._next = max(self._next, offset + 1)
        if self.is_acknowledged(offset):
            return False
        self._pending[offset] = item
        return True

    def acknowledge(self, offset: int) -> bool:
        """Acknowledge a delivered offset; False if it is not pending."""
        if offset not in self._pending:
            return False
        del self._pending[offset]
        if offset == self.offset and not self._starts:
            self.offset += 1
        else:
            self._acknowledge_range(offset, offset + 1)
        return True

    def acknowledge_up_to(self, offset: int) -> int:
        """Acknowledge all that is pending up to and with ``offset``; return how many it was."""
        below = [each for each in self._pending if each <= offset]
        for each in sorted(below):
            self.acknowledge(each)
        return len(below)

    def _acknowledge_range(self, start: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        # The ranges from `low` to before `high` touch the new one and become one with it.
        low, high = bisect_left(ends, start), bisect_right(starts, end)
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        self.encoded_chars -= self._chars_of(low, high + 1)
        if start <= self.offset:
            self.offset = max(self.offset, end)
            del starts[:high], ends[:high]
            self.encoded_chars += self._chars_of(0, 1)
        else:
            starts[low:high], ends[low:high] = [start], [end]
            self.encoded_chars += self._chars_of(low, low + 2)

    def _chars_of(self, low: int, high: int) -> int:
        """Characters that the ranges from ``low`` to before ``high`` take, as far as they exist."""
        starts, ends = self._starts, self._ends
        chars = 0
        base = ends[low - 1] if low else self.offset
        for at in range(low, min(high, len(starts))):
            chars += encoded_chars(starts[at] - base) + encoded_chars(ends[at] - starts[at])
            base = ends[at]
        return chars
