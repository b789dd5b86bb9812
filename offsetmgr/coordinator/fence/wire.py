"""The nine requests of Kafka's protocol that a fence needs, as bytes.

Versions are fixed: the newest before the "flexible" encoding, which every broker from 2.4 on
takes.  Integers are big-endian; a string is an int16 length and UTF-8, bytes an int32 length and
the bytes, an array an int32 count and the elements; a length of -1 is null.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_NULL_STRING: Final = struct.pack(">h", -1)
_PARTITION: Final = struct.Struct(">iqi")
_GROUP_KEY: Final = 0
"""``key_type`` of FindCoordinator."""


class Request(NamedTuple):
    """A request without its header."""

    api_key: int
    version: int
    body: bytes

    def framed(self, correlation: int, client_id: str) -> bytes:
        """With length and header, as it goes on the wire."""
        head = struct.pack(">hhi", self.api_key, self.version, correlation) + string(client_id)
        return struct.pack(">i", len(head) + len(self.body)) + head + self.body


class MalformedError(Exception):
    """The broker answered with something that is no answer to the request."""


def string(text: str | None) -> bytes:
    """A string, or null."""
    if text is None:
        return _NULL_STRING
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def blob(raw: bytes) -> bytes:
    """Bytes with their length."""
    return struct.pack(">i", len(raw)) + raw


def array(elements: Iterable[bytes]) -> bytes:
    """An array of encoded elements."""
    parts = list(elements)
    return struct.pack(">i", len(parts)) + b"".join(parts)


class Place(NamedTuple):
    """A member's place in a group; what every commit of a fenced group carries."""

    group: str
    instance: str
    """``group.instance.id``: who joins with the same one takes the place over."""
    member: str
    """Given by the coordinator; empty to ask for a new one."""
    generation: int = -1


def find_coordinator(group: str) -> Request:
    """Ask any broker who coordinates ``group``."""
    return Request(10, 2, string(group) + struct.pack(">b", _GROUP_KEY))


