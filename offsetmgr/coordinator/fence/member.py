"""A member of one consumer group, by librdkafka's C interface.

Not by ``confluent_kafka.Consumer``: it ends the metadata of a commit with a NUL byte on the wire,
and its handle is not public.  The member subscribes like any consumer, is assigned partitions
as the only member, and fetches nothing of them: it commits, and librdkafka sends its heartbeats.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.coordinator.librdkafka import (
    CONSUMER,
    ERROR_EVENT,
    LOG_EVENT,
    NOT_NAMED,
    Library,
    decoded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.coordinator.librdkafka import Listener
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

INSTANCE: Final = "offsetmgr"
"""``group.instance.id`` of every service: a group has one member of that name, the newest."""

_REBALANCE_EVENT: Final = 0x10
_COMMIT_EVENT: Final = 0x20
_ASSIGN: Final = -175
_ALL_PARTITIONS: Final = -1
_NO_CONSUMER_CLOSE: Final = 0x8
_LEAVE_POLL_S: Final = 0.1
_LEAVE_POLLS: Final = 50


class Assigned(NamedTuple):
    """The member is in the group."""


class Revoked(NamedTuple):
    """It is not any more."""

    lost: bool
    """True if the coordinator had dropped it; else others joined, or a topic has changed."""


class Refused(NamedTuple):
    """The coordinator, or a connection to it, failed."""

    code: int
    text: str


class Committed(NamedTuple):
    """The answer to a commit."""

    number: int
    codes: Mapping[tuple[str, int], int]
    """Kafka's or librdkafka's error of each partition, 0 for none."""


class Member:
    """Its events are taken by one thread; ``commit`` and ``wake`` may be called by any other.

    Nobody calls anything after ``end``.
    """

    def __init__(self, config: Mapping[str, object], listener: Listener) -> None:
        """``listener`` hears the log.  Raises ValueError where a setting is refused."""
        library = self._library = Library()
        self._listener = listener
        events = LOG_EVENT | ERROR_EVENT | _REBALANCE_EVENT | _COMMIT_EVENT
        self._handle = library.open_client(config, CONSUMER, events)
        self._queue = library.queue_get_consumer(self._handle)
        main = library.queue_get_main(self._handle)
        library.queue_forward(main, self._queue)
        library.queue_destroy(main)
        library.set_log_queue(self._handle, self._queue)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group, by and by."""
        wanted = self._library.partition_list((topic, _ALL_PARTITIONS) for topic in topics)
        self._library.subscribe(self._handle, wanted)
        self._library.topic_partition_list_destroy(wanted)

    @property
    def id(self) -> str:
        """The id that the coordinator gave it; no other member ever has the same."""
        found = self._library.memberid(self._handle)
        text = decoded(ctypes.string_at(found)) if found else ""
        self._library.mem_free(self._handle, found)
        return text

    def commit(self, number: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Send ``offsets`` in one request; the answer has the same ``number``."""
        library = self._library
        sent = library.offset_list(self._handle, offsets)
        library.commit_queue(self._handle, sent, self._queue, None, number)
        library.topic_partition_list_destroy(sent)

    def wake(self) -> None:
        """Let ``next_event`` return."""
        self._library.queue_yield(self._queue)

    def next_event(self, timeout_s: float) -> Assigned | Revoked | Refused | Committed | None:
        """Wait for what happens next; None after ``timeout_s``, a ``wake`` or a line of the log."""
        event = self._library.queue_poll(self._queue, int(timeout_s * 1000))
        if not event:
            return None
        try:
            return self._read(event)
        finally:
            self._library.event_destroy(event)

    def leave(self) -> None:
        """Leave the group, so that it is free at once; return when Kafka knows, or is too slow."""
        library = self._library
        # A static member leaves by unsubscribing; closing alone would keep its place.
        library.unsubscribe(self._handle)
        library.assign(self._handle, None)
        library.consumer_close_queue(self._handle, self._queue)
        for _ in range(_LEAVE_POLLS):
            if library.consumer_closed(self._handle):
                return
            if isinstance(self.next_event(_LEAVE_POLL_S), Revoked):
                library.assign(self._handle, None)

    def end(self) -> None:
        """Drop the client; what it has not sent yet is never sent."""
        self._library.queue_destroy(self._queue)
        self._library.destroy_flags(self._handle, _NO_CONSUMER_CLOSE)

    def _read(self, event: int) -> Assigned | Revoked | Refused | Committed | None:
        library = self._library
        kind, code = library.event_type(event), library.event_error(event)
        if kind == _REBALANCE_EVENT and code == _ASSIGN:
            nothing = library.topic_partition_list_new(0)
            library.assign(self._handle, nothing)
            library.topic_partition_list_destroy(nothing)
            return Assigned()
        if kind == _REBALANCE_EVENT:
            return Revoked(bool(library.assignment_lost(self._handle)))
        if kind == _COMMIT_EVENT:
            return Committed(library.event_opaque(event) or 0, self._codes(event, code))
        library.pass_on(event, self._listener)
        if kind == ERROR_EVENT:
            return Refused(code, decoded(library.event_error_string(event)))
        return None

    def _codes(self, event: int, code: int) -> dict[tuple[str, int], int]:
        found = self._library.read_list(self._library.event_topic_partition_list(event))
        # A request that failed as a whole has no codes of its partitions.
        whole = code or NOT_NAMED
        return {(p.topic, p.partition): whole if p.error == NOT_NAMED else p.error for p in found}
