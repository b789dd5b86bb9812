"""librdkafka by ctypes: the one module that calls its C functions, and its only reason to exist.

Two faults of confluent-kafka keep it here.  It can go, for ``confluent_kafka`` alone, once both are
mended upstream:

1. ``AdminClient.list_consumer_group_offsets`` ends the process with a segmentation fault when a
   broker answers NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, as it does whenever a coordinator
   moves (librdkafka issue 5040): the handler asks the handle's own consumer group to look for its
   coordinator, and the handle of an admin client has none.  A handle of a *consumer* has one.  It
   joins no group as long as it does not subscribe, and every admin request works on it; only
   confluent-kafka offers no way to make them there.
2. ``Consumer.commit`` cannot be used by a member that must know what was committed: it ends the
   metadata of a commit with a NUL byte on the wire, passes the deadline of a commit to librdkafka,
   and takes a partition that Kafka's answer leaves out as committed.

The functions are those of the public header ``rdkafka.h``, of the library inside confluent-kafka.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from concurrent.futures import Future as Pending
from functools import partial
from math import ceil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from confluent_kafka import cimpl

from offsetmgr.answers import CommitResult, Failure, FetchResult
from offsetmgr.codes import error_info
from offsetmgr.errors import ManagerStoppedError
from offsetmgr.kafka.clients import CLOSE_S, CLOSED
from offsetmgr.kafka.config import OWN_GROUP, refused_config
from offsetmgr.kafka.errors import failure_of
from offsetmgr.logs import SafeLogger
from offsetmgr.text import visible
from offsetmgr.types import OffsetAndMetadata, TopicPartition, new_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from offsetmgr.kafka.reports import ConnectionReports

PRODUCER: Final = 0
"""``RD_KAFKA_PRODUCER``."""

CONSUMER: Final = 1
"""``RD_KAFKA_CONSUMER``."""

FAIL: Final = -196
"""``RD_KAFKA_RESP_ERR__FAIL``."""

NOT_NAMED: Final = -155
"""``RD_KAFKA_RESP_ERR__UNDERFLOW``: of a partition that the coordinator's answer leaves out."""

_LOG_EVENT: Final = 0x4
_ERROR_EVENT: Final = 0x8
_REBALANCE_EVENT: Final = 0x10
_COMMIT_EVENT: Final = 0x20
_TOKEN_EVENT: Final = 0x100
_ASSIGN: Final = -175
_ALL_PARTITIONS: Final = -1
_NO_CONSUMER_CLOSE: Final = 0x8
_ERROR_CHARS: Final = 512
_POLL_MS: Final = 1000
_LEAVE_POLL_S: Final = 0.1
_LEAVE_POLLS: Final = 50

Operation: TypeAlias = Literal[
    "ListConsumerGroupOffsets", "AlterConsumerGroupOffsets", "DeleteConsumerGroupOffsets"
]
"""An admin request about the offsets of one group, as its functions are called."""

_FETCH: Final = "ListConsumerGroupOffsets"

_NUMBERS: Final[Mapping[Operation, int]] = {
    "DeleteConsumerGroupOffsets": 8,
    "ListConsumerGroupOffsets": 14,
    "AlterConsumerGroupOffsets": 15,
}
"""``rd_kafka_admin_op_t``."""

_DESCRIBE_TOPICS: Final = 19
"""The same of a description of topics."""

_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""A topic's id from a broker before 2.8."""

log = SafeLogger("offsetmgr.kafka")


_T = TypeVar("_T")

PartitionAnswer: TypeAlias = tuple[TopicPartition, OffsetAndMetadata | None, int]
"""The coordinator's answer for one partition: its offset, None where nothing is committed, and
Kafka's code: 0 for none, ``NOT_NAMED`` where the answer leaves the partition out."""


