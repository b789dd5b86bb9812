"""Acknowledged offsets of a partition, and their ranges in the metadata of a commit.

The ranges are encoded as kafka-pixy does it: for each range the gap before it and its length, each
as a number of 5-bit groups, least significant first, in the base64 alphabet; 0x20 marks that
another group follows.  Our metadata begins with a marker and a checksum of offset and ranges:
other programs commit metadata too, and much of it is text of that alphabet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import ceil, log2
from typing import Final, Generic, TypeVar
from zlib import crc32

from offsetmgr.types import MAX_METADATA_CHARS, MAX_OFFSET, OffsetAndMetadata

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUE_OF: Final = {char: value for value, char in enumerate(_ALPHABET)}
_BITS: Final = 5
_LOW: Final = (1 << _BITS) - 1
_MORE: Final = 1 << _BITS

_LOOKAHEAD: Final = 64
"""Offsets for which room is looked for at once."""

_RESERVE: Final = 2 * ceil(64 / _BITS)
"""Characters for one range of offsets that do not exist: these are seen when they are passed."""

_T = TypeVar("_T")

_MARKER: Final = "acks:"
_CHECKSUM_CHARS: Final = 4
PREFIX_CHARS: Final = len(_MARKER) + _CHECKSUM_CHARS + 1
"""Characters of metadata before its ranges."""


def encode_acks(offset: int, ranges: list[tuple[int, int]]) -> str:
    """Return the metadata of a commit of ``offset``; empty where there are no ``ranges``."""
    text = encode_ranges(offset, ranges)
    return text and f"{_MARKER}{_checksum(offset, text)}:{text}"


def decode_acks(offset: int, metadata: str, *, bare: bool = False) -> list[tuple[int, int]]:
    """Return the ranges in the metadata of a commit of ``offset``.

    Raises ValueError for metadata that is not from ``encode_acks`` for this offset.  With ``bare``
    it may also be as kafka-pixy commits it, which nothing tells from the text of other programs.
    """
    if not metadata:
        return []
    prefix, text = metadata[:PREFIX_CHARS], metadata[PREFIX_CHARS:]
    if not prefix.startswith(_MARKER):
        if bare:
            return decode_ranges(offset, metadata)
        raise ValueError("it is another program's")
    if prefix != f"{_MARKER}{_checksum(offset, text)}:":
        raise ValueError("its checksum is wrong")
    return decode_ranges(offset, text)


def _checksum(offset: int, text: str) -> str:
    value = crc32(f"{offset}:{text}".encode(errors="replace"))
    return "".join(_ALPHABET[value >> 6 * n & 0x3F] for n in range(_CHECKSUM_CHARS))


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


def pending_below(base: int, text: str, end: int) -> int | None:
    """Return how many offsets from ``base`` to the last range of metadata ``text`` are in no range.

    None where it is another program's, or has ranges beyond ``end``.
    """
    try:
        ranges = decode_acks(base, text)
    except ValueError:
        return None
    last = ranges[-1][1] if ranges else base
    if last > max(base, end):
        return None
    return last - base - sum(stop - start for start, stop in ranges)


class AckTracker(Generic[_T]):
    """The acknowledged offsets of one partition, and an item for each pending one.

    ``offset`` is the lowest one that is not acknowledged; that is what to commit.  Offsets are
    delivered in rising order and acknowledged in any.  An offset that is passed over does not exist
    (compaction, transaction markers) and counts as acknowledged.

    While callers deliver only where ``has_room`` is true, the metadata of ``position`` has at most
    ``limit_chars``, whatever is acknowledged in which order.
    """

    def __init__(
        self,
        offset: int,
        metadata: str = "",
        *,
        limit_chars: int = MAX_METADATA_CHARS,
        bare: bool = False,
    ) -> None:
        """Begin at what is committed; with ``bare``, metadata is as kafka-pixy commits it.

        Raises ValueError for ``metadata`` that is neither ours nor, with ``bare``, kafka-pixy's.
        """
        self.offset = offset
        self._bare = bare
        self._limit_chars = limit_chars if bare else limit_chars - PREFIX_CHARS
        self._next = offset
        self.room = 0
        """So many offsets more have room; if it is 0, ``has_room`` looks."""
        self.pending: dict[int, _T] = {}
        """The items of offsets that are delivered and not acknowledged."""
        # Acknowledged ranges above `offset`, rising and apart: first offsets, and ends.
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in decode_acks(offset, metadata, bare=bare):
            self._acknowledge_range(start, end)

    @property
    def position(self) -> OffsetAndMetadata:
        """Return what to commit."""
        ranges = list(zip(self._starts, self._ends, strict=True))
        encode = encode_ranges if self._bare else encode_acks
        return OffsetAndMetadata(self.offset, encode(self.offset, ranges))

    @property
    def acknowledged_end(self) -> int:
        """Return the end of the highest acknowledged range; ``offset`` where there is none."""
        return self._ends[-1] if self._ends else self.offset

    @property
    def oldest(self) -> _T | None:
        """Return the item of ``offset``; None where it was not delivered yet."""
        return self.pending.get(self.offset)

    @property
    def has_room(self) -> bool:
        """True if one more offset can be delivered and every order of acks fits the metadata.

        The lowest offset of all can be delivered always: its ack makes the metadata no longer.
        """
        if self.room > 0 or not self.pending:
            return True
        end = max(self._next, self._ends[-1]) if self._ends else self._next
        if end == self._next and self._has_room(end, _LOOKAHEAD):
            self.room = _LOOKAHEAD
        return self.room > 0 or self._has_room(end, 1)

    def _has_room(self, end: int, more: int) -> bool:
        """True if every order of acks fits, with so many ``more`` delivered behind ``end``.

        Each range follows a gap of at least one offset that is pending or not delivered yet.  A
        number n takes at most 1 + log2(n) / 5 characters, so equal gaps and ranges take most.
        """
        window = end + more - self.offset
        ahead = len(self._starts) - bisect_right(self._starts, self._next)
        most = max(1, min(len(self.pending) + more + ahead, window // 2))
        chars = 2 * most * (1 + log2(max(1.0, window / (2 * most))) / _BITS)
        return ceil(chars) <= self._limit_chars - _RESERVE

    def is_acknowledged(self, offset: int) -> bool:
        if offset < self.offset:
            return True
        at = bisect_right(self._starts, offset)
        return at > 0 and offset < self._ends[at - 1]

    def deliver(self, offset: int, item: _T) -> bool:
        """Take in that ``offset`` comes to the application; False if it is acknowledged already."""
        if offset == self._next and self.room:
            self.room -= 1
            self._next = offset + 1
            self.pending[offset] = item
            return True
        self.room = 0
        if offset > self._next:
            self._acknowledge_range(self._next, offset)
        self._next = max(self._next, offset + 1)
        if self.is_acknowledged(offset):
            return False
        self.pending[offset] = item
        return True

    def pass_over(self, end: int) -> None:
        """Take in that nothing comes before ``end`` any more, such as markers of transactions."""
        if end > self._next:
            self.room = 0
            self._acknowledge_range(self._next, end)
            self._next = end

    def acknowledge(self, offset: int) -> bool:
        """Acknowledge a delivered offset; False if it is not pending."""
        if offset not in self.pending:
            return False
        del self.pending[offset]
        if offset == self.offset and not self._starts:
            self.offset += 1
        else:
            self._acknowledge_range(offset, offset + 1)
        return True

    def _acknowledge_range(self, start: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        # The ranges from `low` to before `high` touch the new one and become one with it.
        low, high = bisect_left(ends, start), bisect_right(starts, end)
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        if start <= self.offset:
            self.offset = max(self.offset, end)
            del starts[:high], ends[:high]
        else:
            starts[low:high], ends[low:high] = [start], [end]