def join_group(
    place: Place,
    protocols: Iterable[str],
    metadata: bytes,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> Request:
    """Ask for a place, offering assignment ``protocols`` of the type ``consumer``, best first."""
    times = struct.pack(">ii", session_timeout_ms, rebalance_timeout_ms)
    who = string(place.member) + string(place.instance) + string("consumer")
    offered = array(string(protocol) + blob(metadata) for protocol in protocols)
    return Request(11, 5, string(place.group) + times + who + offered)


def sync_group(place: Place, assignment: bytes) -> Request:
    """As the leader, tell what the members read: ``assignment`` for itself, the only one."""
    return Request(14, 3, _placed(place) + array([string(place.member) + blob(assignment)]))


def heartbeat(place: Place) -> Request:
    """Keep the place."""
    return Request(12, 3, _placed(place))


def leave_group(place: Place) -> Request:
    """Give the place up."""
    member = string(place.member) + string(place.instance)
    return Request(13, 3, string(place.group) + array([member]))


def describe_group(group: str) -> Request:
    """Ask who the members are."""
    return Request(15, 0, array([string(group)]))


def offset_commit(place: Place, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Request:
    """Commit as the member that has ``place``."""
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), (offset, metadata, leader_epoch) in offsets.items():
        epoch = -1 if leader_epoch is None else leader_epoch
        entry = _PARTITION.pack(partition, offset, epoch) + string(metadata)
        topics.setdefault(topic, []).append(entry)
    named = array(string(topic) + array(entries) for topic, entries in topics.items())
    return Request(8, 7, _placed(place) + named)


def sasl_handshake(mechanism: str) -> Request:
    """Say how the client is going to prove who it is."""
    return Request(17, 1, string(mechanism))


def sasl_authenticate(token: bytes) -> Request:
    """One step of that proof."""
    return Request(36, 1, blob(token))


def _placed(place: Place) -> bytes:
    generation = struct.pack(">i", place.generation)
    return string(place.group) + generation + string(place.member) + string(place.instance)


class Reader:
    """Reads an answer from its beginning; raises MalformedError where it is too short."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._raw):
            raise MalformedError(f"the answer ends after {len(self._raw)} bytes")
        taken, self._at = self._raw[self._at : end], end
        return taken

    def int8(self) -> int:
        """A signed integer of 1 byte."""
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        """A signed integer of 2 bytes."""
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        """A signed integer of 4 bytes."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        """A signed integer of 8 bytes."""
        return int.from_bytes(self._take(8), "big", signed=True)

    def string(self) -> str:
        """A string; empty where it is null."""
        size = self.int16()
        return "" if size < 0 else self._take(size).decode(errors="replace")

    def blob(self) -> bytes:
        """Bytes; empty where they are null."""
        size = self.int32()
        return b"" if size < 0 else self._take(size)

    def count(self) -> range:
        """Length of an array, to be looped over; none where it is null."""
        return range(self.int32())


class Broker(NamedTuple):
    """Where a coordinator listens."""

    host: str
    port: int


class Found(NamedTuple):
    """Answer to ``find_coordinator``."""

    error: int
    broker: Broker


class Joined(NamedTuple):
    """Answer to ``join_group``."""

    error: int
    generation: int
    leader: str
    member: str
    members: tuple[str, ...]
    """All members, where this one leads."""


class Described(NamedTuple):
    """One member, as ``describe_group`` shows it."""

    client_id: str
    host: str
    metadata: bytes


def read_found(raw: bytes) -> Found:
    """Who coordinates the group."""
    reader = Reader(raw)
    reader.int32()  # throttle time
    error = reader.int16()
    reader.string()  # the error in words
    reader.int32()  # the broker's number
    return Found(error, Broker(reader.string(), reader.int32()))


def read_joined(raw: bytes) -> Joined:
    """The place that was given."""
    reader = Reader(raw)
    reader.int32()
    error, generation = reader.int16(), reader.int32()
    reader.string()  # the protocol that was chosen
    leader, member = reader.string(), reader.string()
    members = []
    for _ in reader.count():
        members.append(reader.string())
        reader.string()  # its instance
        reader.blob()  # its metadata
    return Joined(error, generation, leader, member, tuple(members))


def read_error(raw: bytes) -> int:
    """Code of an answer to a heartbeat or to ``sync_group``."""
    reader = Reader(raw)
    reader.int32()
    return reader.int16()


def read_left(raw: bytes) -> int:
    """Code of an answer to ``leave_group``: the request's, else the member's."""
    reader = Reader(raw)
    reader.int32()
    error = reader.int16()
    for _ in reader.count():
        reader.string()
        reader.string()
        error = error or reader.int16()
    return error


def read_described(raw: bytes) -> tuple[int, list[Described]]:
    """Code, and the members of the one group that was asked for."""
    reader = Reader(raw)
    error, members = 0, []
    for _ in reader.count():
        error = reader.int16()
        for _field in ("group", "state", "protocol type", "protocol"):
            reader.string()
        for _ in reader.count():
            reader.string()  # the member's id
            members.append(Described(reader.string(), reader.string(), reader.blob()))
            reader.blob()  # what it reads
    return error, members


def read_committed(raw: bytes) -> dict[tuple[str, int], int]:
    """Code of each partition that was committed, 0 for none."""
    reader = Reader(raw)
    reader.int32()
    codes = {}
    for _ in reader.count():
        topic = reader.string()
        for _ in reader.count():
            partition = reader.int32()
            codes[topic, partition] = reader.int16()
    return codes


def read_handshake(raw: bytes) -> tuple[int, list[str]]:
    """Code, and the mechanisms that the broker takes."""
    reader = Reader(raw)
    return reader.int16(), [reader.string() for _ in reader.count()]


class Authenticated(NamedTuple):
    """Answer to ``sasl_authenticate``."""

    error: int
    text: str
    token: bytes
    lifetime_ms: int
    """After which the broker ends the connection; 0 for never."""


def read_authenticated(raw: bytes) -> Authenticated:
    """One step of the proof, answered."""
    reader = Reader(raw)
    return Authenticated(reader.int16(), reader.string(), reader.blob(), reader.int64())


def subscription(user_data: bytes) -> bytes:
    """Metadata of a member that reads no topic, in the layout of Kafka's own consumers.

    Tools decode it, and the coordinator: offsets of topics that no member reads expire by the
    time of their commit, as those of a group without members do.
    """
    return struct.pack(">h", 0) + array(()) + blob(user_data)


def user_data_of(metadata: bytes) -> bytes:
    """The user data of a member's metadata; empty where it has none or another layout."""
    reader = Reader(metadata)
    try:
        reader.int16()
        for _ in reader.count():
            reader.string()
        return reader.blob()
    except MalformedError:
        return b""


NOTHING_ASSIGNED: Final = struct.pack(">h", 0) + array(()) + blob(b"")
"""An assignment of no partition, in the same layout."""
