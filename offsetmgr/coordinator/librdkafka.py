"""librdkafka's C interface, for what confluent-kafka does not offer or does at too high a price.

confluent-kafka's ``AdminClient.list_consumer_group_offsets`` ends the process with a segmentation
fault when a broker answers NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, as it does whenever a
coordinator moves (librdkafka issue 5040): the handler asks the handle's own consumer group to look
for its coordinator, and the handle of an admin client has none.  A handle made as a *consumer* has
one.  It joins no group as long as it does not subscribe, and every admin request works on it; only
confluent-kafka offers no way to make them there.

Its ``alter_consumer_group_offsets`` works, but makes and checks several objects for each partition.
Here a list of partitions is a block of memory, which is written and read as a whole.

All of it is done on the library that confluent-kafka brings, with the functions of its public
header ``rdkafka.h``.  The requests themselves are in ``kafka_offsets.py``.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from abc import ABC, abstractmethod
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog
from confluent_kafka import cimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PRODUCER: Final = 0
"""``RD_KAFKA_PRODUCER``."""

CONSUMER: Final = 1
"""``RD_KAFKA_CONSUMER``."""

OWN_GROUP: Final = "offsetmgr-reads-only"
"""Group of a consumer's handle; never joined, so no broker ever lists it."""

FAIL: Final = -196
"""``RD_KAFKA_RESP_ERR__FAIL``."""

PARTITION: Final = struct.Struct("@PiqPNPiP")
"""``rd_kafka_topic_partition_t``: topic, partition, offset, metadata, its size, opaque, error and
what is private (0 where there is none, and then no leader epoch)."""

LONGEST_S: Final = 3_600
"""The longest time-out of a request that librdkafka takes."""

_ERROR_CHARS: Final = 512
_POLL_MS: Final = 200
_LOG_EVENT: Final = 0x4
_ERROR_EVENT: Final = 0x8

log = structlog.get_logger("offsetmgr.coordinator.kafka")


class Operation(NamedTuple):
    """An admin request about the offsets of one group."""

    number: int
    """``rd_kafka_admin_op_t``."""
    name: str
    """As its functions are called."""
    kind: int
    """Of client that it is asked by."""


LIST_OFFSETS: Final = Operation(14, "ListConsumerGroupOffsets", CONSUMER)
ALTER_OFFSETS: Final = Operation(15, "AlterConsumerGroupOffsets", PRODUCER)


class Answer(NamedTuple):
    """What came of one request."""

    error: int
    """Code of the request as a whole, 0 for none."""
    text: str
    """librdkafka's words for that error."""
    address: int = 0
    """Of the list of partitions, while the answer is read."""
    size: int = 0


class Listener(Protocol):
    """Who hears what a handle has to say beside its answers; called in the handle's thread."""

    def failed(self, code: int, text: str) -> None:
        """A connection failed."""

    def logged(self, level: int, kind: str, text: str) -> None:
        """Take a line of librdkafka's log; ``level`` as in syslog."""


class _PartitionList(ctypes.Structure):
    """``rd_kafka_topic_partition_list_t``."""

    _fields_ = (("cnt", ctypes.c_int), ("size", ctypes.c_int), ("elems", ctypes.c_void_p))


_POINTER: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p
_INT: Final = ctypes.c_int
_SIZE: Final = ctypes.c_size_t
_POINTERS: Final = _POINTER * 1
_LIST: Final = ctypes.POINTER(_PartitionList)
_TEXTS: Final = ctypes.POINTER(_TEXT)

