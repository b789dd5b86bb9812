"""Produces a message with any bytes as names of headers, which Kafka and other clients allow."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from typing import TYPE_CHECKING

from confluent_kafka import cimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOPIC, _VALUE, _HEADER, _END = map(c_int, (1, 4, 9, 0))
_PRODUCER = 0
_ERROR_CHARS = 512
_WAIT_MS = 60_000


def produce_raw(
    servers: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    library = ctypes.CDLL(cimpl.__file__)
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = c_void_p
    text = ctypes.create_string_buffer(_ERROR_CHARS)
    config = c_void_p(library.rd_kafka_conf_new())
    name = b"bootstrap.servers"
    size = c_size_t(_ERROR_CHARS)
    assert library.rd_kafka_conf_set(config, name, servers.encode(), text, size) == 0
    producer = c_void_p(library.rd_kafka_new(_PRODUCER, config, text, size))
    assert producer.value, text.value
    sent = [_TOPIC, c_char_p(topic.encode()), _VALUE, c_char_p(value), c_size_t(len(value))]
    for header, content in headers:
        sent += [_HEADER, c_char_p(header), c_char_p(content), c_size_t(len(content))]
    try:
        assert library.rd_kafka_producev(producer, *sent, _END) == 0
        assert library.rd_kafka_flush(producer, _WAIT_MS) == 0
    finally:
        library.rd_kafka_destroy(producer)