class _Partition(ctypes.Structure):
    """``rd_kafka_topic_partition_t``."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _PartitionList(ctypes.Structure):
    """``rd_kafka_topic_partition_list_t``."""

    _fields_ = (
        ("cnt", ctypes.c_int),
        ("size", ctypes.c_int),
        ("elems", ctypes.POINTER(_Partition)),
    )


_READ: Final = ("partition", "offset", "metadata", "metadata_size", "private", "error")
"""Fields of an answer, behind the topic."""

_POINTER: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p
_INT: Final = ctypes.c_int
_SIZE: Final = ctypes.c_size_t
_POINTERS: Final = _POINTER * 1
_POINTERS_TO: Final = ctypes.POINTER(_POINTER)
_COUNT: Final = ctypes.POINTER(_SIZE)
_LIST: Final = ctypes.POINTER(_PartitionList)
_TEXTS: Final = ctypes.POINTER(_TEXT)

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (_POINTER, ()),
    "conf_destroy": (None, (_POINTER,)),
    "conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_set_events": (None, (_POINTER, _INT)),
    "new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "destroy_flags": (None, (_POINTER, _INT)),
    "set_log_queue": (_INT, (_POINTER, _POINTER)),
    "queue_new": (_POINTER, (_POINTER,)),
    "queue_get_main": (_POINTER, (_POINTER,)),
    "queue_get_consumer": (_POINTER, (_POINTER,)),
    "queue_forward": (None, (_POINTER, _POINTER)),
    "queue_destroy": (None, (_POINTER,)),
    "queue_poll": (_POINTER, (_POINTER, _INT)),
    "queue_yield": (None, (_POINTER,)),
    "event_type": (_INT, (_POINTER,)),
    "event_destroy": (None, (_POINTER,)),
    "event_error": (_INT, (_POINTER,)),
    "event_error_string": (_TEXT, (_POINTER,)),
    "event_config_string": (_TEXT, (_POINTER,)),
    "oauthbearer_set_token": (
        _INT,
        (_POINTER, _TEXT, ctypes.c_int64, _TEXT, _TEXTS, _SIZE, _TEXT, _SIZE),
    ),
    "oauthbearer_set_token_failure": (_INT, (_POINTER, _TEXT)),
    "event_log": (_INT, (_POINTER, _TEXTS, _TEXTS, ctypes.POINTER(_INT))),
    "event_opaque": (_POINTER, (_POINTER,)),
    "event_topic_partition_list": (_LIST, (_POINTER,)),
    "subscribe": (_INT, (_POINTER, _LIST)),
    "unsubscribe": (_INT, (_POINTER,)),
    "assign": (_INT, (_POINTER, _LIST)),
    "assignment_lost": (_INT, (_POINTER,)),
    "commit_queue": (_INT, (_POINTER, _LIST, _POINTER, _POINTER, _POINTER)),
    "memberid": (_POINTER, (_POINTER,)),
    "consumer_close_queue": (_POINTER, (_POINTER, _POINTER)),
    "consumer_closed": (_INT, (_POINTER,)),
    "mem_malloc": (_POINTER, (_POINTER, _SIZE)),
    "mem_free": (None, (_POINTER, _POINTER)),
    "AdminOptions_new": (_POINTER, (_POINTER, _INT)),
    "AdminOptions_destroy": (None, (_POINTER,)),
    "AdminOptions_set_opaque": (None, (_POINTER, _POINTER)),
    "AdminOptions_set_request_timeout": (_INT, (_POINTER, _INT, _TEXT, _SIZE)),
    "AdminOptions_set_require_stable_offsets": (_POINTER, (_POINTER, _INT)),
    "topic_partition_list_new": (_LIST, (_INT,)),
    "topic_partition_list_add": (None, (_POINTER, _TEXT, _INT)),
    "topic_partition_list_add_range": (None, (_POINTER, _TEXT, _INT, _INT)),
    "topic_partition_list_destroy": (None, (_LIST,)),
    "topic_partition_get_leader_epoch": (ctypes.c_int32, (_POINTER,)),
    "topic_partition_set_leader_epoch": (None, (_POINTER, ctypes.c_int32)),
    "TopicCollection_of_topic_names": (_POINTER, (_TEXTS, _SIZE)),
    "TopicCollection_destroy": (None, (_POINTER,)),
    "DescribeTopics": (None, (_POINTER, _POINTER, _POINTER, _POINTER)),
    "event_DescribeTopics_result": (_POINTER, (_POINTER,)),
    "DescribeTopics_result_topics": (_POINTERS_TO, (_POINTER, _COUNT)),
    "TopicDescription_name": (_TEXT, (_POINTER,)),
    "TopicDescription_error": (_POINTER, (_POINTER,)),
    "TopicDescription_topic_id": (_POINTER, (_POINTER,)),
    "Uuid_base64str": (_TEXT, (_POINTER,)),
    "group_result_error": (_POINTER, (_POINTER,)),
    "group_result_partitions": (_LIST, (_POINTER,)),
    "error_code": (_INT, (_POINTER,)),
    "error_string": (_TEXT, (_POINTER,)),
}
for _name in _NUMBERS:
    _SIGNATURES |= {
        f"{_name}_new": (_POINTER, (_TEXT, _LIST)),
        f"{_name}_destroy": (None, (_POINTER,)),
        _name: (None, (_POINTER, _POINTERS_TO, _SIZE, _POINTER, _POINTER)),
        f"event_{_name}_result": (_POINTER, (_POINTER,)),
        f"{_name}_result_groups": (_POINTERS_TO, (_POINTER, _COUNT)),
    }

_WAITING: Final = frozenset(
    {"assign", "destroy_flags", "memberid", "new", "queue_poll", "subscribe", "unsubscribe"}
)
"""Functions that wait.  The others keep the interpreter's lock: to give it away and queue up for it
again, among the threads of all clients, takes far longer than such a call."""

_NOW: Final = "queue_poll_now"
"""``queue_poll`` without a wait, which keeps the lock too."""


def _functions() -> Any:
    """Return the functions of confluent-kafka's librdkafka, by their names behind ``rd_kafka_``."""
    found = SimpleNamespace()
    waiting, quick = ctypes.CDLL(cimpl.__file__), ctypes.PyDLL(cimpl.__file__)
    for name in (*_SIGNATURES, _NOW):
        library = waiting if name in _WAITING else quick
        called = name.removesuffix("_now")
        # Each is an object of its own, of the same function.
        function = library[f"rd_kafka_{called}"]
        function.restype, function.argtypes = _SIGNATURES[called]
        setattr(found, name, function)
    return found


