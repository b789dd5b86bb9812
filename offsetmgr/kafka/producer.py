"""The producer of all rooms."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from offsetmgr.answers import Failure, Written
from offsetmgr.deadlines import Deadline, Latch
from offsetmgr.errors import InvalidValueError, ManagerStoppedError
from offsetmgr.kafka.clients import CLOSE_S, FORKED, Closing, check_thread_room
from offsetmgr.kafka.config import asking_config, client_config, refused_config
from offsetmgr.kafka.connections import LIBRDKAFKA_S
from offsetmgr.kafka.errors import request_error
from offsetmgr.kafka.librdkafka import PRODUCER, GroupClient
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.logs import SafeLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.errors import KafkaRequestError

POLL_S: Final = 0.1
"""Longest single wait for reports, and the pause before a full queue is tried again."""

UNBOUNDED: Final = {
    "queue.buffering.max.messages": 0,  # no limit
    "queue.buffering.max.kbytes": 2**31 - 1,
}
"""Settings of a producer whose user limits by itself what waits in librdkafka's queue."""

_LARGEST_BYTES: Final = 1_000_000_000
"""librdkafka takes no larger limit."""

_REQUEST_BYTES: Final = 100_000_000
"""Below the ``socket.request.max.bytes`` of brokers by default: they end the connection above it,
which would hold up other messages."""

_BATCH_BYTES: Final = 1_000_000
"""librdkafka's own limit of a batch, below the 1,048,588 that a topic takes by default."""

_MESSAGES_OF_A_BATCH: Final = "batch.num.messages"

_BY_KEY: Final = -1
_UNKNOWN_PARTITION: Final = -190
_LOOK_UP_S: Final = 1.0

_FIRST_IDS_S: Final = 1.0
"""Age of a producer that first asks for ids of topics: many end before."""
_IDS_S: Final = 10.0
"""Least pause between two such questions."""
_ANSWER_S: Final = 2.0
"""Longest wait for such an answer, in which no reports are handled."""

OF_A_BATCH: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001
    }
)
"""Refusals of a whole batch, which one of its messages may have caused."""

log = SafeLogger("offsetmgr.kafka")


def open_producer(
    config: Mapping[str, object],
    ours: Mapping[str, object],
    *,
    max_message_bytes: int | None = None,
) -> Producer:
    """Return an idempotent producer of confluent-kafka's.

    ``config`` are librdkafka's settings, over which ``ours`` go.  With ``max_message_bytes``, the
    smallest ``max.message.bytes`` of the topics that it writes to, it takes whatever a broker
    takes: no batch is larger, and the broker alone judges a message, which may be compressed.
    Without, the broker judges up to 100 MB, or the ``message.max.bytes`` of ``config``:
    librdkafka's own limit of 1,000,000 is below that of a broker.

    Raises InvalidValueError where librdkafka does not take a setting, NoThreadsError if there is no
    room for its threads.
    """
    check_thread_room()
    defaults = {"enable.idempotence": True, "message.max.bytes": _REQUEST_BYTES}
    settings: dict[str, Any] = {**defaults, **config, **ours, "delivery.report.only.error": False}
    if max_message_bytes is not None:
        settings["message.max.bytes"] = _LARGEST_BYTES
        settings["batch.size"] = max(1, min(max_message_bytes, _BATCH_BYTES))
    try:
        return Producer(settings)
    except KafkaException as error:
        raise refused_config(settings, error.args[0].str()) from None


