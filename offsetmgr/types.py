"""Types of the public API, and the checks of all values from users.

Standard library alone: the thin client imports this module inside any Spark driver.  A value that
passed a ``check_*`` function is safe to hand to librdkafka, which aborts the process on some bad
names, and to Kafka, which accepts nearly anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from math import inf
from operator import index
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, SupportsIndex, TypeVar

from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.errors import OffsetManagerError

_K = TypeVar("_K")
_T = TypeVar("_T")

new_tuple: Final = tuple.__new__
"""Makes a named tuple of all its fields in half the time: for those of each offset."""

MAX_OFFSET: Final = 2**63 - 1
"""Largest offset Kafka can hold (a signed 64-bit integer)."""

MAX_INT32: Final = 2**31 - 1
"""Largest leader epoch."""

MAX_PARTITION: Final = 1_000_000
"""Largest partition number taken.  Kafka's protocol has room for 2^31-1, but no topic comes near a
million partitions: a larger number is a mistake."""

MAX_GROUP_CHARS: Final = 255
"""Longest group name.  Kafka names no limit; this is that of its own client and group tools."""

MAX_NAME_BYTES: Final = 2**15 - 1
"""Longest text in Kafka's protocol, and so the longest name of a group that Kafka may list."""

MAX_TOPIC_CHARS: Final = 249
"""Longest topic name (Kafka: ``org.apache.kafka.common.internals.Topic``)."""

MAX_METADATA_CHARS: Final = 4096
"""Longest metadata in UTF-16 units, as the broker counts them for its
``offset.metadata.max.bytes``, of which this is the default."""

MAX_TIMEOUT_S: Final = 1_000_000_000
"""Longest time-out, 31 years: threads cannot wait for any number of seconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CO_UNRUN: Final = 0x20 | 0x80 | 0x200  # of generators, coroutines and both, as in ``inspect``
_TOPIC_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ManagerKey(NamedTuple):
    """Name of one offset manager: a partition of a topic within a group."""

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
    text that is stored with it; ``leader_epoch`` is the epoch of the record before it, where known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class StopResult(NamedTuple):
    """Result of stopping or flushing one manager.

    ``committed`` is the last committed offset, None if there is none.  ``uncommitted`` is the
    newest submitted offset if it is not committed, else None; ``error`` is the reason.
    """

    committed: OffsetAndMetadata | None
    uncommitted: OffsetAndMetadata | None = None
    error: OffsetManagerError | None = None


class Uncommitted(NamedTuple):
    """An offset that is not known to be committed, and why."""

    offset: OffsetAndMetadata
    error: OffsetManagerError


class FlushResult(NamedTuple):
    """Result of flushing or stopping several managers."""

    committed: Mapping[ManagerKey, OffsetAndMetadata]
    """The newest offset of each, acknowledged by the coordinator."""
    uncommitted: Mapping[ManagerKey, Uncommitted]
    """The newest offset of each other manager, with the reason; some may not have reached the
    service."""

    @property
    def ok(self) -> bool:
        """True if nothing is uncommitted."""
        return not self.uncommitted

    def __bool__(self) -> bool:
        """Return ``ok``."""
        return self.ok

    def raise_for_uncommitted(self) -> None:
        """Raise OffsetsUncommittedError unless all is committed; it names what is not, and why."""
        if self.uncommitted:
            errors = {key: each.error for key, each in self.uncommitted.items()}
            raise OffsetsUncommittedError(errors)


class UnfinishedResult(FlushResult):
    """The state of a close that another call carries out; it is never ``ok``."""

    @property
    def ok(self) -> bool:
        return False

    def raise_for_uncommitted(self) -> None:
        super().raise_for_uncommitted()
        raise OffsetTimeoutError("the offsets are still being committed by another call of close")


class PartitionRange(NamedTuple):
    """The offsets a partition holds: from ``log_start_offset`` up to before ``high_watermark``."""

    log_start_offset: int
    high_watermark: int


class Stream(ABC, Generic[_T]):
    """The unread values of a manager's mailbox; it ends once the manager is stopped."""

    __slots__ = ()

    @property
    @abstractmethod
    def dropped(self) -> int:
        """The number of values that newer ones replaced because nobody read them in time."""

    @abstractmethod
    def get(self, timeout: float | None = None) -> _T:
        """Return the oldest unread value, waiting up to ``timeout`` seconds (None: forever).

        Raises OffsetTimeoutError; ManagerStoppedError once the manager is stopped and all is read;
        InvalidValueError.
        """

    def __iter__(self) -> Iterator[_T]:
        """Yield values, waiting for each, until the manager is stopped."""
        while True:
            try:
                value = self.get()
            except ManagerStoppedError:
                return
            yield value