_rd: Final = _functions()


class _Handle:
    """A client of librdkafka's, whose log, errors and requests for tokens are dealt with here."""

    def __init__(
        self, config: Mapping[str, object], kind: int, listener: ConnectionReports
    ) -> None:
        """``config`` is as for confluent-kafka; of its callbacks ``oauth_cb`` alone is called.

        Raises InvalidValueError where librdkafka does not take a setting.
        """
        self._listener = listener
        self._oauth_cb: Any = config.get("oauth_cb")
        self._token_lock = threading.Lock()
        self._ended = False
        conf = _rd.conf_new()
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        events = _LOG_EVENT | _ERROR_EVENT | _REBALANCE_EVENT | _COMMIT_EVENT
        # Without it librdkafka gets tokens by itself, as from an OIDC endpoint.
        _rd.conf_set_events(conf, events | _TOKEN_EVENT if self._oauth_cb else events)
        for name, value in {**config, "log.queue": True}.items():
            if callable(value):
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if _rd.conf_set(conf, name.encode(), text.encode(), error, _ERROR_CHARS):
                _rd.conf_destroy(conf)
                raise refused_config(config, decoded(error.value))
        pointer: int | None = _rd.new(kind, conf, error, _ERROR_CHARS)
        if not pointer:
            _rd.conf_destroy(conf)
            raise refused_config(config, decoded(error.value))
        self.pointer = pointer

    def send_reports(self, queue: int) -> None:
        """Have the log and the errors come into ``queue``."""
        main = _rd.queue_get_main(self.pointer)
        _rd.queue_forward(main, queue)
        _rd.queue_destroy(main)
        _rd.set_log_queue(self.pointer, queue)

    def is_report(self, event: int) -> bool:
        """Pass a log line or an error on; False if ``event`` is something else.

        If it asks for a token, it gets one.
        """
        kind = _rd.event_type(event)
        if kind == _LOG_EVENT:
            facility, line, level = _TEXT(), _TEXT(), _INT()
            pointers = ctypes.byref(facility), ctypes.byref(line), ctypes.byref(level)
            if not _rd.event_log(event, *pointers):
                self._listener.logged(level.value, decoded(facility.value), decoded(line.value))
        elif kind == _ERROR_EVENT:
            self._listener.failed(_rd.event_error(event), decoded(_rd.event_error_string(event)))
        elif kind == _TOKEN_EVENT:
            asked = _rd.event_config_string(event)
            refresh = partial(self._refresh_token, asked and decoded(asked))
            # In a thread of its own, as it may ask somebody else for the token.
            threading.Thread(target=refresh, name="kafka-token", daemon=True).start()
        else:
            return False
        return True

    def _refresh_token(self, asked: str | None) -> None:
        """Get a token by the caller's function, and give it to librdkafka."""
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        try:
            token, expires_s, *more = self._oauth_cb(asked)
            # confluent-kafka's functions may leave out the last two.
            principal, extensions = (more + ["", {}][len(more) :])[:2]
            pairs = [text.encode() for pair in dict(extensions).items() for text in pair]
            array = (_TEXT * max(len(pairs), 1))(*pairs)
            until_ms = int(expires_s * 1000)
            named = str(principal).encode()
            given = token.encode(), until_ms, named, array, len(pairs), error, _ERROR_CHARS
        except BaseException as raised:  # noqa: BLE001 -- of the caller's function
            given, why = None, visible(str(raised), 300)
        with self._token_lock:
            if self._ended:
                return
            if given is not None:
                refused = _rd.oauthbearer_set_token(self.pointer, *given)
                why = decoded(error.value) if refused else ""
            if why:
                _rd.oauthbearer_set_token_failure(self.pointer, why.encode())

    def end(self) -> None:
        """End the client, also while a token is on its way to it."""
        with self._token_lock:
            self._ended = True
        _rd.destroy_flags(self.pointer, _NO_CONSUMER_CLOSE)


