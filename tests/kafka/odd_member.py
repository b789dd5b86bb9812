"""A group whose only member has an assignment of strange bytes, which Kafka takes unread."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from offsetmgr.devkafka import DevKafka

_JOIN, _SYNC = 11, 14
_SESSION_MS: Final = 600_000
"""It sends no heartbeat."""


@contextmanager
def member_of(
    kafka: DevKafka, group: str, assignment: Sequence[tuple[bytes, int]]
) -> Iterator[None]:
    """Keep a member of ``group`` to which these topics and partitions are assigned."""
    host, _, port = kafka.bootstrap_servers.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60.0) as connection:
        ask = _Requests(connection)
        times = struct.pack(">ii", _SESSION_MS, _SESSION_MS)
        protocols = struct.pack(">i", 1) + _text(b"range") + _data(b"\0\0\0\0\0\0\xff\xff\xff\xff")
        joined = ask(
            _JOIN, 2, _text(group.encode()) + times + _text(b"") + _text(b"consumer") + protocols
        )
        code, generation = struct.unpack_from(">hi", joined, 4)
        assert code == 0
        at = 10
        for _ in range(3):  # protocol, leader, member
            (length,) = struct.unpack_from(">h", joined, at)
            member, at = joined[at + 2 : at + 2 + length], at + 2 + length
        assigned = struct.pack(">hi", 0, len(assignment))
        for topic, partition in assignment:
            assigned += _text(topic) + struct.pack(">ii", 1, partition)
        assigned += struct.pack(">i", -1)
        named = _text(group.encode()) + struct.pack(">i", generation) + _text(member)
        synced = ask(_SYNC, 1, named + struct.pack(">i", 1) + _text(member) + _data(assigned))
        assert struct.unpack_from(">h", synced, 4) == (0,)
        yield


class _Requests:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    def __call__(self, key: int, version: int, body: bytes) -> bytes:
        head = struct.pack(">hhi", key, version, 1) + _text(b"odd")
        self._connection.sendall(_data(head + body))
        (size,) = struct.unpack(">i", self._file.read(4))
        return self._file.read(size)[4:]


def _text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def _data(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value
