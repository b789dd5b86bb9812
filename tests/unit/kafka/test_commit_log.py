"""Records of Kafka's own log of commits are decoded rightly."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.kafka.commit_log import CommitRecord, decode, partition_of
from offsetmgr.types import ManagerKey

NAME = ManagerKey("etl", "orders", 3)
KEY = b"\0\1\0\3etl\0\6orders\0\0\0\3"
OFFSET = struct.pack(">q", 42)
TIME = struct.pack(">q", 1_500)


@pytest.mark.parametrize(
    ("version", "value"),
    [
        (0, OFFSET + b"\0\2hi" + TIME),
        (1, OFFSET + b"\0\2hi" + TIME + TIME),
        (2, OFFSET + b"\0\2hi" + TIME),
        (3, OFFSET + b"\0\0\0\7" + b"\0\2hi" + TIME),
        (4, OFFSET + b"\0\0\0\7" + b"\3hi" + TIME + b"\0"),
        # The length takes two bytes of a varint.
        (4, OFFSET + b"\0\0\0\7" + b"\xad\2" + b"hi" * 150 + TIME + b"\0"),
    ],
)
@pytest.mark.parametrize("key", [KEY, b"\0\0" + KEY[2:]])
def test_every_version_of_a_commit_is_decoded(version: int, value: bytes, key: bytes) -> None:
    """As OffsetCommitKey.json and OffsetCommitValue.json of Kafka describe them."""
    found = decode(key, struct.pack(">h", version) + value)
    assert found in {CommitRecord(NAME, 42, text, 1.5) for text in ("hi", "hi" * 150)}


def test_a_tombstone_is_decoded_as_a_deletion() -> None:
    """Expired and deleted offsets are a part of the history."""
    assert decode(KEY, None, 1.5) == CommitRecord(NAME, None, "", 1.5)


@pytest.mark.parametrize("kept", range(len(KEY)))
def test_a_record_that_is_cut_off_is_skipped(kept: int) -> None:
    """One unreadable record does not end the history of all others."""
    value = b"\0\3" + OFFSET + b"\0\0\0\7" + b"\0\2hi" + TIME
    assert decode(KEY[:kept], value) is None
    assert decode(KEY, value[:kept]) is None


@given(st.binary(max_size=60))
@example(b"\xff" * 40 + b"\1")
def test_a_garbled_record_is_skipped(garbage: bytes) -> None:
    """The kind: a length so large that no place of memory has it, which ended every history."""
    for version in range(6):
        found = decode(KEY, struct.pack(">hqi", version, 42, 7) + garbage)
        assert found is None or found.key == NAME


def test_records_of_groups_are_skipped() -> None:
    """The same topic also holds the members of groups."""
    assert decode(b"\0\2\0\3etl", b"whatever") is None


@pytest.mark.parametrize(
    ("group", "java_hash"),
    # By "...".hashCode() in jshell; the third is the one number without an absolute value.
    [
        ("etl", 100_765),
        ("orders-etl", 772_761_269),
        ("polygenelubricants", -(2**31)),
        ("ü😀", 2_015_071),
    ],
)
def test_a_group_is_in_the_same_partition_as_in_kafka(group: str, java_hash: int) -> None:
    """Kafka takes Java's hash of the name, of UTF-16 units."""
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_of(group, 50) == expected