_SIGNATURES: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_POINTER, ()),
    "conf_destroy": (None, (_POINTER,)),
    "conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_set_events": (None, (_POINTER, _INT)),
    "conf_set_log_cb": (None, (_POINTER, _POINTER)),
    "new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "destroy_flags": (None, (_POINTER, _INT)),
    "set_log_queue": (_INT, (_POINTER, _POINTER)),
    "queue_new": (_POINTER, (_POINTER,)),
    "queue_get_main": (_POINTER, (_POINTER,)),
    "queue_forward": (None, (_POINTER, _POINTER)),
    "queue_destroy": (None, (_POINTER,)),
    "queue_poll": (_POINTER, (_POINTER, _INT)),
    "queue_yield": (None, (_POINTER,)),
    "event_type": (_INT, (_POINTER,)),
    "event_destroy": (None, (_POINTER,)),
    "event_error": (_INT, (_POINTER,)),
    "event_error_string": (_TEXT, (_POINTER,)),
    "event_log": (_INT, (_POINTER, _TEXTS, _TEXTS, ctypes.POINTER(_INT))),
    "event_opaque": (_POINTER, (_POINTER,)),
    "metadata": (_INT, (_POINTER, _INT, _POINTER, ctypes.POINTER(_POINTER), _INT)),
    "metadata_destroy": (None, (_POINTER,)),
    "mem_malloc": (_POINTER, (_POINTER, _SIZE)),
    "AdminOptions_new": (_POINTER, (_POINTER, _INT)),
    "AdminOptions_destroy": (None, (_POINTER,)),
    "AdminOptions_set_opaque": (None, (_POINTER, _POINTER)),
    "AdminOptions_set_request_timeout": (_INT, (_POINTER, _INT, _TEXT, _SIZE)),
    "AdminOptions_set_require_stable_offsets": (_POINTER, (_POINTER, _INT)),
    "topic_partition_list_new": (_LIST, (_INT,)),
    "topic_partition_list_add": (_POINTER, (_LIST, _TEXT, _INT)),
    "topic_partition_list_add_range": (None, (_LIST, _TEXT, _INT, _INT)),
    "topic_partition_list_destroy": (None, (_LIST,)),
    "topic_partition_get_leader_epoch": (ctypes.c_int32, (_POINTER,)),
    "topic_partition_set_leader_epoch": (None, (_POINTER, ctypes.c_int32)),
    "group_result_error": (_POINTER, (_POINTER,)),
    "group_result_partitions": (_LIST, (_POINTER,)),
    "error_code": (_INT, (_POINTER,)),
    "error_string": (_TEXT, (_POINTER,)),
    "error_destroy": (None, (_POINTER,)),
    **{
        name: signature
        for operation in (LIST_OFFSETS, ALTER_OFFSETS)
        for name, signature in {
            f"{operation.name}_new": (_POINTER, (_TEXT, _LIST)),
            f"{operation.name}_destroy": (None, (_POINTER,)),
            operation.name: (
                None,
                (_POINTER, ctypes.POINTER(_POINTER), _SIZE, _POINTER, _POINTER),
            ),
            f"event_{operation.name}_result": (_POINTER, (_POINTER,)),
            f"{operation.name}_result_groups": (
                ctypes.POINTER(_POINTER),
                (_POINTER, ctypes.POINTER(_SIZE)),
            ),
        }.items()
    },
}


_WAITING: Final = frozenset({"destroy_flags", "metadata", "new", "queue_poll"})
"""Functions that wait.  The others keep the interpreter's lock: to give it away and queue up for it
again, among the threads of all clients, takes far longer than such a call."""

_NOW: Final = "queue_poll_now"
"""``queue_poll`` for who does not wait, and so keeps the lock too."""


class Library:
    """The librdkafka that confluent-kafka is linked with, whichever that is: ``rd_kafka_*``."""

    def __init__(self) -> None:
        waiting, quick = ctypes.CDLL(cimpl.__file__), ctypes.PyDLL(cimpl.__file__)
        for name in (*_SIGNATURES, _NOW):
            library = waiting if name in _WAITING else quick
            called = name.removesuffix("_now")
            # Each is an object of its own, of the same function.
            function = library[f"rd_kafka_{called}"]
            function.restype, function.argtypes = _SIGNATURES[called]
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not among the functions of librdkafka that are used here")


_T = TypeVar("_T")
_E = TypeVar("_E")


