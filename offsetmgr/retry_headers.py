"""Headers of messages in retry and dead-letter topics; standard library only.

Anybody with the right may write to these topics: a header that is not as it is written here counts
as missing.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.errors import InvalidValueError
from offsetmgr.text import encodable, error_text, shown
from offsetmgr.types import MAX_OFFSET, MAX_PARTITION, check_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

PREFIX: Final = "offsetmgr-"
"""Begins the names of all headers that are set here."""

TOPIC: Final = "offsetmgr-origin-topic"
PARTITION: Final = "offsetmgr-origin-partition"
OFFSET: Final = "offsetmgr-origin-offset"
TIMESTAMP: Final = "offsetmgr-timestamp-ms"
"""Header with the timestamp of the message where it was first read.  The copy's own is the time of
the copy, so that a topic's retention does not delete the copies of old messages."""

GROUP: Final = "offsetmgr-group"
"""Header with the group that rejected the message: others may read the same retry topics."""

TRIES: Final = "offsetmgr-tries"
ERROR: Final = "offsetmgr-error"
STACK: Final = "offsetmgr-stack"
FIRST: Final = "offsetmgr-first-failed-ms"
LAST: Final = "offsetmgr-last-failed-ms"
DUE: Final = "offsetmgr-due-ms"
CUT: Final = "offsetmgr-value-bytes"
"""Header of a letter that was too large for its topic: the size of the value, which is left out."""

REPLAYS: Final = "offsetmgr-replays"
"""Header with the number of replays from the dead-letter topic; later copies keep it."""

REPLAYED: Final = "offsetmgr-replayed"
"""Header of a mark: the offset of the letter that was replayed."""
REPLAYED_FROM: Final = "offsetmgr-replayed-from"
"""Header of a replayed message: topic, partition and offset of its letter."""

MAX_STACK_CHARS: Final = 8_000
"""Of a longer stack the end is kept."""

MAX_ERROR_CHARS: Final = 2_000
"""Of a longer text the beginning is kept."""

MAX_KEY_BYTES: Final = 1_000
"""Kept of a longer key, and of a longer text, in a letter that has no room for all of it."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, which is the last that Python can show."""

_MAX_DIGITS: Final = len(str(MAX_OFFSET))


class Origin(NamedTuple):
    """The place of a message in the topic that it was first produced to."""

    topic: str
    partition: int
    offset: int


class Retried(NamedTuple):
    """The headers of a message in a retry topic, as far as they can be true."""

    origin: Origin
    """Place where it was first read."""
    timestamp_ms: int
    """Timestamp of the message there; -1 if it is not known."""
    tries: int
    """Deliveries before this one."""
    due_s: float
    """Time of its delivery in seconds since 1970."""
    group: str
    """The group that rejected it; empty if it is not known."""


def number(
    headers: Mapping[str, bytes | None], name: str, missing: int = 0, most: int = MAX_OFFSET
) -> int:
    """Return a header as a number from 0 to ``most``; ``missing`` where it is not one."""
    text = headers.get(name) or b""
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        return missing
    value = int(text)
    return value if value <= most else missing


def origin_of(headers: Mapping[str, bytes | None], here: Origin) -> Origin:
    """Return the origin in the headers, ``here`` if they have none.

    Raises InvalidValueError for one that Kafka cannot have.
    """
    topic = headers.get(TOPIC)
    if topic is None:
        return here
    name = check_topic(topic.decode(errors="replace"), TOPIC)
    partition, offset = number(headers, PARTITION, -1, MAX_PARTITION), number(headers, OFFSET, -1)
    if partition < 0 or offset < 0:
        value = headers.get(PARTITION), headers.get(OFFSET)
        raise InvalidValueError("origin", value, "is not a partition and an offset", "correct it")
    return Origin(name, partition, offset)


def failure_headers(
    headers: Headers,
    origin: Origin,
    error: object,
    *,
    tries: int,
    now_ms: int,
    due_ms: int | None = None,
    timestamp_ms: int | None = None,
    group: str = "",
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a rejected message: its own, and why and how often it failed."""
    before = dict(headers)
    stack = ""
    if isinstance(error, BaseException):
        stack, error = stack_of(error), error_text(error, MAX_ERROR_CHARS)
    text = shown(error) if error is not None and not isinstance(error, str) else error
    ours: dict[str, object] = {
        TOPIC: origin.topic,
        PARTITION: origin.partition,
        OFFSET: origin.offset,
        TRIES: tries,
        ERROR: (text or "rejected without a reason")[:MAX_ERROR_CHARS],
        STACK: stack,
        FIRST: number(before, FIRST, now_ms),
        LAST: now_ms,
        DUE: due_ms,
        TIMESTAMP: timestamp_ms,
        GROUP: group or None,
        REPLAYS: number(before, REPLAYS) if REPLAYS in before else None,
    }
    known = {name: str(value) for name, value in ours.items() if value is not None}
    texts = ((name, encodable(value).encode()) for name, value in known.items())
    return [*own_headers(headers), *texts]


def stack_of(error: BaseException) -> str:
    """Return the end of the stack of an exception; a line instead where it cannot be had."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException as failed:  # noqa: BLE001 -- the exception may be of anybody's making
        return f"the stack cannot be had: {error_text(failed)}"
    return "".join(lines)[-MAX_STACK_CHARS:]


def smaller_letters(
    key: bytes | None, value: bytes | None, headers: Headers
) -> list[tuple[bytes | None, bytes | None, Headers]]:
    """Return a letter without its stack, one without its value, one without both, smaller ones."""
    ours = dict([header for header in headers if header[0].startswith(PREFIX)])
    ours[CUT] = str(len(value or b"")).encode()
    cut = [*own_headers(headers), *ours.items()]
    short_key = None if key is None else key[:MAX_KEY_BYTES]
    short = {**ours, STACK: b"", ERROR: (ours[ERROR] or b"")[:MAX_KEY_BYTES]}
    return [
        (key, value, _without_stack(headers)),
        (key, None, cut),
        (key, None, _without_stack(cut)),
        (short_key, None, [*ours.items()]),
        (short_key, None, [*short.items()]),
    ]


def _without_stack(headers: Headers) -> list[tuple[str, bytes | None]]:
    return [header for header in headers if header[0] != STACK]


def own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return the headers that the message was first produced with."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]
