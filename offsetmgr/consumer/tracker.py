"""Track which messages of a partition are acknowledged, and encode it for a commit.

The offset to commit is the lowest one that is not acknowledged.  The acknowledged ranges above it
go into the commit's metadata, so that a restart delivers again only what was not acknowledged.  The
encoding is kafka-pixy's: for each range the gap before it and its length, each as a number of 5-bit
groups, least significant first, in the base64 alphabet; 0x20 marks that another group follows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import ceil, log2
from typing import Final

from offsetmgr.types import MAX_METADATA_CHARS, MAX_OFFSET, OffsetAndMetadata

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUE_OF: Final = {char: value for value, char in enumerate(_ALPHABET)}
_BITS: Final = 5
_LOW: Final = (1 << _BITS) - 1
_MORE: Final = 1 << _BITS


def encode_ranges(base: int, ranges: list[tuple[int, int]]) -> str:
    """Return the text for ``ranges`` of (first, end), rising and apart, all above ``base``."""
    chars: list[str] = []
    for start, end in ranges:
        for number in (start - base, end - start):
            rest = number
            while rest > _LOW:
                chars.append(_ALPHABET[rest & _LOW | _MORE])
                rest >>= _BITS
            chars.append(_ALPHABET[rest])
        base = end
    return "".join(chars)


def decode_ranges(base: int, text: str) -> list[tuple[int, int]]:
    """Return the ranges that ``text`` holds; raise ValueError where it is none of this encoding."""
    numbers: list[int] = []
    number = shift = 0
    for char in text:
        value = _VALUE_OF.get(char)
        if value is None:
            raise ValueError(f"{char!r} is not of the base64 alphabet")
        number |= (value & _LOW) << shift
        shift += _BITS
        if not value & _MORE:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 2:
        raise ValueError("the last range is cut off")
    ranges: list[tuple[int, int]] = []
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start, base = base + gap, base + gap + length
        if not gap or not length or base > MAX_OFFSET:
            raise ValueError(f"a range of {length} after a gap of {gap} is not possible")
        ranges.append((start, base))
    return ranges


def _chars(number: int) -> int:
    """Characters that ``number`` (1 or more) takes."""
    return (number.bit_length() + _BITS - 1) // _BITS


class AckTracker:
    """The acknowledged offsets of one partition.

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
        self._pending: set[int] = set()
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
    def has_room(self) -> bool:
        """True if one more offset can be delivered and every order of acks fits the metadata.

        The lowest offset of all can be delivered always: its ack makes the metadata no longer.
        """
        pending = len(self._pending) + 1
        if pending == 1:
            return True
        end = max(self._next, self._ends[-1]) if self._ends else self._next
        window = end + 1 - self.offset
        # An ack makes at most one range more, and splits no gap longer than the window.
        if self.encoded_chars + pending * (1 + _chars(window)) <= self._limit_chars:
            return True
        # Each range follows a gap of at least one offset that is pending or not delivered yet; a
        # number n takes at most 1 + log2(n) / 5 characters, so equal gaps and ranges take most.
        ahead = len(self._starts) - bisect_right(self._starts, self._next)
        most = max(1, min(pending + ahead, window // 2))
        return (
            ceil(2 * most * (1 + log2(max(1.0, window / (2 * most))) / _BITS)) <= self._limit_chars
        )

    def is_pending(self, offset: int) -> bool:
        return offset in self._pending

    def is_acknowledged(self, offset: int) -> bool:
        if offset < self.offset:
            return True
        at = bisect_right(self._starts, offset)
        return at > 0 and offset < self._ends[at - 1]

    def deliver(self, offset: int) -> bool:
        """Take in that ``offset`` comes to the application; False if it is acknowledged already."""
        if offset > self._next:
            self._acknowledge_range(self._next, offset)
        self._next = max(self._next, offset + 1)
        if self.is_acknowledged(offset):
            return False
        self._pending.add(offset)
        return True

    def acknowledge(self, offset: int) -> bool:
        """Acknowledge a delivered offset; False if it is not pending."""
        if offset not in self._pending:
            return False
        self._pending.remove(offset)
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
            chars += _chars(starts[at] - base) + _chars(ends[at] - starts[at])
            base = ends[at]
        return chars
