"""Emitters that write to Kafka, and requests for visits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.kafka.config import checked_config
from offsetmgr.kafka.producer import POLL_S, MessageProducer
from offsetmgr.streams.codecs import Bytes
from offsetmgr.streams.emitter import Emitter, EmitterClosedError
from offsetmgr.streams.engine import visit_value
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.messages import PARTITIONER, VISIT_HEADER, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.answers import Written
    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.graph import GroupGraph
    from offsetmgr.streams.messages import Headers

_QUEUE_FULL: Final = "_QUEUE_FULL"
_REQUEST_MS: Final = 30_000


def kafka_emitter(
    config: str | Mapping[str, object],
    topic: str,
    codec: Codec,
    *,
    default_headers: Headers | None = None,
) -> Emitter:
    """Return an emitter of ``topic``; ``config`` is the bootstrap servers or librdkafka's settings.

    It is idempotent unless ``config`` says otherwise.  While librdkafka's queue is full, ``emit``
    waits; in a callback of a message, which makes room only after its end, it fails.  Raises
    InvalidValueError.
    """
    return _KafkaEmitter(config, topic, codec, default_headers)


class _KafkaEmitter(Emitter):
    """Writes to Kafka.  Thread-safe."""

    def __init__(self, config: str | Mapping[str, object], *given: Any) -> None:
        super().__init__(*given)
        settings = checked_config(config)
        if settings.setdefault("partitioner", PARTITIONER) != PARTITIONER:
            fix = f"remove it: rows are found by {PARTITIONER} alone"
            raise InvalidValueError("partitioner", settings["partitioner"], "cannot be set", fix)
        self._producer = MessageProducer(settings, name="emitter")
        self._lock = threading.RLock()
        """Held for no wait: a callback of a message may write another one."""
        self._calls = threading.local()
        """Of callbacks of messages, which run in the producer's thread or in that of `close`."""

    def _write(self, record: Record) -> Future[Written]:
        outcome: Future[Written] = Future()
        outcome.set_running_or_notify_cancel()  # as nobody can cancel it
        waits = not self._in_callback
        is_full = True

        def done(answer: Written | KafkaRequestError) -> None:
            nonlocal is_full
            if not isinstance(answer, KafkaRequestError):
                self._call(outcome.set_result, answer)
            elif waits and answer.code == _QUEUE_FULL:
                is_full = True
            else:
                self._call(outcome.set_exception, answer)

        while is_full:
            is_full = False
            with self._lock:
                if self._closed:
                    raise EmitterClosedError.of(record)
                self._producer.send(
                    record.topic, record.value, record.key, done, headers=record.headers
                )
            if is_full:
                time.sleep(POLL_S)
        return outcome

    @property
    def _in_callback(self) -> bool:
        return getattr(self._calls, "running", False)

    def _call(self, settle: Callable[[Any], None], answer: object) -> None:
        """Settle a message, which calls its callbacks."""
        before = self._in_callback
        self._calls.running = True
        try:
            settle(answer)
        finally:
            self._calls.running = before

    def _close(self) -> None:
        with self._lock:
            super()._close()
        self._producer.close()


def request_visit(kafka: Mapping[str, Any], graph: GroupGraph, name: str, meta: Any) -> None:
    """Write the message that asks for a visit.  Raises InvalidValueError, ProcessorError."""
    value = visit_value(meta)
    settings = {**kafka, "partitioner": PARTITIONER, "message.timeout.ms": _REQUEST_MS}
    try:
        with kafka_emitter(settings, graph.loop_topic, Bytes()) as emitter:
            emitter.emit_sync("", value, {VISIT_HEADER: name.encode()})
    except KafkaRequestError as error:
        text = f"the visit of {graph.group} by {name} was not sent: {error}"
        raise ProcessorError(text) from error
