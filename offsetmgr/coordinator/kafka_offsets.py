"""Reading and writing the committed offsets of a group through librdkafka's C interface."""

from __future__ import annotations

import ctypes
from array import array
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.coordinator.librdkafka import (
    ALTER_OFFSETS,
    LIST_OFFSETS,
    PARTITION,
    Answer,
    Handle,
    decoded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from offsetmgr.coordinator.librdkafka import Listener
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_INVALID_OFFSET: Final = -1001
_TIMED_OUT: Final = -185
_TRANSPORT: Final = -195

# Places of a partition's fields in its block of memory, counted in values of their size.
_BYTES: Final = PARTITION.size
_OFFSET_AT: Final = slice(2, None, _BYTES // 8)
_METADATA_AT: Final = 24
_ERROR_AT: Final = slice(12, None, _BYTES // 4)

_new: Final = tuple.__new__
"""Makes a named tuple in half the time; for what is made once for each offset."""


class FetchedPartition(NamedTuple):
    """What the coordinator says of one partition."""

    topic: str
    partition: int
    offset: int
    """Below 0 where nothing is committed."""
    metadata: str
    leader_epoch: int
    """-1 where it is not known."""
    error: int
    """Kafka's code, 0 for none."""


class Fetched(NamedTuple):
    """Answer to one fetch."""

    error: int
    """Code of the request as a whole, 0 for none."""
    text: str
    """librdkafka's words for that error."""
    partitions: Sequence[FetchedPartition]


class RefusedPartition(NamedTuple):
    """A partition that was not committed."""

    topic: str
    partition: int
    error: int
    """Kafka's code."""


class Committed(NamedTuple):
    """Answer to one commit."""

    error: int
    """Code of the request as a whole, 0 for none."""
    text: str
    """librdkafka's words for that error."""
    refused: Sequence[RefusedPartition]


class OffsetFetcher(Handle[Fetched]):
    """A client that fetches committed offsets."""

    def __init__(self, config: Mapping[str, object]) -> None:
        """See ``Handle``; what it has to say is said by the clients beside it."""
        super().__init__(config, LIST_OFFSETS, "kafka-fetches")

    def fetch(
        self,
        group: str,
        partitions: Sequence[tuple[str, int]] | None,
        timeout_s: float,
        answer: Callable[[Fetched], None],
    ) -> None:
        """Ask for what ``group`` has committed (of all partitions where None).

        ``answer`` is called once, in the fetcher's thread.  Raises RuntimeError once closed.
        """
        wanted = None if partitions is None else self.partition_list(partitions)
        self.ask(group, wanted, timeout_s, answer)

    def find_brokers(self, timeout_s: float) -> int:
        """Ask any broker which ones there are, and wait for its answer: 0, or an error's code.

        Who asks this by confluent-kafka's ``describe_cluster`` loses the process where the answer
        is "none", which a broker may give that has not heard of any yet, not even of itself:
        librdkafka (2.16) looks for its own error for that in the answer, where there is none, and
        aborts (``rdkafka_admin.c:960``).
        """
        found = ctypes.c_void_p()
        wait_ms = ceil(timeout_s * 1000)
        # Not of all topics, nor of a single one: of those this client knows, which are none.
        error: int = self.library.metadata(self._handle, 0, None, ctypes.byref(found), wait_ms)
        if not error:
            self.library.metadata_destroy(found)
        # No connection in all that time is no answer in time.
        return _TIMED_OUT if error == _TRANSPORT else error

    def read(self, answer: Answer) -> Fetched:
        """Take the partitions out of librdkafka's memory."""
        return Fetched(answer.error, answer.text, list(self._partitions(answer)))

    def _partitions(self, answer: Answer) -> Iterator[FetchedPartition]:
        names: dict[bytes, str] = {}
        epoch_of = self.library.topic_partition_get_leader_epoch
        at = answer.address
        for topic, number, offset, text, size, _, error, private in _rows(answer):
            raw = ctypes.string_at(topic)
            name = names.get(raw)
            if name is None:
                name = names[raw] = decoded(raw)
            # It may have been committed with the NUL of C's strings.
            metadata = decoded(ctypes.string_at(text, size).removesuffix(b"\0")) if size else ""
            found = offset if offset != _INVALID_OFFSET else -1
            epoch = epoch_of(at) if private else -1
            at += _BYTES
            yield _new(FetchedPartition, (name, number, found, metadata, epoch, error))


class OffsetCommitter(Handle[Committed]):
    """A client that commits offsets, as a simple (memberless) committer."""

    def __init__(self, config: Mapping[str, object], listener: Listener) -> None:
        """See ``Handle``."""
        super().__init__(config, ALTER_OFFSETS, "kafka-commits", listener)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,
        answer: Callable[[Committed], None],
    ) -> None:
        """Commit ``offsets`` in one request.

        ``answer`` is called once, in the committer's thread.  Raises RuntimeError once closed.
        """
        where = sorted(offsets)
        in_order = where == list(offsets)
        wanted = self.partition_list(where)
        values = offsets.values() if in_order else [offsets[each] for each in where]
        try:
            self._fill(wanted, list(values))
        except BaseException:
            self.library.topic_partition_list_destroy(wanted)
            raise
        self.ask(group, wanted, timeout_s, answer)

    def _fill(self, wanted: Any, values: Sequence[OffsetAndMetadata]) -> None:
        address = wanted.contents.elems
        block = (ctypes.c_ubyte * (len(values) * _BYTES)).from_address(address)
        offsets = array("q", [value.offset for value in values])
        memoryview(block).cast("B").cast("q")[_OFFSET_AT] = memoryview(offsets)
        more = [(n, v) for n, v in enumerate(values) if v.metadata or v.leader_epoch is not None]
        for number, (_, metadata, epoch) in more:
            at = address + number * _BYTES
            if metadata:
                # With a NUL, as confluent-kafka's consumers need it: see DESIGN.md.
                self._put_metadata(at + _METADATA_AT, metadata.encode() + b"\0")
            if epoch is not None:
                self.library.topic_partition_set_leader_epoch(at, epoch)

    def _put_metadata(self, at: int, metadata: bytes) -> None:
        text = self.allocate(len(metadata))
        ctypes.memmove(text, metadata, len(metadata))
        ctypes.c_void_p.from_address(at).value = text
        ctypes.c_size_t.from_address(at + ctypes.sizeof(ctypes.c_void_p)).value = len(metadata)

    def read(self, answer: Answer) -> Committed:
        """Take what was refused out of librdkafka's memory."""
        block = _block(answer)
        if not any(memoryview(block).cast("i")[_ERROR_AT]):
            return Committed(answer.error, answer.text, ())
        refused = [
            RefusedPartition(decoded(ctypes.string_at(row[0])), row[1], row[6])
            for row in PARTITION.iter_unpack(block)
            if row[6]
        ]
        return Committed(answer.error, answer.text, refused)


def _block(answer: Answer) -> bytes:
    return ctypes.string_at(answer.address, answer.size * _BYTES) if answer.size else b""


def _rows(answer: Answer) -> Iterator[Any]:
    return PARTITION.iter_unpack(_block(answer))