class OffsetManagerHandle(ABC):
    """One offset manager as its user sees it; in process or through the service.

    Only ``initial_offset`` and ``stop`` wait for Kafka.  Any thread may use it.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def key(self) -> ManagerKey:
        """Group, topic and partition."""

    @abstractmethod
    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        """Return the offset committed when the manager started; None if there was none.

        Waits up to ``timeout`` seconds (None: forever).  Once known, it is returned after a stop
        too.  Raises OffsetTimeoutError, with the coordinator's last error as its cause;
        ManagerStoppedError, ClientFencedError, InvalidValueError.
        """

    @abstractmethod
    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """Make ``offset`` (the next one to read) the newest to commit, without waiting.

        Raises InvalidValueError, with nothing done; OffsetRegressionError if it is lower than the
        last one submitted; ManagerStoppedError; ClientFencedError if a newer client of the same
        name has taken over.
        """

    @abstractmethod
    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """Submit an offset that may be lower than the last one."""

    @abstractmethod
    def committed_offsets(self) -> Stream[OffsetAndMetadata]:
        """Return the offsets that Kafka has acknowledged; a newer one replaces an unread one."""

    @abstractmethod
    def errors(self) -> Stream[OffsetManagerError]:
        """Return the errors of commits and fetches; the oldest unread ones are dropped."""

    @abstractmethod
    def stop(self, *, timeout: float = 10.0) -> StopResult:
        """Commit the newest offset, stop, and return what was committed; within ``timeout`` s.

        A second call returns the same.  Do not call it in an actor.  Raises InvalidValueError.
        """


def check_group(value: object, field: str = "group") -> str:
    """Return a group name that is safe for librdkafka and readable in every tool."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the group's name as a string")
    if not value:
        raise InvalidValueError(field, value, "is empty", "name the consumer group")
    if len(value) > MAX_GROUP_CHARS:
        problem = f"has {len(value)} characters"
        raise InvalidValueError(field, value, problem, f"use at most {MAX_GROUP_CHARS}")
    if not value.isprintable():
        hint = "use printable characters only (no newline, tab or NUL)"
        raise InvalidValueError(field, value, "holds a control or unprintable character", hint)
    if value != value.strip():
        hint = "remove the spaces at its ends: no tool would show them"
        raise InvalidValueError(field, value, "begins or ends with a space", hint)
    return value


