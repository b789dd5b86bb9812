"""Fetching committed offsets through librdkafka's C interface.

confluent-kafka's ``AdminClient.list_consumer_group_offsets`` ends the process with a segmentation
fault when a broker answers NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, as it does whenever a
coordinator moves (librdkafka issue 5040): the handler asks the handle's own consumer group to look
for its coordinator, and the handle of an admin client has none.  A handle made as a *consumer* has
one.  It joins no group as long as it does not subscribe, and every admin request works on it; only
confluent-kafka offers no way to make them there.  So this module does, on the same library, with
the functions of its public header ``rdkafka.h``.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import cimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONSUMER: Final = 1
"""``RD_KAFKA_CONSUMER``."""

LIST_CONSUMER_GROUP_OFFSETS: Final = 14
"""``RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS``."""

OWN_GROUP: Final = "offsetmgr-reads-only"
"""Group of the handle; never joined, so no broker ever lists it."""

_ERROR_CHARS: Final = 512
_POLL_MS: Final = 200
_INVALID_OFFSET: Final = -1001
_FAIL: Final = -196
"""``RD_KAFKA_RESP_ERR__FAIL``."""


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


class _Partition(ctypes.Structure):
    """``rd_kafka_topic_partition_t``."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _PartitionList(ctypes.Structure):
    """``rd_kafka_topic_partition_list_t``."""

    _fields_ = (
        ("cnt", ctypes.c_int),
        ("size", ctypes.c_int),
        ("elems", ctypes.POINTER(_Partition)),
    )


_POINTER: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p
_INT: Final = ctypes.c_int
_SIZE: Final = ctypes.c_size_t
_LIST: Final = ctypes.POINTER(_PartitionList)

_SIGNATURES: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_conf_new": (_POINTER, ()),
    "rd_kafka_conf_destroy": (None, (_POINTER,)),
    "rd_kafka_conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "rd_kafka_conf_set_log_cb": (None, (_POINTER, _POINTER)),
    "rd_kafka_new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "rd_kafka_destroy_flags": (None, (_POINTER, _INT)),
    "rd_kafka_queue_new": (_POINTER, (_POINTER,)),
    "rd_kafka_queue_destroy": (None, (_POINTER,)),
    "rd_kafka_queue_poll": (_POINTER, (_POINTER, _INT)),
    "rd_kafka_event_destroy": (None, (_POINTER,)),
    "rd_kafka_event_error": (_INT, (_POINTER,)),
    "rd_kafka_event_error_string": (_TEXT, (_POINTER,)),
    "rd_kafka_event_opaque": (_POINTER, (_POINTER,)),
    "rd_kafka_AdminOptions_new": (_POINTER, (_POINTER, _INT)),
    "rd_kafka_AdminOptions_destroy": (None, (_POINTER,)),
    "rd_kafka_AdminOptions_set_opaque": (None, (_POINTER, _POINTER)),
    "rd_kafka_AdminOptions_set_request_timeout": (_INT, (_POINTER, _INT, _TEXT, _SIZE)),
    "rd_kafka_AdminOptions_set_require_stable_offsets": (_POINTER, (_POINTER, _INT)),
    "rd_kafka_topic_partition_list_new": (_LIST, (_INT,)),
    "rd_kafka_topic_partition_list_add": (ctypes.POINTER(_Partition), (_LIST, _TEXT, _INT)),
    "rd_kafka_topic_partition_list_destroy": (None, (_LIST,)),
    "rd_kafka_topic_partition_get_leader_epoch": (ctypes.c_int32, (ctypes.POINTER(_Partition),)),
    "rd_kafka_ListConsumerGroupOffsets_new": (_POINTER, (_TEXT, _LIST)),
    "rd_kafka_ListConsumerGroupOffsets_destroy": (None, (_POINTER,)),
    "rd_kafka_ListConsumerGroupOffsets": (
        None,
        (_POINTER, ctypes.POINTER(_POINTER), _SIZE, _POINTER, _POINTER),
    ),
    "rd_kafka_event_ListConsumerGroupOffsets_result": (_POINTER, (_POINTER,)),
    "rd_kafka_ListConsumerGroupOffsets_result_groups": (
        ctypes.POINTER(_POINTER),
        (_POINTER, ctypes.POINTER(_SIZE)),
    ),
    "rd_kafka_group_result_error": (_POINTER, (_POINTER,)),
    "rd_kafka_group_result_partitions": (_LIST, (_POINTER,)),
    "rd_kafka_error_code": (_INT, (_POINTER,)),
    "rd_kafka_error_string": (_TEXT, (_POINTER,)),
    "rd_kafka_error_destroy": (None, (_POINTER,)),
}