class Handle(ABC, Generic[_T]):
    """A client of librdkafka's with a thread that hands out its answers; thread-safe."""

    def __init__(
        self,
        config: Mapping[str, object],
        operation: Operation,
        name: str,
        listener: Listener | None = None,
    ) -> None:
        """``config`` as for confluent-kafka, plain values only (callbacks are left out).

        Without ``listener`` it is silent.  Raises ValueError where librdkafka does not take a
        setting, and RuntimeError where no thread is to be had.
        """
        self.library = Library()
        self._listener = listener
        self._lock = threading.Lock()
        self._open: dict[int, Callable[[_T], None]] = {}
        self._next = 1
        self._closed = False
        self._operation = operation
        self._make = getattr(self.library, f"{operation.name}_new")
        self._send = getattr(self.library, operation.name)
        self._destroy = getattr(self.library, f"{operation.name}_destroy")
        self._result_of = getattr(self.library, f"event_{operation.name}_result")
        self._groups_of = getattr(self.library, f"{operation.name}_result_groups")
        self._handle = self._new_handle(config, operation.kind)
        self._queue = self._new_queue()
        self._kept_options = self._new_options()
        self._timeout_ms = 0
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # its own thread would have ended librdkafka's
            self._end()
            raise

    def close(self, timeout_s: float) -> None:
        """Take no more; what is open is answered as failed.  Returns by ``timeout_s``."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.library.queue_yield(self._queue)
        self._thread.join(timeout_s)

    @abstractmethod
    def read(self, answer: Answer) -> _T:
        """Make of ``answer`` what is handed out."""

    def ask(
        self,
        group: str,
        wanted: Any,
        timeout_s: float,
        answer: Callable[[_T], None],
    ) -> None:
        """Send a request about ``wanted``, a partition list that is destroyed here, or None.

        ``answer`` is called once, in the handle's thread.  Raises RuntimeError once closed, and
        where librdkafka does not take the time-out.
        """
        library = self.library
        try:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the client is closed")
                number = self._next
                self._next += 1
                options = self._options(timeout_s, number)
                request = self._make(group.encode(), wanted)
                self._open[number] = answer
                self._send(self._handle, _POINTERS(request), 1, options, self._queue)
                self._destroy(request)
        finally:
            if wanted is not None:
                library.topic_partition_list_destroy(wanted)

    def partition_list(self, partitions: Sequence[tuple[str, int]]) -> Any:
        """A partition list of librdkafka's, in this order."""
        library = self.library
        made = library.topic_partition_list_new(len(partitions))
        topics, numbers = zip(*partitions, strict=True)
        first = numbers[0]
        in_a_row = numbers == tuple(range(first, first + len(numbers)))
        if in_a_row and topics.count(topics[0]) == len(topics):
            library.topic_partition_list_add_range(made, topics[0].encode(), first, numbers[-1])
        else:
            for topic, number in partitions:
                library.topic_partition_list_add(made, topic.encode(), number)
        return made

    def allocate(self, size: int) -> int:
        """Memory that librdkafka frees with what it is made part of."""
        return int(self.library.mem_malloc(self._handle, size))

    def _new_handle(self, config: Mapping[str, object], kind: int) -> int:
        library = self.library
        conf = library.conf_new()
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        own = {"group.id": OWN_GROUP} if kind == CONSUMER else {}
        if self._listener is None:
            library.conf_set_log_cb(conf, None)
        else:
            own["log.queue"] = "true"
            library.conf_set_events(conf, _LOG_EVENT | _ERROR_EVENT)
        for name, value in {**config, **own}.items():
            if callable(value):
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if library.conf_set(conf, name.encode(), text.encode(), error, _ERROR_CHARS):
                library.conf_destroy(conf)
                raise ValueError(error.value.decode(errors="replace"))
        handle: int | None = library.new(kind, conf, error, _ERROR_CHARS)
        if not handle:
            library.conf_destroy(conf)
            raise ValueError(error.value.decode(errors="replace"))
        return handle

    def _new_queue(self) -> int:
        library = self.library
        queue: int = library.queue_new(self._handle)
        if self._listener is not None:
            main = library.queue_get_main(self._handle)
            library.queue_forward(main, queue)
            library.queue_destroy(main)
            library.set_log_queue(self._handle, queue)
        return queue

    def _options(self, timeout_s: float, number: int) -> int:
        """Options of a request, which librdkafka copies with it; with the lock held."""
        library, options = self.library, self._kept_options
        milliseconds = ceil(min(timeout_s, LONGEST_S)) * 1000
        if milliseconds != self._timeout_ms:
            error = ctypes.create_string_buffer(_ERROR_CHARS)
            set_timeout = library.AdminOptions_set_request_timeout
            if set_timeout(options, milliseconds, error, _ERROR_CHARS):
                # It would take a short one of its own, and run out: see ``kafka_lane``.
                raise RuntimeError(f"librdkafka refuses the time-out: {decoded(error.value)}")
            self._timeout_ms = milliseconds
        library.AdminOptions_set_opaque(options, number)
        return options

    def _new_options(self) -> int:
        library = self.library
        options: int = library.AdminOptions_new(self._handle, self._operation.number)
        if self._operation is LIST_OFFSETS:
            refused = library.AdminOptions_set_require_stable_offsets(options, 1)
            if refused:
                library.error_destroy(refused)
        return options

    def _serve(self) -> None:
        """Hand out answers until closed, then end the handle: in this thread, which may block."""
        library = self.library
        while not self._closed:
            event = library.queue_poll(self._queue, _POLL_MS)
            while event:
                _costing_no_other(self._hear, event)
                library.event_destroy(event)
                # What came meanwhile is heard in the same turn: the next may be long in coming.
                event = library.queue_poll_now(self._queue, 0)
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for answer in left:
            _costing_no_other(answer, self.read(Answer(FAIL, "the service is shutting down")))
        self._end()

    def _end(self) -> None:
        library = self.library
        library.AdminOptions_destroy(self._kept_options)
        library.queue_destroy(self._queue)
        library.destroy_flags(self._handle, 0x8)  # RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE

    def _hear(self, event: int) -> None:
        library, listener = self.library, self._listener
        kind = library.event_type(event)
        if kind == _LOG_EVENT and listener is not None:
            facility, line, level = _TEXT(), _TEXT(), _INT()
            pointers = ctypes.byref(facility), ctypes.byref(line), ctypes.byref(level)
            if not library.event_log(event, *pointers):
                listener.logged(level.value, decoded(facility.value), decoded(line.value))
        elif kind == _ERROR_EVENT and listener is not None:
            text = decoded(library.event_error_string(event))
            listener.failed(library.event_error(event), text)
        else:
            with self._lock:
                answer = self._open.pop(library.event_opaque(event) or 0, None)
            if answer is not None:
                answer(self._read(event))

    def _read(self, event: int) -> _T:
        """What an event answers; what cannot be read has failed, and nobody waits for it."""
        try:
            return self.read(self._answer(event))
        except Exception as error:
            log.exception("kafka_answer_unreadable")
            return self.read(Answer(FAIL, f"the answer cannot be read: {error!r}"))

    def _answer(self, event: int) -> Answer:
        library = self.library
        code = library.event_error(event)
        if code:
            return Answer(code, decoded(library.event_error_string(event)))
        result = self._result_of(event)
        if not result:
            return Answer(FAIL, "librdkafka answered something else")
        count = _SIZE()
        return self._group_answer(self._groups_of(result, ctypes.byref(count))[0])

    def _group_answer(self, group: int) -> Answer:
        library = self.library
        error = library.group_result_error(group)
        if error:
            return Answer(library.error_code(error), decoded(library.error_string(error)))
        found = library.group_result_partitions(group).contents
        return Answer(0, "", found.elems or 0, found.cnt)


def _costing_no_other(hear: Callable[[_E], None], event: _E) -> None:
    """Log what goes wrong with one event: the thread goes on with all others."""
    try:
        hear(event)
    except Exception:
        log.exception("kafka_event_failed")


def decoded(text: bytes | None) -> str:
    """Text of librdkafka's."""
    return (text or b"").decode(errors="replace")
