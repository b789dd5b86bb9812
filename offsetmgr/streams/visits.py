"""Visits on Spark: one message through the loop's topic, which the query gives to each bucket."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.streams.buckets import VISIT_HEADER
from offsetmgr.streams.codecs import whole
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.kafka import PARTITIONER, KafkaWriter
from offsetmgr.streams.messages import MAX_BYTES, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.streams.graph import GroupGraph

_REQUEST_MS: Final = 30_000
_MOST_BYTES: Final = MAX_BYTES // 2


def request_visit(kafka: Mapping[str, Any], graph: GroupGraph, name: str, meta: Any) -> None:
    """Write the message that asks for a visit of all rows.

    Raises InvalidValueError where JSON cannot hold ``meta``, ProcessorError where Kafka does not
    take the message.
    """
    try:
        value = msgspec.json.encode(whole(meta))
    except Exception as error:  # noqa: BLE001 -- msgspec, or a hook of the value's type
        fix = "give what JSON can hold"
        raise InvalidValueError("meta", meta, f"cannot be sent ({error})", fix) from None
    if len(value) > _MOST_BYTES:
        fix = "give a reference to what is large"
        raise InvalidValueError("meta", meta, f"has more than {_MOST_BYTES:,} bytes", fix)
    request = Record(graph.loop_topic, b"", value, [(VISIT_HEADER, name.encode())])
    ours = {"partitioner": PARTITIONER, "message.timeout.ms": _REQUEST_MS}
    with closing(KafkaWriter({**kafka, **ours})) as writer:
        try:
            writer.write(request).result()
        except KafkaRequestError as error:
            text = f"the visit of {graph.group} by {name} was not sent: {error}"
            raise ProcessorError(text) from error
