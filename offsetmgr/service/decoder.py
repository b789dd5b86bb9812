"""From the bytes of a request to checked core types, or to an error that names field and fix.

Good input takes the fast way: one typed decode and one pass.  Whatever that does not like goes
the slow way (``shapes``), over plain JSON with the ``check_*`` functions, which finds the first bad
value and says where it stands.  So the fast way needs to know only *that* something is wrong.

A decoder takes the last of two equal keys in silence.  That there are none is seen by counting
quotes: each string of a JSON text stands between two, and a decoded message says how many strings
it must have had.  Only where the text has more (a default that was spelled out, or a key that
stands twice) the slow way has to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from offsetmgr.errors import InvalidValueError
from offsetmgr.manager import Submission
from offsetmgr.service import validation
from offsetmgr.service.messages import (
    DEFAULT_TIMEOUT_S,
    FlushRequest,
    HeartbeatRequest,
    OpenEntry,
    OpenRequest,
    PartitionRef,
    StopRequest,
    SubmitEntry,
    SubmitRequest,
)
from offsetmgr.types import TopicPartition, check_group, check_metadata, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

    from offsetmgr.service.validation import Shape

_T = TypeVar("_T", bound=msgspec.Struct)

# Half the time of a named tuple's own constructor, which matters at a thousand in a request.
_new: Final = tuple.__new__

# Strings in a request's JSON, keys and values: of the body itself, and of each entry at least.
_BODY_STRINGS: Final = 3  # "group", its name, and the key of the list
_REF_STRINGS: Final = 3  # "topic", its name, "partition"
_ENTRY_STRINGS: Final = 4  # and "offset"


class Open(NamedTuple):
    """Partitions of ``group`` to have managers for; checked, none twice."""

    group: str
    partitions: dict[TopicPartition, int | None]
    """Each with its version."""


class Submit(NamedTuple):
    """Offsets of ``group``; checked."""

    group: str
    offsets: dict[TopicPartition, int | Submission]
    """Plain offsets where no entry says more than that."""
    versions: dict[TopicPartition, int | None]
    wait: bool
    timeout_s: float


class Flush(NamedTuple):
    """Managers to flush: of all groups, of one, or some of one; checked."""

    group: str | None
    partitions: list[TopicPartition] | None
    timeout_s: float


class Stop(NamedTuple):
    """Managers to stop, as ``Flush`` has them."""

    group: str | None
    partitions: list[TopicPartition] | None
    timeout_s: float
    version: int | None = None


class _Odd(Exception):  # noqa: N818 -- not an error yet: the slow way decides
    """The fast way met something that it does not like."""


class Decoder:
    """Reads request bodies; ``entries`` is how many a list may hold."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._open = msgspec.json.Decoder(OpenRequest)
        self._submit = msgspec.json.Decoder(SubmitRequest)
        self._flush = msgspec.json.Decoder(FlushRequest)
        self._stop = msgspec.json.Decoder(StopRequest)
        self._heartbeat = msgspec.json.Decoder(HeartbeatRequest)
        self._open_shape = validation.of_open(entries)
        self._submit_shape = validation.of_submit(entries)
        self._flush_shape = validation.of_flush(entries)
        self._stop_shape = validation.of_stop(entries)

    def open(self, body: bytes) -> Open:
        """Body of POST /v1/managers.  Raises InvalidValueError."""
        try:
            message = _decode(self._open, body)
            refs = self._refs(message.partitions)
            asked = Open(_group(message.group), _versions(refs, message.partitions))
        except _Odd as odd:
            raise validation.explain(body, self._open_shape, odd) from None
        said = _BODY_STRINGS + _REF_STRINGS * len(refs) + _count_versions(asked.partitions)
        _check_once(body, said, self._open_shape)
        return asked

    def submit(self, body: bytes) -> Submit:
        """Body of POST /v1/offsets.  Raises InvalidValueError."""
        try:
            message = _decode(self._submit, body)
            group, entries = _group(message.group), message.offsets
            self._check_count(len(entries))
            _topics({entry.topic for entry in entries})
            said = _BODY_STRINGS + _ENTRY_STRINGS * len(entries)
            said += sum(entry.version is not None for entry in entries)
            # With no more strings than these, no entry has metadata, an epoch or a rewind.
            bare = _strings(body) == said
            offsets = _bare_offsets(entries) if bare else _offsets(entries)
            _check_distinct(offsets, entries)
            versions = _versions(offsets, entries)
        except _Odd as odd:
            raise validation.explain(body, self._submit_shape, odd) from None
        if not bare:
            _check_once(body, said + _spoken(message), self._submit_shape)
        return Submit(group, offsets, versions, message.wait, message.timeout_s)

    def flush(self, body: bytes) -> Flush:
        """Body of POST /v1/flush.  Raises InvalidValueError."""
        try:
            message = _decode(self._flush, body)
            group, refs, strings = self._scope(message)
        except _Odd as odd:
            raise validation.explain(body, self._flush_shape, odd) from None
        _check_once(body, strings, self._flush_shape)
        return Flush(group, refs, message.timeout_s)

    def stop(self, body: bytes) -> Stop:
        """Body of POST /v1/stop.  Raises InvalidValueError."""
        try:
            message = _decode(self._stop, body)
            group, refs, strings = self._scope(message)
        except _Odd as odd:
            raise validation.explain(body, self._stop_shape, odd) from None
        version: Any = message.version  # which is no float by now
        _check_once(body, strings + (version is not None), self._stop_shape)
        return Stop(group, refs, message.timeout_s, version)

    def _scope(self, message: FlushRequest) -> tuple[str | None, list[TopicPartition] | None, int]:
        """Return group and partitions, and how many strings the message has at least."""
        group = None if message.group is None else _group(message.group)
        refs = self._refs_of(group, message.partitions)
        strings = 2 * (group is not None) + (message.timeout_s != DEFAULT_TIMEOUT_S)
        return group, refs, strings + (0 if refs is None else 1 + _REF_STRINGS * len(refs))

    def heartbeat(self, body: bytes) -> None:
        """Body of POST /v1/heartbeat.  Raises InvalidValueError."""
        try:
            _decode(self._heartbeat, body)
        except _Odd as odd:
            raise validation.explain(body, validation.EMPTY, odd) from None

    def _refs_of(
        self, group: str | None, refs: Sequence[PartitionRef] | None
    ) -> list[TopicPartition] | None:
        if refs is None:
            return None
        if group is None:
            raise _Odd
        return self._refs(refs)

    def _refs(self, refs: Sequence[PartitionRef | OpenEntry]) -> list[TopicPartition]:
        self._check_count(len(refs))
        _topics({ref.topic for ref in refs})
        found = dict.fromkeys(_new(TopicPartition, (ref.topic, ref.partition)) for ref in refs)
        _check_distinct(found, refs)
        return list(found)

    def _check_count(self, entries: int) -> None:
        if not 0 < entries <= self._entries:
            raise _Odd


