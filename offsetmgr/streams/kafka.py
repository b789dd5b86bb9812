"""Emitters that write to Kafka."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.kafka.config import checked_config, refused_config
from offsetmgr.kafka.errors import failure_of_code
from offsetmgr.streams.emitter import Emitter, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.messages import Headers, Record

PARTITIONER: Final = "fnv1a"
"""librdkafka's name of the hash in ``hashing.py``."""

_SLICE_S: Final = 0.1


def kafka_emitter(
    config: str | Mapping[str, object],
    topic: str,
    codec: Codec,
    *,
    default_headers: Headers | None = None,
) -> Emitter:
    """Return an emitter of ``topic``; ``config`` is the bootstrap servers or librdkafka's settings.

    It waits in ``emit`` while librdkafka's queue is full, and is idempotent unless ``config`` says
    otherwise.  Raises InvalidValueError where librdkafka does not take a setting.
    """
    return Emitter(KafkaWriter(config), topic, codec, default_headers)


class KafkaWriter:
    """Writes records in the partitions that processors and views expect.  Thread-safe."""

    def __init__(self, config: str | Mapping[str, object]) -> None:
        """Raises InvalidValueError."""
        settings: dict[str, Any] = {"enable.idempotence": True, **checked_config(config)}
        if settings.setdefault("partitioner", PARTITIONER) != PARTITIONER:
            fix = f"remove it: rows are found by {PARTITIONER} alone"
            raise InvalidValueError("partitioner", settings["partitioner"], "cannot be set", fix)
        try:
            self._producer = Producer(settings)
        except KafkaException as error:
            raise refused_config(settings, error) from None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="emitter", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> Future[Written]:
        """Return where the record is, once Kafka has it; waits while the queue is full."""
        outcome: Future[Written] = Future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                outcome.set_exception(_refused(record, error))
            else:
                outcome.set_result(Written(message.partition() or 0, message.offset() or 0))

        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=delivered,
                )
            except BufferError:
                self._ended.wait(_SLICE_S)  # the thread makes room
            except KafkaException as refused:
                outcome.set_exception(_refused(record, refused.args[0]))
                return outcome
            else:
                return outcome

    def close(self) -> None:
        """Write what is left and end."""
        self._producer.flush()
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(_SLICE_S)


def _refused(record: Record, error: KafkaError) -> KafkaRequestError:
    failure = failure_of_code(error.code(), error.str())
    return KafkaRequestError(f"write to {record.topic}", failure.info, failure.detail)