class GroupClient:
    """Fetches and commits the offsets of groups, as a simple (memberless) committer; thread-safe.

    Its own thread sets the answers.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        kind: int,
        listener: ConnectionReports,
        name: str = "kafka-client",
    ) -> None:
        """Open a client, of the kind ``CONSUMER`` if it is to fetch; ``listener`` gets the log.

        ``config`` is as for confluent-kafka.  Raises ValueError where librdkafka refuses a
        setting, and RuntimeError where no thread is to be had.
        """
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Callable[[int], Any], Pending[Any]]] = {}
        """Requests under way, by number: the reader of each one's answer, and its future."""
        self._number = 0
        self._closed = False
        own = {"group.id": OWN_GROUP} if kind == CONSUMER else {}
        self._handle = _Handle({**config, **own}, kind, listener)
        self._queue: int = _rd.queue_new(self._handle.pointer)
        self._handle.send_reports(self._queue)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def fetch(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None,
        timeout_s: float,
        *,
        stable: bool = True,
    ) -> Pending[FetchResult | Failure]:
        """Ask for the committed offsets of ``group`` (for ``partitions=None`` all of them).

        With ``stable``, a partition that an open transaction is about to commit is an error.
        The answer is set in the client's thread: a Failure if the request failed as a whole.
        Raises ManagerStoppedError once closed.
        """
        wanted = None if partitions is None else partition_list(partitions)
        read = partial(_fetch_result, partitions)
        return self._ask(_FETCH, group, wanted, timeout_s, read, stable=stable)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Pending[CommitResult | Failure]:
        """Commit ``offsets`` in one request; as for ``fetch``."""
        wanted = offset_list(self._handle.pointer, offsets)
        return self._ask("AlterConsumerGroupOffsets", group, wanted, timeout_s, _commit_result)

    def delete(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout_s: float
    ) -> Pending[CommitResult | Failure]:
        """Delete the committed offsets of ``partitions``; as for ``fetch``."""
        wanted = partition_list(partitions)
        return self._ask("DeleteConsumerGroupOffsets", group, wanted, timeout_s, _commit_result)

    def topic_ids(
        self, topics: Collection[str], timeout_s: float
    ) -> Pending[dict[str, str | Failure] | Failure]:
        """Ask for the ids of topics, and not for their partitions, which take long to read.

        An id is empty from a broker before 2.8.
        """
        names = (_TEXT * len(topics))(*(topic.encode() for topic in topics))
        with self._lock:
            options, answer = self._begin(_DESCRIBE_TOPICS, timeout_s, _read_ids)
            wanted = _rd.TopicCollection_of_topic_names(names, len(topics))
            _rd.DescribeTopics(self._handle.pointer, wanted, options, self._queue)
            _rd.TopicCollection_destroy(wanted)
            _rd.AdminOptions_destroy(options)
        return answer

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Refuse further requests; open ones fail.  Returns within ``timeout_s``."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _rd.queue_yield(self._queue)
        self._thread.join(timeout_s)

    def _ask(
        self,
        operation: Operation,
        group: str,
        wanted: Any,
        timeout_s: float,
        read: Callable[[Any], _T],
        *,
        stable: bool = True,
    ) -> Pending[_T | Failure]:
        """Send a request about ``wanted``, a partition list that is destroyed here, or None.

        ``read`` gets the list of the answer.
        """
        read_event = partial(_read_group, operation, read)
        try:
            with self._lock:
                options, answer = self._begin(_NUMBERS[operation], timeout_s, read_event)
                if operation == _FETCH:
                    _rd.AdminOptions_set_require_stable_offsets(options, int(stable))
                request = getattr(_rd, f"{operation}_new")(group.encode(), wanted)
                send = getattr(_rd, operation)
                send(self._handle.pointer, _POINTERS(request), 1, options, self._queue)
                getattr(_rd, f"{operation}_destroy")(request)
                _rd.AdminOptions_destroy(options)
        finally:
            if wanted is not None:
                _rd.topic_partition_list_destroy(wanted)
        return answer

    def _begin(
        self, operation: int, timeout_s: float, read: Callable[[int], _T | Failure]
    ) -> tuple[int, Pending[_T | Failure]]:
        """Return the options of a new request and its answer; with the lock held."""
        if self._closed:
            raise ManagerStoppedError(CLOSED)
        self._number += 1
        answer: Pending[_T | Failure] = Pending()
        self._open[self._number] = read, answer
        options: int = _rd.AdminOptions_new(self._handle.pointer, operation)
        timeout_ms = ceil(max(timeout_s, 0.001) * 1000)
        _rd.AdminOptions_set_request_timeout(options, timeout_ms, None, 0)
        _rd.AdminOptions_set_opaque(options, self._number)
        return options, answer

    def _serve(self) -> None:
        """Set answers until closed, then end the handle: in this thread, which may block."""
        while not self._closed:
            event = _rd.queue_poll(self._queue, _POLL_MS)
            while event:
                try:
                    self._handle_event(event)
                except Exception:  # the thread goes on with all other events
                    log.exception("kafka_event_failed")
                _rd.event_destroy(event)
                # Later events are handled in the same turn: the next turn may be long in coming.
                event = _rd.queue_poll_now(self._queue, 0)
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for _, answer in left:
            answer.set_result(failure_of(FAIL, "the Kafka client was closed"))
        _rd.queue_destroy(self._queue)
        self._handle.end()

    def _handle_event(self, event: int) -> None:
        if self._handle.is_report(event):
            return
        with self._lock:
            asked = self._open.pop(_rd.event_opaque(event) or 0, None)
        if asked is not None:
            read, answer = asked
            code = _rd.event_error(event)
            text = decoded(_rd.event_error_string(event)) if code else ""
            answer.set_result(failure_of(code, text) if code else read(event))


