"""Produces a message with any bytes as names of headers, which Kafka and other clients allow."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from confluent_kafka import cimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOPIC, _VALUE, _HEADER = 1, 4, 9
_PRODUCER = 0
_ERROR_CHARS = 512
_WAIT_MS = 60_000


class _Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("value", ctypes.c_char_p),
        ("size", ctypes.c_ssize_t),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("memory", _Memory),
        ("header", _Header),
        ("padding", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """``rd_kafka_vu_t``."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Union))


def produce_raw(
    servers: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    library = ctypes.CDLL(cimpl.__file__)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_conf_set.argtypes = [pointer, *[ctypes.c_char_p] * 3, size]
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, ctypes.c_char_p, size]
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_produceva.argtypes = [pointer, ctypes.POINTER(_Argument), size]
    library.rd_kafka_produceva.restype = pointer
    library.rd_kafka_flush.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_destroy.argtypes = [pointer]
    text = ctypes.create_string_buffer(_ERROR_CHARS)
    config = library.rd_kafka_conf_new()
    name = b"bootstrap.servers"
    assert library.rd_kafka_conf_set(config, name, servers.encode(), text, _ERROR_CHARS) == 0
    producer = library.rd_kafka_new(_PRODUCER, config, text, _ERROR_CHARS)
    assert producer, text.value
    arguments = (_Argument * (2 + len(headers)))()
    arguments[0].kind, arguments[0].value.text = _TOPIC, topic.encode()
    arguments[1].kind, arguments[1].value.memory = _VALUE, _Memory(value, len(value))
    for index, (header, content) in enumerate(headers, 2):
        arguments[index].kind = _HEADER
        arguments[index].value.header = _Header(header, content, len(content))
    try:
        assert not library.rd_kafka_produceva(producer, arguments, len(arguments))
        assert library.rd_kafka_flush(producer, _WAIT_MS) == 0
    finally:
        library.rd_kafka_destroy(producer)
