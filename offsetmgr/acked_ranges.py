"""Acknowledged ranges above a committed offset, as the metadata of the commit holds them.

The ranges are encoded as kafka-pixy does it: for each range the gap before it and its length, each
as a number of 5-bit groups, least significant first, in the base64 alphabet; 0x20 marks that
another group follows.  Our metadata begins with a marker and a checksum of offset and ranges:
other programs commit metadata too, and much of it is text of that alphabet.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from offsetmgr.types import MAX_OFFSET

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUE_OF: Final = {char: value for value, char in enumerate(_ALPHABET)}
_BITS: Final = 5
_LOW: Final = (1 << _BITS) - 1
_MORE: Final = 1 << _BITS

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


def encoded_chars(number: int) -> int:
    """Return the characters that ``number`` (1 or more) takes."""
    return (number.bit_length() + _BITS - 1) // _BITS
