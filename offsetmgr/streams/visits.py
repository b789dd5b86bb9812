"""Visits on Spark: a message through the loop's topic for each bucket, all of them or none."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
from confluent_kafka import KafkaException, Producer

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.buckets import VISIT_HEADER
from offsetmgr.streams.codecs import whole
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.messages import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

_REQUEST_S: Final = 30.0
_POLL_S: Final = 0.2
_MOST_BYTES: Final = MAX_BYTES // 2


def request_visit(
    kafka: Mapping[str, Any], group: str, topic: str, name: str, meta: Any, buckets: int
) -> None:
    """Write the messages that ask ``buckets`` buckets for a visit, in one transaction.

    Raises InvalidValueError where JSON cannot hold ``meta``, ProcessorError where Kafka does not
    take the messages; then no bucket is visited.
    """
    try:
        value = msgspec.json.encode(whole(meta))
    except Exception as error:  # noqa: BLE001 -- msgspec, or a hook of the value's type
        fix = "give what JSON can hold"
        raise InvalidValueError("meta", meta, f"cannot be sent ({error})", fix) from None
    if len(value) > _MOST_BYTES:
        fix = "give a reference to what is large"
        raise InvalidValueError("meta", meta, f"has more than {_MOST_BYTES:,} bytes", fix)
    # A name of its own: visits of two programs do not end each other's transactions.
    ident = f"offsetmgr-visit-{group}-{uuid4().hex}"
    producer = Producer({**kafka, "transactional.id": ident})
    try:
        producer.init_transactions(_REQUEST_S)
        producer.begin_transaction()
        for bucket in range(buckets):
            while True:
                try:
                    producer.produce(topic, value, str(bucket), headers={VISIT_HEADER: name})
                    break
                except BufferError:
                    producer.poll(_POLL_S)
        producer.commit_transaction(_REQUEST_S)
    except KafkaException as error:
        with suppress(KafkaException):
            producer.abort_transaction(_REQUEST_S)
        text = f"{error.args[0].str()} (it needs the right WRITE on transactional id {ident})"
        raise ProcessorError(f"the visit of {group} by {name} was not sent: {text}") from None