def _check_distinct(found: Sized, entries: Sized) -> None:
    if len(found) != len(entries):
        raise _Odd


def _versions(
    partitions: Iterable[TopicPartition], entries: Sequence[Any]
) -> dict[TopicPartition, int | None]:
    return dict(zip(partitions, [entry.version for entry in entries], strict=True))


def _count_versions(versions: Mapping[TopicPartition, int | None]) -> int:
    return sum(version is not None for version in versions.values())


def _bare_offsets(entries: Sequence[Any]) -> dict[TopicPartition, int | Submission]:
    """Of ``SubmitEntry``; what stands there as a number is a whole one by now."""
    return {_new(TopicPartition, (entry.topic, entry.partition)): entry.offset for entry in entries}


def _offsets(entries: Sequence[SubmitEntry]) -> dict[TopicPartition, int | Submission]:
    for metadata in {entry.metadata for entry in entries}:
        _quick(check_metadata, metadata)
    return {
        _new(TopicPartition, (entry.topic, entry.partition)): _new(
            Submission, (entry.offset, entry.metadata, entry.leader_epoch, entry.rewind)
        )
        for entry in entries
    }


def _spoken(message: SubmitRequest) -> int:
    """Strings of the fields of a submit that may be left out and were not."""
    strings = message.wait + (message.timeout_s != DEFAULT_TIMEOUT_S)
    for entry in message.offsets:
        strings += 2 * bool(entry.metadata) + (entry.leader_epoch is not None) + entry.rewind
    return strings


def _strings(body: bytes) -> int:
    """Strings in a JSON text; below 0 where counting its quotes does not tell."""
    quotes = body.count(b'"')
    if b"\\" in body:
        if b"\\\\" in body:  # what follows it may be a quote of either kind
            return -1
        quotes -= body.count(b'\\"')
    return quotes // 2


def _check_once(body: bytes, said: int, shape: Shape) -> None:
    """Raise InvalidValueError where a key stands twice in an object of ``body``.

    ``said`` is how many strings it has at least, as decoded.
    """
    if _strings(body) != said:
        validation.check(body, shape)


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _Odd(str(error)) from None


def _quick(check: Callable[[object], Any], value: object) -> None:
    try:
        check(value)
    except InvalidValueError as error:
        raise _Odd(str(error)) from None


def _group(group: str) -> str:
    _quick(check_group, group)
    return group


def _topics(topics: set[str]) -> None:
    for topic in topics:
        _quick(check_topic, topic)