def check_existing_group(value: object, field: str = "group") -> str:
    """A group name as Kafka may list it: of any characters, empty too, but without NUL.

    librdkafka reads a name up to its first NUL, which would be the name of another group.
    """
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the group's name as a string")
    if "\0" in value:
        raise InvalidValueError(field, value, "holds a NUL", "no client can ask for such a group")
    size = len(value.encode(errors="surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise InvalidValueError(field, value, f"has {size} bytes", f"use at most {MAX_NAME_BYTES}")
    if value.encode(errors="replace").decode() != value:
        raise InvalidValueError(field, value, "cannot be encoded", "replace lone surrogates")
    return value


def check_topic(value: object, field: str = "topic") -> str:
    """Return a legal Kafka topic name: 1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` or ``..``."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the topic's name as a string")
    has_length = 0 < len(value) <= MAX_TOPIC_CHARS
    if not has_length or value in {".", ".."} or not _TOPIC_CHARS.issuperset(value):
        hint = "use 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-' (not '.' or '..')"
        raise InvalidValueError(field, value, "is not a legal Kafka topic name", hint)
    return value


def check_partition(value: object, field: str = "partition") -> int:
    """Return a partition number, 0 to 1,000,000."""
    return _check_int(value, field, MAX_PARTITION)


def check_offset(value: object, field: str = "offset") -> int:
    """Return an offset, 0 to 2^63-1: the next one to read."""
    return _check_int(value, field, MAX_OFFSET)


def check_leader_epoch(value: object, field: str = "leader_epoch") -> int | None:
    """Return a leader epoch, or None if it is not known."""
    return None if value is None else _check_int(value, field, MAX_INT32)


def _check_int(value: object, field: str, highest: int) -> int:
    number = value if type(value) is int else _index_of(value)
    if number is not None and 0 <= number <= highest:
        return number
    hint = f"give a whole number from 0 to {highest}"
    if number is None:
        problem = f"is a {type(value).__name__}, not an integer"
    else:
        problem = "is negative" if number < 0 else "is too large"
    if problem == "is negative" and field.endswith("offset"):
        hint += "; 'nothing committed' is not an offset: submit nothing instead"
    raise InvalidValueError(field, value, problem, hint)


def _index_of(value: object) -> int | None:
    """Return ``value`` as an integer, such as a numpy.int64; None for other values."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return index(value)
    except TypeError:  # an array of several
        return None


def check_metadata(value: object, field: str = "metadata", most: int = MAX_METADATA_CHARS) -> str:
    """Return metadata that the broker takes: at most ``most`` UTF-16 units, without NUL."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", "give the metadata as a string")
    if "\0" in value:
        hint = "remove it: confluent-kafka's consumers read no further"
        raise InvalidValueError(field, value, "holds a NUL", hint)
    try:
        units = len(value) if value.isascii() else len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        hint = "replace lone surrogates: Kafka stores UTF-8"
        raise InvalidValueError(field, value, "cannot be encoded", hint) from None
    if units > most:
        hint = f"use at most {most}: the broker refuses more"
        raise InvalidValueError(field, value, f"has {units} characters", hint)
    return value


def check_flag(value: object, field: str) -> bool:
    """Return True or False, and no other value."""
    if not isinstance(value, bool):
        raise InvalidValueError(field, value, "is neither True nor False", "give one of them")
    return value


def check_count(value: object, field: str) -> int:
    """Return a whole number from 1 on."""
    if type(value) is not int or value < 1:
        raise InvalidValueError(field, value, "is not possible", "give a number from 1 on")
    return value


def check_choice(value: object, field: str, choices: Iterable[object]) -> None:
    """Refuse what is none of ``choices``."""
    if value not in choices:
        hint = f"give one of {', '.join(map(str, choices))}"
        raise InvalidValueError(field, value, "is unknown", hint)


def check_callable(value: object, field: str) -> None:
    """Refuse a value that cannot be called, or whose call alone does not run its code."""
    if not callable(value):
        raise InvalidValueError(field, value, "cannot be called", "give a function")
    if getattr(getattr(value, "__code__", None), "co_flags", 0) & _CO_UNRUN:
        problem, hint = "returns before its work is done", "give a function with def, without yield"
        raise InvalidValueError(field, value, problem, hint)


def check_instance(value: object, kind: type, field: str) -> None:
    """Refuse what is not an instance of ``kind``."""
    if not isinstance(value, kind):
        raise InvalidValueError(field, value, "has the wrong type", f"give {kind.__name__}(...)")


def check_timeout(value: object, field: str = "timeout", *, forever: bool = False) -> float:
    """Return seconds to wait, from 0 (do not wait); with ``forever`` None means no limit (inf)."""
    if value is None and forever:
        return inf
    number = value if isinstance(value, float) else _index_of(value)
    hint = "give seconds, such as 5 (0 does not wait"
    hint += ", None waits forever)" if forever else ")"
    if number is None:
        raise InvalidValueError(field, value, "is not a number of seconds", hint)
    if not 0 <= number <= MAX_TIMEOUT_S:
        problem = "is negative" if number < 0 else "is too long, or no number"
        raise InvalidValueError(field, value, problem, hint)
    return number


def check_moment(value: object, field: str) -> int:
    """Return a point in time with a time zone as milliseconds since 1970."""
    if not isinstance(value, datetime):
        hint = "give a datetime, such as datetime.now(timezone.utc)"
        raise InvalidValueError(field, value, "is not a point in time", hint)
    if value.tzinfo is None:
        hint = "give it one, such as datetime.now(timezone.utc)"
        raise InvalidValueError(field, value.isoformat(), "has no time zone", hint)
    return check_offset((value - _EPOCH) // timedelta(milliseconds=1), field)


def check_list(values: object, field: str, example: str) -> list[Any]:
    """Return the items of an iterable; text is refused."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidValueError(field, values, "is not a list", f"give one such as {example}")
    return list(values)


def check_topics(values: object) -> list[str]:
    """Return an iterable of topics as a list, each once."""
    listed = check_list(values, "topics", '["orders"]')
    return list(dict.fromkeys([check_topic(each) for each in listed]))


def add_once(found: dict[_K, _T], key: _K, value: _T, field: str) -> None:
    """Add an item of a list.  Raises InvalidValueError, of ``field``, if its key stands there."""
    if key in found:
        raise InvalidValueError(field, str(key), "is given twice", "give it once")
    found[key] = value


def check_topic_partition(value: object, field: str = "partition") -> TopicPartition:
    """Return a tuple of a topic and a partition number as a TopicPartition."""
    if not isinstance(value, tuple) or len(value) != len(TopicPartition._fields):
        hint = 'give a topic and a number, such as ("orders", 3)'
        raise InvalidValueError(field, value, "is not a topic and a number", hint)
    return TopicPartition(check_topic(value[0]), check_partition(value[1]))


def check_topic_partitions(values: object, field: str = "partitions") -> list[TopicPartition]:
    """Return an iterable of partitions as a list, each once."""
    listed = check_list(values, field, '[("orders", 3)]')
    return list(dict.fromkeys([check_topic_partition(each) for each in listed]))


def check_key(value: object, field: str = "key") -> ManagerKey:
    """Return a tuple of group, topic and partition number as a ManagerKey."""
    if not isinstance(value, tuple) or len(value) != len(ManagerKey._fields):
        hint = 'give group, topic and number, such as ("orders-etl", "orders", 3)'
        raise InvalidValueError(field, value, "is not a group, a topic and a number", hint)
    group, topic, partition = value
    return ManagerKey(check_group(group), check_topic(topic), check_partition(partition))


def check_offset_and_metadata(value: object, where: TopicPartition) -> OffsetAndMetadata:
    """Return an offset of ``where``, or one with metadata and leader epoch."""
    if not isinstance(value, OffsetAndMetadata):
        return OffsetAndMetadata(check_offset(value, f"offset of {where}"))
    return OffsetAndMetadata(
        check_offset(value.offset, f"offset of {where}"),
        check_metadata(value.metadata, f"metadata of {where}"),
        check_leader_epoch(value.leader_epoch, f"leader_epoch of {where}"),
    )


def check_mapping(value: object, field: str = "offsets") -> Mapping[object, object]:
    """Return a mapping, whose items are not checked."""
    if not isinstance(value, Mapping):
        hint = 'give a mapping such as {("orders", 3): 1042}'
        raise InvalidValueError(field, value, "is not a mapping", hint)
    return value


def check_offsets(value: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets by topic and partition."""
    offsets = {}
    for key, each in check_mapping(value).items():
        where = check_topic_partition(key)
        offsets[where] = check_offset_and_metadata(each, where)
    return offsets