class MessageProducer(Closing):
    """Produces messages; a thread of its own handles their reports.  Thread-safe.

    A message that was refused with its batch is sent once more, alone.  librdkafka sends nothing
    after a fatal error: the producer is replaced then.  After a message has timed out whose topic
    was recreated, another producer sends what comes, as librdkafka may ask that topic's former
    leader forever; the former producer sends what it has.
    """

    _single: MessageProducer | None = None
    """Sends messages alone, once there are some."""

    def __init__(
        self,
        config: str | Mapping[str, object],
        *,
        max_message_bytes: int | None = None,
        on_error: Callable[[KafkaError], object] = lambda _: None,
        name: str = "kafka-producer",
    ) -> None:
        """``config`` is the bootstrap servers, or librdkafka's settings.

        ``max_message_bytes`` as for ``open_producer``, which may raise.  ``on_error`` gets errors
        that are not about one message, in the producer's thread, which is named ``name``.
        """
        given = {"bootstrap.servers": config} if isinstance(config, str) else config
        if "transactional.id" in given:
            problem, hint = "cannot be set", "leave it out: each message is sent by itself"
            raise InvalidValueError("transactional.id", given["transactional.id"], problem, hint)
        self._config: Mapping[str, object] = given
        self._alone = given.get(_MESSAGES_OF_A_BATCH) == 1
        self._on_error = on_error
        self._reports = ConnectionReports()
        self._max_message_bytes = max_message_bytes
        self._lock = threading.RLock()
        self._producer: Producer | None = self._open()
        self._broken: Producer | None = None
        """The producer, if it has had a fatal error."""
        self._former: Producer | None = None
        """A producer that sends what it has, and gets no more."""
        self._looked_up_at_s = -inf
        self._written: set[str] = set()
        """Topics that took a message since their id is known, and those of an unknown id."""
        self._late: set[str] = set()
        """Topics of messages that have timed out, and whose ids are not asked for since."""
        self._ids: dict[str, str] = {}
        """The ids of topics whose messages the producer can send."""
        self._ids_at_s = time.monotonic() + _FIRST_IDS_S
        self._ended = Latch()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        done: Callable[[Written | KafkaRequestError], object],
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
        timestamp_ms: int = 0,
        wait: bool = False,
    ) -> None:
        """Produce a message, and call ``done`` with its place, or the reason why it is not written.

        ``done`` is called in the producer's thread, in that of ``close``, or at once where
        librdkafka refuses; what it raises is logged.  While librdkafka's queue is full, this waits
        with ``wait``, and else refuses.

        Raises ManagerStoppedError after ``close``, and in the child of a fork.
        """
        if not self._thread.is_alive():  # which would handle the report
            raise ManagerStoppedError(f"the producer is closed, or was {FORKED}")

        place: dict[str, Any] = {"partition": partition, "timestamp_ms": timestamp_ms}
        is_sent_alone = partial(self._send_alone, topic, value, key, done, headers=headers, **place)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._written.add(topic)
                report(Written(message.partition() or 0, message.offset() or 0))
                return
            if error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 -- public
                self._late.add(topic)
            if error.code() not in OF_A_BATCH or not is_sent_alone():
                report(self._failure(topic, error))

        report = partial(log.guard, "a callback of a message failed", done)
        produce = partial(
            self._produce,
            topic,
            value,
            key,
            partition=_BY_KEY if partition is None else partition,
            on_delivery=delivered,
            timestamp=timestamp_ms,
            headers=list(headers) or None,
        )
        refusal = produce()
        while refusal is not None and self._may_pass(topic, refusal, wait=wait):
            refusal = produce()
        if refusal is not None:
            report(self._failure(topic, refusal))

    def _produce(self, *message: Any, **place: Any) -> KafkaError | None:
        """Give a message to librdkafka; return why it is not taken."""
        try:
            with self._lock:
                if self._producer is None:
                    raise ManagerStoppedError("the producer is closed")
                self._producer.produce(*message, **place)
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001 -- public
        except KafkaException as refused:
            error: KafkaError = refused.args[0]
            return error
        return None

    def _may_pass(self, topic: str, refusal: KafkaError, *, wait: bool) -> bool:
        """Do what helps against ``refusal``; False if nothing does.

        librdkafka by itself learns of added partitions within 5 minutes.  It is asked to look at
        most once a second.
        """
        if refusal.code() == KafkaError._QUEUE_FULL:  # noqa: SLF001 -- public
            return wait and not self._ended.wait(POLL_S)  # the thread makes room
        now_s, producer = time.monotonic(), self._producer
        is_due = now_s - self._looked_up_at_s >= _LOOK_UP_S
        if refusal.code() != _UNKNOWN_PARTITION or not is_due or producer is None:
            return False
        self._looked_up_at_s = now_s
        with suppress(KafkaException):
            producer.list_topics(topic, timeout=_LOOK_UP_S)
        return True

    def close(self, timeout_s: float | None = None) -> None:
        """Wait up to ``timeout_s`` for messages under way (None: for all), and end."""
        deadline = Deadline(timeout_s, "timeout_s", forever=True)
        while (writing := self._writing) and not deadline.over:
            self._handle_reports(writing[0], Producer.flush, min(deadline.left_s, POLL_S))
        self._ended.set()
        self._thread.join(CLOSE_S)
        if self._single is not None:
            self._single.close(None if timeout_s is None else deadline.left_s)

    @property
    def _writing(self) -> list[Producer]:
        """The producers with messages under way, while the thread is there to end."""
        producers = [each for each in (self._producer, self._former) if each is not None]
        return [each for each in producers if len(each) and self._thread.is_alive()]

    def _open(self) -> Producer:
        ours = {"logger": self._reports, "error_cb": self._failed}
        return open_producer(self._config, ours, max_message_bytes=self._max_message_bytes)

    def _send_alone(self, *message: Any, **place: Any) -> bool:
        """Send a message that was refused with its batch; return False where that is impossible."""
        if self._alone:
            return False
        try:
            with self._lock:
                if self._single is None:
                    self._single = MessageProducer(
                        {**self._config, _MESSAGES_OF_A_BATCH: 1},
                        max_message_bytes=self._max_message_bytes,
                        on_error=self._on_error,
                        name=f"{self._thread.name}-single",
                    )
            self._single.send(*message, **place)
        except Exception as error:  # noqa: BLE001 -- such as no room for its threads
            text = f"cannot send a message alone that was refused with its batch: {error}"
            self._reports.log(logging.ERROR, "", "PRODUCE", "", text)
            return False
        return True

    def _failure(self, topic: str, error: KafkaError) -> KafkaRequestError:
        return request_error(f"write to {topic}", error, right="WRITE", topic=topic)

    def _failed(self, error: KafkaError) -> None:
        self._reports.failed(error.code(), error.str())
        log.guard("a callback of an error failed", self._on_error, error)

    def _serve(self) -> None:
        while not self._ended.is_set():
            self._handle_reports(self._producer, Producer.poll, POLL_S)
            if self._former is not None:
                self._handle_reports(self._former, Producer.poll, 0.0)
                self._former = self._former if len(self._former) else None
            elif time.monotonic() >= self._ids_at_s:
                self._compare_ids()
        with self._lock:
            last = self._producer, self._former
            self._producer = self._former = self._broken = None
        # Here, as it takes time if no broker answers; a garbage collection would be late.
        del last

    def _handle_reports(
        self, producer: Producer | None, poll: Callable[[Producer, float], int], wait_s: float
    ) -> None:
        if producer is None:
            return
        try:
            poll(producer, wait_s)
        except KafkaException as fatal:  # raised where ``error_cb`` would have been called
            self._broken = producer
            self._failed(fatal.args[0])
        except Exception:  # the reports of other messages are handled all the same
            log.exception("message_report_failed")
        if self._broken is producer:
            self._replace(producer)

    def _compare_ids(self) -> None:
        """Send by another producer where this one is older than the topic of a late message.

        librdkafka takes the metadata of a recreated topic for outdated ones as long as its leader
        epoch is below that of the former (https://github.com/confluentinc/librdkafka/issues/4898).
        Where the topics are the same, the messages behind the late ones keep their order.
        """
        unknown = self._written - self._ids.keys()
        if not self._late and not unknown:
            return
        late, self._late = self._late, set()
        self._ids_at_s = time.monotonic() + _IDS_S
        with suppress(Exception):  # tried again after the next message
            ids = self._ids_of(late | unknown)
            same = {topic for topic, topic_id in ids.items() if topic_id == self._ids.get(topic)}
            other = sorted(late & ids.keys() - (same & self._written))
            if other:
                another = self._open()
                with self._lock:
                    self._former, self._producer = self._producer, another
                text = "messages to %s timed out; another producer sends the next"
                log.warning(text, ", ".join(other))
            self._ids.update(ids)
            self._written.difference_update(unknown)
            self._written.update(other)

    def _ids_of(self, topics: Collection[str]) -> dict[str, str]:
        """Ask for the ids of those of ``topics`` that exist; raises where nobody answers."""
        check_thread_room()
        config = client_config(asking_config(self._config))
        with closing(GroupClient(config, PRODUCER, self._reports)) as client:
            found = client.topic_ids(topics, _ANSWER_S + LIBRDKAFKA_S).result(_ANSWER_S)
        if isinstance(found, Failure):
            return {}
        return {topic: each for topic, each in found.items() if isinstance(each, str)}

    def _replace(self, broken: Producer) -> None:
        """Open another producer and report what waits in the broken one.

        Where none can be opened, it is tried again after the next poll.
        """
        with self._lock:
            if self._producer is broken:  # the thread and that of a close may both come here
                try:
                    self._producer = self._open()
                except Exception as error:  # noqa: BLE001 -- such as no room for its threads
                    text = f"cannot replace the producer after a fatal error: {error}"
                    self._reports.log(logging.ERROR, "", "REPLACE", "", text)
            if self._producer is not broken:
                self._broken = None
        broken.purge()
        while len(broken):
            with suppress(Exception):  # the same fatal error
                broken.poll(POLL_S)