def _library() -> ctypes.CDLL:
    """The librdkafka that confluent-kafka is linked with, whichever that is."""
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class OffsetFetcher:
    """One connection pool of librdkafka for fetches of committed offsets; thread-safe."""

    def __init__(self, config: Mapping[str, object]) -> None:
        """``config`` as for confluent-kafka, plain values only (callbacks are left out).

        Raises ValueError where librdkafka does not take a setting.
        """
        self._library = _library()
        self._lock = threading.Lock()
        self._open: dict[int, Callable[[Fetched], None]] = {}
        self._next = 1
        self._closed = False
        self._handle = self._new_handle(config)
        self._queue = self._library.rd_kafka_queue_new(self._handle)
        self._thread = threading.Thread(target=self._serve, name="kafka-fetches", daemon=True)
        self._thread.start()

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
        library = self._library
        with self._lock:
            if self._closed:
                raise RuntimeError("the fetcher is closed")
            number = self._next
            self._next += 1
            self._open[number] = answer
            options = self._options(timeout_s, number)
            wanted = self._partition_list(partitions)
            request = library.rd_kafka_ListConsumerGroupOffsets_new(group.encode(), wanted)
            requests = (_POINTER * 1)(request)
            library.rd_kafka_ListConsumerGroupOffsets(
                self._handle, requests, 1, options, self._queue
            )
            library.rd_kafka_ListConsumerGroupOffsets_destroy(request)
            if wanted is not None:
                library.rd_kafka_topic_partition_list_destroy(wanted)
            library.rd_kafka_AdminOptions_destroy(options)

    def close(self, timeout_s: float) -> None:
        """Take no more; what is open is answered as failed.  Returns by ``timeout_s``."""
        with self._lock:
            self._closed = True
        self._thread.join(timeout_s)

    def _new_handle(self, config: Mapping[str, object]) -> int:
        library = self._library
        conf = library.rd_kafka_conf_new()
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        for name, value in {**config, "group.id": OWN_GROUP}.items():
            if callable(value):
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if library.rd_kafka_conf_set(conf, name.encode(), text.encode(), error, _ERROR_CHARS):
                library.rd_kafka_conf_destroy(conf)
                raise ValueError(error.value.decode(errors="replace"))
        # What it has to say is said by the admin clients beside it.
        library.rd_kafka_conf_set_log_cb(conf, None)
        handle: int | None = library.rd_kafka_new(CONSUMER, conf, error, _ERROR_CHARS)
        if not handle:
            library.rd_kafka_conf_destroy(conf)
            raise ValueError(error.value.decode(errors="replace"))
        return handle

    def _options(self, timeout_s: float, number: int) -> int:
        library = self._library
        options: int = library.rd_kafka_AdminOptions_new(self._handle, LIST_CONSUMER_GROUP_OFFSETS)
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        milliseconds = max(1, int(timeout_s * 1000))
        library.rd_kafka_AdminOptions_set_request_timeout(
            options, milliseconds, error, _ERROR_CHARS
        )
        refused = library.rd_kafka_AdminOptions_set_require_stable_offsets(options, 1)
        if refused:
            library.rd_kafka_error_destroy(refused)
        library.rd_kafka_AdminOptions_set_opaque(options, number)
        return options

    def _partition_list(self, partitions: Sequence[tuple[str, int]] | None) -> Any:
        if partitions is None:
            return None
        wanted = self._library.rd_kafka_topic_partition_list_new(len(partitions))
        add = self._library.rd_kafka_topic_partition_list_add
        for topic, partition in partitions:
            add(wanted, topic.encode(), partition)
        return wanted

    def _serve(self) -> None:
        """Hand out answers until closed, then end the handle: in this thread, which may block."""
        library = self._library
        while not self._closed:
            event = library.rd_kafka_queue_poll(self._queue, _POLL_MS)
            if event:
                self._answer(event)
                library.rd_kafka_event_destroy(event)
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for answer in left:
            answer(Fetched(_FAIL, "the service is shutting down", ()))
        library.rd_kafka_queue_destroy(self._queue)
        library.rd_kafka_destroy_flags(self._handle, 0x8)  # RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE

    def _answer(self, event: int) -> None:
        with self._lock:
            answer = self._open.pop(self._library.rd_kafka_event_opaque(event) or 0, None)
        if answer is not None:
            answer(self._read(event))

    def _read(self, event: int) -> Fetched:
        library = self._library
        code = library.rd_kafka_event_error(event)
        if code:
            return Fetched(code, _decode(library.rd_kafka_event_error_string(event)), ())
        result = library.rd_kafka_event_ListConsumerGroupOffsets_result(event)
        if not result:
            return Fetched(_FAIL, "librdkafka answered something else", ())
        count = _SIZE()
        groups = library.rd_kafka_ListConsumerGroupOffsets_result_groups(
            result, ctypes.byref(count)
        )
        error = library.rd_kafka_group_result_error(groups[0])
        if error:
            text = _decode(library.rd_kafka_error_string(error))
            return Fetched(library.rd_kafka_error_code(error), text, ())
        found = library.rd_kafka_group_result_partitions(groups[0]).contents
        return Fetched(0, "", [self._partition(found.elems[i]) for i in range(found.cnt)])

    def _partition(self, each: _Partition) -> FetchedPartition:
        metadata = ctypes.string_at(each.metadata, each.metadata_size) if each.metadata else b""
        # librdkafka writes its metadata with the NUL of C's strings.
        metadata = metadata.removesuffix(b"\0")
        epoch = self._library.rd_kafka_topic_partition_get_leader_epoch(ctypes.byref(each))
        offset = each.offset if each.offset != _INVALID_OFFSET else -1
        return FetchedPartition(
            _decode(each.topic), each.partition, offset, _decode(metadata), epoch, each.err
        )


def _decode(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")