def _read_ids(event: int) -> dict[str, str | Failure]:
    count, ids = _SIZE(), dict[str, str | Failure]()
    result = _rd.event_DescribeTopics_result(event)
    found = _rd.DescribeTopics_result_topics(result, ctypes.byref(count))
    for index in range(count.value):
        error = _rd.TopicDescription_error(found[index])
        code = _rd.error_code(error) if error else 0
        topic_id = decoded(_rd.Uuid_base64str(_rd.TopicDescription_topic_id(found[index])))
        ids[decoded(_rd.TopicDescription_name(found[index]))] = (
            failure_of(code) if code else "" if topic_id == _NO_ID else topic_id
        )
    return ids


def _read_group(operation: Operation, read: Callable[[Any], _T], event: int) -> _T | Failure:
    result = getattr(_rd, f"event_{operation}_result")(event)
    count = _SIZE()
    group = getattr(_rd, f"{operation}_result_groups")(result, ctypes.byref(count))[0]
    error = _rd.group_result_error(group)
    if error:
        return failure_of(_rd.error_code(error), decoded(_rd.error_string(error)))
    return read(_rd.group_result_partitions(group))


class MemberEvent(NamedTuple):
    """A change of a membership."""

    kind: Literal["assigned", "revoked", "lost", "failed"]
    """``assigned``: in the group; ``revoked``: others have joined; ``lost``: the coordinator
    dropped the member; ``failed``: the coordinator, or a connection to it, failed."""
    code: int = 0
    text: str = ""


