"""The events of a chaos run as its clients saw them: an append-only log for each of their lives.

An event is ``invoke`` (about to be done), ``ok`` (done), ``fail`` (certainly not done), ``former``
(refused for good, as of a former log) or ``info`` (nobody knows).  A line reaches the kernel in one
write before anything else happens, so that a ``kill -9`` of the client loses none.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Outcome = Literal["invoke", "ok", "fail", "former", "info"]
Action = Literal["submit", "rewind", "sync", "lower", "told", "close"]

TELLING: Final = frozenset({"told", "close"})
"""Actions that submit nothing, and say what is committed."""

SUFFIX: Final = ".events"


class Key(NamedTuple):
    """One manager of a chaos run."""

    group: str
    partition: int
    topic: str = ""
    """Empty for the topic that is never recreated."""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.group, self.topic, str(self.partition))))


class Tag(NamedTuple):
    """Names one submit forever: it travels to Kafka as the metadata of its offset.

    Tags of one key compare as the submits happened, since a partition belongs to one client.
    """

    client: str
    life: int
    """Incarnation of the client, from 1."""
    number: int
    """Rises with each submit of a life."""
    log: int = 0
    """The log that the offset was read from, as its topic had them, from 1; 0 for the topic that is
    never recreated."""

    def __str__(self) -> str:
        return ":".join(map(str, self if self.log else self[:3]))


class Event(NamedTuple):
    outcome: Outcome
    action: Action
    tag: Tag
    """Of the submit that is spoken of; ``told`` may speak of another life's."""
    key: Key
    offset: int
    at_s: float
    """Wall clock, which the brokers of the same machine share."""
    topic_id: str = ""
    """The topic's id that the client sends with a submit; empty if it knows none."""


def tag_of(metadata: str) -> Tag | None:
    """Return the submit that the metadata of a committed offset names; None if it names none."""
    client, *numbers = metadata.split(":")
    if len(numbers) not in {2, 3} or not all(map(str.isdecimal, numbers)):
        return None
    return Tag(client, *map(int, numbers))


class EventLog:
    """The event log of one life of a client; thread-safe."""

    def __init__(self, folder: Path, client: str, life: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(path_of(folder, client, life), flags, 0o644)

    def write(
        self,
        outcome: Outcome,
        action: Action,
        tag: Tag,
        key: Key,
        offset: int,
        topic_id: str = "",
    ) -> None:
        event = Event(outcome, action, tag, key, offset, time.time(), topic_id)
        os.write(self._file, f"{json.dumps(event)}\n".encode())


def path_of(folder: Path, client: str, life: int) -> Path:
    return folder / f"{client}.{life}{SUFFIX}"


def has_spoken(path: Path) -> bool:
    """True if the life of that log has begun to submit."""
    return path.exists() and path.stat().st_size > 0


def events_of(path: Path) -> Iterator[Event]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):  # else the client was killed at it: nothing was done yet
            outcome, action, tag, key, *rest = json.loads(line)
            yield Event(outcome, action, Tag(*tag), Key(*key), *rest)


def lives_of(folder: Path, client: str) -> list[Path]:
    return sorted(folder.glob(f"{client}.*{SUFFIX}"), key=lambda path: int(path.suffixes[-2][1:]))


def newest_submits(path: Path) -> dict[Key, Event]:
    """Return the newest submit of each key that a life's client has submitted to."""
    return {
        event.key: event
        for event in events_of(path)
        if event.action not in TELLING and event.outcome in {"ok", "info"}
    }


def of_a_former_life(folder: Path, client: str, life: int, key: Key, offset: int) -> bool:
    """True if an earlier life of the client submitted ``offset``: a replaced one may be ahead."""
    now = path_of(folder, client, life)
    return any(
        event.key == key and event.offset == offset and event.action not in TELLING
        for path in lives_of(folder, client)
        if path != now
        for event in events_of(path)
    )


def read_history(folder: Path) -> list[Event]:
    """The events of all logs; those of one log stay in their order."""
    return [event for path in sorted(folder.glob(f"*{SUFFIX}")) for event in events_of(path)]
