"""The fence's part of Kafka's protocol, byte by byte where a mistake would be silent."""

from __future__ import annotations

import struct

import pytest

from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.finder import brokers_of
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import OffsetAndMetadata, TopicPartition

PLACE = wire.Place("g", "i", "m", 3)


def test_a_request_on_the_wire() -> None:
    """Length, key, version, number and client before the body."""
    framed = wire.heartbeat(PLACE).framed(9, "c")
    body = b"\0\1g" + b"\0\0\0\3" + b"\0\1m" + b"\0\1i"
    head = b"\0\x0c" + b"\0\3" + b"\0\0\0\x09" + b"\0\1c"
    assert framed == struct.pack(">i", len(head + body)) + head + body


def test_a_commit_on_the_wire() -> None:
    """Partitions by topic; no epoch is -1, and metadata is UTF-8 whose length is in bytes."""
    request = wire.offset_commit(
        PLACE,
        {
            TopicPartition("t", 1): OffsetAndMetadata(2**63 - 1, "é"),
            TopicPartition("u", 0): OffsetAndMetadata(0, "", 5),
            TopicPartition("t", 2): OffsetAndMetadata(7),
        },
    )
    first = struct.pack(">iqi", 1, 2**63 - 1, -1) + b"\0\2" + "é".encode()
    second = struct.pack(">iqi", 2, 7, -1) + b"\0\0"
    other = struct.pack(">iqi", 0, 0, 5) + b"\0\0"
    topics = b"\0\1t" + b"\0\0\0\2" + first + second + b"\0\1u" + b"\0\0\0\1" + other
    placed = b"\0\1g" + b"\0\0\0\3" + b"\0\1m" + b"\0\1i"
    assert request == wire.Request(8, 7, placed + b"\0\0\0\2" + topics)


def test_a_member_s_leave_speaks_of_the_member() -> None:
    """The request may succeed although it does not succeed for the one member it names."""
    throttle, fine = b"\0\0\0\0", b"\0\0"
    member = b"\0\1m" + b"\xff\xff" + struct.pack(">h", 82)
    assert wire.read_left(throttle + fine + b"\0\0\0\1" + member) == 82
    assert wire.read_left(throttle + struct.pack(">h", 15) + b"\0\0\0\0") == 15


def test_a_group_that_cannot_be_described_is_not_empty() -> None:
    """A coordinator that is just starting names no members, and says so."""
    loading = b"\0\0\0\1" + struct.pack(">h", 14) + b"\0\1g" + b"\0\0" * 3 + b"\0\0\0\0"
    assert wire.read_described(loading) == (14, [])


@pytest.mark.parametrize("raw", [b"", b"\0\0\0\0\0", b"\0\0\0\0\0\0\0\0\0\1\0\x7f"])
def test_an_answer_that_is_cut_short(raw: bytes) -> None:
    """It is malformed, and nothing is read beyond its end."""
    with pytest.raises(wire.MalformedError):
        wire.read_found(raw)


@pytest.mark.parametrize(
    ("text", "brokers"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("SASL_SSL://a:1, b:2", [("a", 1), ("b", 2)]),
        ("[::1]:9,[::2]", [("::1", 9), ("::2", 9092)]),
        ("a:1,,b:65535, ", [("a", 1), ("b", 65_535)]),
    ],
)
def test_addresses_are_those_of_librdkafka(text: str, brokers: list[tuple[str, int]]) -> None:
    """With or without port and protocol, IPv6 in brackets; nothing between commas is nothing."""
    assert brokers_of(text) == brokers


@pytest.mark.parametrize(
    "text", ["", " , ", "a:b", ":1", "a:0", "a:65536", "a:-1", "a:" + "9" * 5_000]
)
def test_a_bad_address_is_refused(text: str) -> None:
    """The fence names what is wrong with it."""
    with pytest.raises(InvalidValueError, match="is no address"):
        brokers_of(text)
