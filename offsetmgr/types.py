"""The words of the product as types, and the checks at the door.

Everything here is the standard library alone: the thin client imports this module inside any
Spark driver.  A value that passed a ``check_*`` function is safe to hand to librdkafka, which
aborts the process on some bad names, and to Kafka, which accepts nearly anything.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, SupportsIndex

from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.errors import OffsetManagerError

MAX_OFFSET: Final = 2**63 - 1
"""Largest offset Kafka can hold (a signed 64-bit integer)."""

MAX_INT32: Final = 2**31 - 1
"""Largest partition number and leader epoch."""

MAX_GROUP_CHARS: Final = 255
"""Longest group name.  Kafka names no limit; this is that of its own client and group tools."""

MAX_TOPIC_CHARS: Final = 249
"""Longest topic name (Kafka: ``org.apache.kafka.common.internals.Topic``)."""

MAX_METADATA_CHARS: Final = 4095
"""Longest metadata in UTF-16 units, as the broker counts them: its default
``offset.metadata.max.bytes`` is 4,096 and librdkafka adds a NUL on the wire."""

_TOPIC_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ManagerKey(NamedTuple):
    """What one offset manager owns: a partition of a topic within a group."""

    group: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The key without its group."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.group}/{self.topic}/{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A position in a partition as a group commits it.

    ``offset`` is the *next* offset to read (exclusive), 0 ≤ offset < 2^63.  ``metadata`` is free
    text that travels with it; ``leader_epoch`` is the epoch of the record before it, where known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class StopResult(NamedTuple):
    """What a stop (or a flush) of one manager ended with.

    ``committed`` is the last offset the coordinator acknowledged, None where it never did.
    ``uncommitted`` is the newest submitted offset that was not acknowledged, None where nothing
    was left.  ``error`` says why, where something was left.
    """

    committed: OffsetAndMetadata | None
    uncommitted: OffsetAndMetadata | None = None
    error: OffsetManagerError | None = None


class CommittedStream(Protocol):
    """The committed-offsets mailbox: latest-wins, closed after stop."""

    def get(self, timeout: float | None = None) -> OffsetAndMetadata:
        """The newest unread committed offset; TimeoutError, or the mailbox's closed error."""

    def __iter__(self) -> Iterator[OffsetAndMetadata]:
        """Iterate until the manager is stopped."""


class ErrorStream(Protocol):
    """The errors mailbox: bounded, the oldest are dropped, with a count of what was dropped."""

    @property
    def dropped(self) -> int:
        """How many errors were dropped because nobody read them in time."""

    def get(self, timeout: float | None = None) -> OffsetManagerError:
        """The oldest unread error; TimeoutError, or the mailbox's closed error."""

    def __iter__(self) -> Iterator[OffsetManagerError]:
        """Iterate until the manager is stopped."""


class OffsetManagerHandle(Protocol):
    """One offset manager as its user sees it; in process or through the service."""

    @property
    def key(self) -> ManagerKey:
        """Group, topic and partition."""

    def initial_offset(self, timeout: float | None = None) -> OffsetAndMetadata | None:
        """What was committed when the manager started; None where nothing was.

        Waits up to ``timeout`` seconds.  Raises OffsetTimeoutError (with the last error of the
        coordinator as its cause), ManagerStoppedError.
        """

    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """Make ``offset`` (the next one to read) the newest to commit; never blocks.

        Raises InvalidValueError, OffsetRegressionError, ManagerStoppedError.
        """

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """As submit, but a lower offset is what the caller wants."""

    def committed_offsets(self) -> CommittedStream:
        """What the coordinator has acknowledged."""

    def errors(self) -> ErrorStream:
        """What went wrong while committing or fetching."""

    def stop(self, timeout: float = 10.0) -> StopResult:
        """Commit the newest offset, stop, and say what was committed; within ``timeout`` s."""


def check_group(value: object, field: str = "group") -> str:
    """A group name that is safe for librdkafka and readable in every tool."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the group's name as a string")
    if not value:
        raise InvalidValueError(field, value, "is empty", "name the consumer group")
    if len(value) > MAX_GROUP_CHARS:
        problem = f"has {len(value)} characters"
        raise InvalidValueError(field, value, problem, f"use at most {MAX_GROUP_CHARS}")
    if not value.isprintable():
        raise InvalidValueError(
            field,
            value,
            "holds a control or unprintable character",
            "use printable characters only (no newline, tab or NUL)",
        )
    if value != value.strip():
        fix = "remove the spaces at its ends: no tool would show them"
        raise InvalidValueError(field, value, "begins or ends with a space", fix)
    return value


def check_topic(value: object, field: str = "topic") -> str:
    """A legal Kafka topic name: 1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` or ``..``."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the topic's name as a string")
    if not value or value in {".", ".."} or not _TOPIC_CHARS.issuperset(value):
        fix = "use 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-' (not '.' or '..')"
        raise InvalidValueError(field, value, "is not a legal Kafka topic name", fix)
    if len(value) > MAX_TOPIC_CHARS:
        problem = f"has {len(value)} characters"
        raise InvalidValueError(field, value, problem, f"use at most {MAX_TOPIC_CHARS}")
    return value


def check_partition(value: object, field: str = "partition") -> int:
    """A partition number, 0 to 2^31-1."""
    return _check_int(value, field, MAX_INT32, "partition number")


def check_offset(value: object, field: str = "offset") -> int:
    """An offset, 0 to 2^63-1: the next one to read."""
    return _check_int(value, field, MAX_OFFSET, "offset")


def check_leader_epoch(value: object, field: str = "leader_epoch") -> int | None:
    """A leader epoch, or None where it is not known."""
    return None if value is None else _check_int(value, field, MAX_INT32, "leader epoch")


def _check_int(value: object, field: str, highest: int, what: str) -> int:
    if type(value) is not int:
        if isinstance(value, SupportsIndex) and not isinstance(value, bool):
            # As numerical libraries have them (numpy.int64): what they stand for travels on.
            return _check_int(index(value), field, highest, what)
        kind = type(value).__name__
        raise InvalidValueError(
            field, value, f"is a {kind}, not an integer", f"give the {what} as a whole number"
        )
    if not 0 <= value <= highest:
        problem = "is negative" if value < 0 else "is too large"
        fix = f"give a whole number from 0 to {highest}"
        if field.endswith("offset") and value < 0:
            fix += "; 'nothing committed' is not an offset: submit nothing instead"
        raise InvalidValueError(field, value, problem, fix)
    return value


def check_metadata(value: object, field: str = "metadata") -> str:
    """Metadata the broker will take: at most 4,095 UTF-16 units, without NUL."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the metadata as a string")
    if not value:
        return value
    if "\0" in value:
        raise InvalidValueError(field, value, "holds a NUL", "remove it: librdkafka ends there")
    try:
        units = len(value) if value.isascii() else len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        fix = "replace lone surrogates: Kafka stores UTF-8"
        raise InvalidValueError(field, value, "cannot be encoded", fix) from None
    if units > MAX_METADATA_CHARS:
        fix = f"use at most {MAX_METADATA_CHARS}: the broker refuses more"
        raise InvalidValueError(field, value, f"has {units} characters", fix)
    return value
