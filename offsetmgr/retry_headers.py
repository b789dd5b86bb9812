"""Headers of messages in retry and dead-letter topics; standard library only."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

PREFIX: Final = "offsetmgr-"
"""Begins the names of all headers that are set here."""

TOPIC: Final = "offsetmgr-origin-topic"
PARTITION: Final = "offsetmgr-origin-partition"
OFFSET: Final = "offsetmgr-origin-offset"
TRIES: Final = "offsetmgr-tries"
ERROR: Final = "offsetmgr-error"
STACK: Final = "offsetmgr-stack"
FIRST: Final = "offsetmgr-first-failed-ms"
LAST: Final = "offsetmgr-last-failed-ms"
DUE: Final = "offsetmgr-due-ms"
REPLAYS: Final = "offsetmgr-replays"
"""Header with the number of replays from the dead-letter topic; later copies keep it."""

REPLAYED: Final = "offsetmgr-replayed"
"""Header of a mark: the offset of the letter that was replayed."""
REPLAYED_FROM: Final = "offsetmgr-replayed-from"
"""Header of a replayed message: topic, partition and offset of its letter."""

MAX_STACK_CHARS: Final = 8_000
"""Of a longer stack the end is kept."""


class Origin(NamedTuple):
    """The place of a message in the topic that it was first produced to."""

    topic: str
    partition: int
    offset: int


def number(headers: Mapping[str, bytes | None], name: str, missing: int = 0) -> int:
    """Return a header as a number; ``missing`` where it is none."""
    try:
        return int((headers.get(name) or b"").decode())
    except ValueError:
        return missing


def origin_of(headers: Mapping[str, bytes | None], here: Origin) -> Origin:
    """Return the origin that headers tell, ``here`` where they tell none."""
    topic = headers.get(TOPIC)
    if topic is None:
        return here
    text = topic.decode(errors="replace")
    return Origin(text, number(headers, PARTITION), number(headers, OFFSET))


def failure_headers(
    headers: Headers,
    origin: Origin,
    error: BaseException | str | None,
    *,
    tries: int,
    now_ms: int,
    due_ms: int | None = None,
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a rejected message: its own, and why and how often it failed."""
    before = dict(headers)
    stack = ""
    if isinstance(error, BaseException):
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        error = f"{type(error).__name__}: {error}"
    ours = {
        TOPIC: origin.topic,
        PARTITION: origin.partition,
        OFFSET: origin.offset,
        TRIES: tries,
        ERROR: error or "rejected without a reason",
        STACK: stack[-MAX_STACK_CHARS:],
        FIRST: number(before, FIRST, now_ms),
        LAST: now_ms,
    }
    if due_ms is not None:
        ours[DUE] = due_ms
    if REPLAYS in before:
        ours[REPLAYS] = number(before, REPLAYS)
    return own_headers(headers) + [(name, str(value).encode()) for name, value in ours.items()]


def own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return the headers that the message was first produced with."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]
