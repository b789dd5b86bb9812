"""A member of one consumer group, by librdkafka's C interface.

Not by ``confluent_kafka.Consumer``: that one ends the metadata of a commit with a NUL byte on the
wire, gives the deadline of a commit to librdkafka, and takes a partition that Kafka's answer leaves
out for committed.  The member subscribes like any consumer, is assigned partitions as the only
member, and fetches nothing of them: it commits, and librdkafka sends its heartbeats.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from offsetmgr.coordinator.librdkafka import (
    CONSUMER,
    ERROR_EVENT,
    LOG_EVENT,
    NOT_NAMED,
    Library,
    decoded,
)
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.coordinator.librdkafka import Listener
    from offsetmgr.types import OffsetAndMetadata

INSTANCE: Final = "offsetmgr"
"""``group.instance.id`` of every service: a group has one member of that name, the newest."""

_REBALANCE_EVENT: Final = 0x10
_COMMIT_EVENT: Final = 0x20
_ASSIGN: Final = -175
_ALL_PARTITIONS: Final = -1
_NO_CONSUMER_CLOSE: Final = 0x8
_LEAVE_POLL_S: Final = 0.1
_LEAVE_POLLS: Final = 50


class MemberEvent(NamedTuple):
    """A change of a membership."""

    kind: Literal["assigned", "revoked", "lost", "failed"]
    """``assigned``: in the group; ``revoked``: others have joined; ``lost``: the coordinator
    dropped the member; ``failed``: the coordinator, or a connection to it, failed."""
    code: int = 0
    text: str = ""


class Member:
    """A member, used by one thread alone, which calls nothing after ``end``."""

    def __init__(self, config: Mapping[str, object], listener: Listener) -> None:
        """``listener`` hears the log.  Raises ValueError where a setting is refused."""
        library = self._library = Library()
        self._listener = listener
        events = LOG_EVENT | ERROR_EVENT | _REBALANCE_EVENT | _COMMIT_EVENT
        self._handle = library.open_client(config, CONSUMER, events)
        self._answers = library.queue_new(self._handle)
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

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> dict[TopicPartition, int] | None:
        """Commit in one request; returns the code of each partition, None without an answer.

        After None the member must be ended: what it sent may land until then.
        """
        library = self._library
        sent = library.offset_list(self._handle, offsets)
        library.commit_queue(self._handle, sent, self._answers, None, None)
        library.topic_partition_list_destroy(sent)
        event = library.queue_poll(self._answers, int(timeout_s * 1000))
        if not event:
            return None
        try:
            code = library.event_error(event)
            found = library.read_list(library.event_topic_partition_list(event))
            # A request that failed as a whole has no codes of its partitions.
            whole = code or NOT_NAMED
            codes = {TopicPartition(p.topic, p.partition): p.error for p in found}
            return {p: whole if codes.get(p, NOT_NAMED) == NOT_NAMED else codes[p] for p in offsets}
        finally:
            library.event_destroy(event)

    def poll(self, timeout_s: float) -> MemberEvent | None:
        """Return what happens next; None if it is nothing for ``timeout_s``."""
        while event := self._library.queue_poll(self._queue, int(timeout_s * 1000)):
            try:
                found = self._read(event)
            finally:
                self._library.event_destroy(event)
            if found is not None:
                return found
        return None

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
            event = self.poll(_LEAVE_POLL_S)
            if event is not None and event.kind in {"revoked", "lost"}:
                library.assign(self._handle, None)

    def end(self) -> None:
        """Drop the client; what it has not sent yet is never sent."""
        self._library.queue_destroy(self._answers)
        self._library.queue_destroy(self._queue)
        self._library.destroy_flags(self._handle, _NO_CONSUMER_CLOSE)

    def _read(self, event: int) -> MemberEvent | None:
        library = self._library
        kind, code = library.event_type(event), library.event_error(event)
        if kind == _REBALANCE_EVENT and code == _ASSIGN:
            nothing = library.topic_partition_list_new(0)
            library.assign(self._handle, nothing)
            library.topic_partition_list_destroy(nothing)
            return MemberEvent("assigned")
        if kind == _REBALANCE_EVENT:
            return MemberEvent("lost" if library.assignment_lost(self._handle) else "revoked")
        library.pass_on(event, self._listener)
        if kind == ERROR_EVENT:
            return MemberEvent("failed", code, decoded(library.event_error_string(event)))
        return None