class Member:
    """A member of one group, used by one thread alone, which calls nothing after ``end``.

    It subscribes like any consumer, is assigned partitions as the only member, and fetches nothing
    of them: it commits, and librdkafka sends its heartbeats.
    """

    def __init__(self, config: Mapping[str, object], listener: ConnectionReports) -> None:
        """``listener`` gets the log.  Raises InvalidValueError if a setting is refused."""
        self._client = _Handle(config, CONSUMER, listener)
        self._handle = self._client.pointer
        self._answers = _rd.queue_new(self._handle)
        self._queue = _rd.queue_get_consumer(self._handle)
        self._client.send_reports(self._queue)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Begin to join the group."""
        wanted = partition_list((topic, _ALL_PARTITIONS) for topic in topics)
        _rd.subscribe(self._handle, wanted)
        _rd.topic_partition_list_destroy(wanted)

    @property
    def id(self) -> str:
        """The id that the coordinator gave it; no other member ever has the same."""
        found = _rd.memberid(self._handle)
        text = decoded(ctypes.string_at(found)) if found else ""
        _rd.mem_free(self._handle, found)
        return text

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> dict[TopicPartition, int] | None:
        """Commit in one request; returns the code of each partition, None without an answer.

        After None the member must be ended: its commit may land until then.
        """
        sent = offset_list(self._handle, offsets)
        _rd.commit_queue(self._handle, sent, self._answers, None, None)
        _rd.topic_partition_list_destroy(sent)
        event = _rd.queue_poll(self._answers, int(timeout_s * 1000))
        if not event:
            return None
        # A request that failed as a whole has no codes of its partitions.
        whole = _rd.event_error(event) or NOT_NAMED
        found = read_list(_rd.event_topic_partition_list(event))
        codes = {where: whole if error == NOT_NAMED else error for where, _, error in found}
        _rd.event_destroy(event)
        return dict.fromkeys(offsets, whole) | codes

    def poll(self, timeout_s: float) -> MemberEvent | None:
        """Return the next event; None if there was none within ``timeout_s``."""
        while event := _rd.queue_poll(self._queue, int(timeout_s * 1000)):
            try:
                found = self._read(event)
            finally:
                _rd.event_destroy(event)
            if found is not None:
                return found
        return None

    def leave(self) -> None:
        """Leave the group, so that it is free at once; return when Kafka knows, or is too slow."""
        # A static member leaves by unsubscribing; closing alone would keep its place.
        _rd.unsubscribe(self._handle)
        _rd.assign(self._handle, None)
        _rd.consumer_close_queue(self._handle, self._queue)
        for _ in range(_LEAVE_POLLS):
            if _rd.consumer_closed(self._handle):
                return
            event = self.poll(_LEAVE_POLL_S)
            if event is not None and event.kind in {"revoked", "lost"}:
                _rd.assign(self._handle, None)

    def end(self) -> None:
        """Drop the client; unsent requests are never sent."""
        _rd.queue_destroy(self._answers)
        _rd.queue_destroy(self._queue)
        self._client.end()

    def _read(self, event: int) -> MemberEvent | None:
        kind, code = _rd.event_type(event), _rd.event_error(event)
        if kind == _REBALANCE_EVENT and code == _ASSIGN:
            nothing = _rd.topic_partition_list_new(0)
            _rd.assign(self._handle, nothing)
            _rd.topic_partition_list_destroy(nothing)
            return MemberEvent("assigned")
        if kind == _REBALANCE_EVENT:
            return MemberEvent("lost" if _rd.assignment_lost(self._handle) else "revoked")
        self._client.is_report(event)
        if kind == _ERROR_EVENT:
            return MemberEvent("failed", code, decoded(_rd.event_error_string(event)))
        return None


def partition_list(partitions: Iterable[tuple[str, int]]) -> Any:
    """Return a new list of partitions, in this order."""
    made = _rd.topic_partition_list_new(1)
    address = ctypes.addressof(made.contents)
    topic, first, end = "", 0, 0
    for name, number in (*partitions, ("", 0)):  # the last ends the last run
        if number != end or name != topic:
            if end > first:
                encoded = topic.encode()
                # A range that ends with the highest number would never end.
                _rd.topic_partition_list_add_range(address, encoded, first, end - 2)
                _rd.topic_partition_list_add(address, encoded, end - 1)
            topic, first = name, number
        end = number + 1
    return made


def offset_list(handle: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Any:
    """Return a new list of offsets that ``handle`` is to commit.

    librdkafka answers with this list, and writes a code (0 for none) into it for each
    partition that the coordinator's answer names, and for no other.
    """
    made = partition_list(offsets)
    elements = made.contents.elems
    _column(made, "offset")[:] = array("q", [each.offset for each in offsets.values()])
    _column(made, "error")[:] = array("i", [NOT_NAMED]) * len(offsets)
    for index, (_, metadata, leader_epoch) in enumerate(offsets.values()):
        if not metadata and leader_epoch is None:
            continue
        partition = elements[index]
        if metadata:
            raw = metadata.encode()
            partition.metadata = _rd.mem_malloc(handle, len(raw))  # freed with the list
            partition.metadata_size = len(raw)
            ctypes.memmove(partition.metadata, raw, len(raw))
        if leader_epoch is not None:
            _rd.topic_partition_set_leader_epoch(ctypes.addressof(partition), leader_epoch)
    return made


def read_list(found: Any, *, refused: bool = False) -> Iterator[PartitionAnswer]:
    """Read partitions out of librdkafka's memory; if ``refused`` those with an error."""
    if refused and not any(_column(found, "error")):
        return
    names: dict[bytes, str] = {}
    address, columns = _address(found), [_column(found, name) for name in _READ]
    topics = (_TEXT * found.contents.cnt).from_buffer(array("q", _column(found, "topic")))
    for raw, number, at, text, size, private, error in zip(topics, *columns, strict=True):
        here, address = address, address + ctypes.sizeof(_Partition)
        if refused and not error:
            continue
        topic = names.get(raw) or names.setdefault(raw, decoded(raw))
        offset = None
        if at >= 0:
            # confluent-kafka's consumers commit metadata with a NUL behind it.
            metadata = size and decoded(ctypes.string_at(text, size).removesuffix(b"\0"))
            epoch = _rd.topic_partition_get_leader_epoch(here) if private else -1
            given = at, metadata or "", epoch if epoch >= 0 else None
            offset = new_tuple(OffsetAndMetadata, given)
        where = new_tuple(TopicPartition, (topic, number))
        yield where, offset, error


