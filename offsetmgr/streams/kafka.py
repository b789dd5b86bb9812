"""Emitters that write to Kafka."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.kafka.config import checked_config
from offsetmgr.kafka.producer import MessageProducer
from offsetmgr.streams.emitter import Emitter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.answers import Written
    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.messages import Headers, Record

PARTITIONER: Final = "fnv1a"
"""librdkafka's name of the hash in ``hashing.py``."""


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
        settings = checked_config(config)
        if settings.setdefault("partitioner", PARTITIONER) != PARTITIONER:
            fix = f"remove it: rows are found by {PARTITIONER} alone"
            raise InvalidValueError("partitioner", settings["partitioner"], "cannot be set", fix)
        self._producer = MessageProducer(settings, name="emitter")

    def write(self, record: Record) -> Future[Written]:
        """Return where the record is, once Kafka has it; waits while the queue is full."""
        outcome: Future[Written] = Future()

        def done(answer: Written | KafkaRequestError) -> None:
            if isinstance(answer, KafkaRequestError):
                outcome.set_exception(answer)
            else:
                outcome.set_result(answer)

        self._producer.send(
            record.topic, record.value, record.key, done, headers=record.headers, wait=True
        )
        return outcome

    def close(self) -> None:
        self._producer.close()