def _address(found: Any) -> int:
    """Return the address of a list's first partition; 0 if there is none."""
    return ctypes.addressof(found.contents.elems.contents) if found.contents.cnt else 0


def _column(found: Any, name: str) -> memoryview:
    """Return one field of all partitions of a list, as numbers; pointers are addresses."""
    size, field = ctypes.sizeof(_Partition), getattr(_Partition, name)
    kind: Literal["i", "q"] = "i" if field.size == ctypes.sizeof(ctypes.c_int) else "q"
    if not found.contents.cnt:
        return memoryview(array(kind))
    memory = (ctypes.c_byte * (found.contents.cnt * size)).from_address(_address(found))
    whole = memoryview(memory).cast("B").cast(kind)
    return whole[field.offset // whole.itemsize :: size // whole.itemsize]


def decoded(text: bytes | None) -> str:
    """Return a text of librdkafka's."""
    return (text or b"").decode(errors="replace")


def _commit_result(found: Any) -> CommitResult:
    """Return the answer to a commit or a deletion that succeeded but for some partitions."""
    refused = read_list(found, refused=True)
    return CommitResult({where: _failure(error) for where, _, error in refused})


def _fetch_result(asked: Iterable[TopicPartition] | None, found: Any) -> FetchResult:
    """Return the answer to a fetch of ``asked``, or of all that a group has committed if None."""
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failures = dict.fromkeys(asked or (), _failure(NOT_NAMED))
    for where, offset, error in read_list(found):
        failures.pop(where, None)
        if error:
            failures[where] = _failure(error)
        elif offset is not None or asked is not None:
            offsets[where] = offset
    return FetchResult(offsets, failures)


def _failure(code: int) -> Failure:
    if code == NOT_NAMED:
        return Failure(error_info(code), "Kafka's answer does not name this partition")
    return failure_of(code)
