"""Kafka's group coordinator as the fence meets it: groups with one static member, on the wire.

Requests come as bytes and are answered with bytes.  What is modelled: generations, the member that
is replaced by a newer one with the same ``group.instance.id``, the wait before a first join,
sessions that end, and a coordinator that moves and then knows of a group what its log knows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.seat import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.testing import SimSystem

FIND, JOIN, BEAT, LEAVE, SYNC, DESCRIBE, COMMIT = 10, 11, 12, 13, 14, 15, 8
"""Keys of the requests."""

NAMES: Final = {
    FIND: "find", JOIN: "join", BEAT: "heartbeat", LEAVE: "leave", SYNC: "sync",
    DESCRIBE: "describe", COMMIT: "commit",
}  # fmt: skip

_NOT_COORDINATOR: Final = 16
_HEAD: Final = struct.Struct(">ihhi")
_HEAD_SIZE: Final = _HEAD.size


class Message(NamedTuple):
    """A request as it arrives."""

    key: int
    number: int
    """Matches the answer to it."""
    client_id: str
    body: bytes

    @property
    def group(self) -> str:
        """All but one begin with their group."""
        reader = wire.Reader(self.body)
        if self.key == DESCRIBE:
            reader.int32()
        return reader.string()


def message_of(frame: bytes) -> Message:
    """Decode the frame of one request."""
    _, key, _, number = _HEAD.unpack(frame[:_HEAD_SIZE])
    reader = wire.Reader(frame[_HEAD_SIZE:])
    client_id = reader.string()
    skipped = _HEAD_SIZE + len(wire.string(client_id))
    return Message(key, number, client_id, frame[skipped:])


class Watcher(Protocol):
    """Is told what has an effect."""

    def granted(self, group: str, client_id: str) -> None:
        """A member is given the place."""

    def seated(self, group: str, client_id: str) -> None:
        """A member is in its place."""

    def left(self, group: str, client_id: str, asked_by: str) -> None:
        """A member's place was given up."""

    def took_effect(
        self, group: str, client_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """A member's commit."""


class Member(NamedTuple):
    """Who has the only place."""

    name: str
    client_id: str
    protocols: tuple[str, ...]
    metadata: bytes
    session_s: float


class Kept(NamedTuple):
    """What the log knows of a group."""

    generation: int = 0
    member: Member | None = None


class GroupSeat:
    """One group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.member: Member | None = None
        self.state = "empty"
        """Or joining, syncing, stable."""
        self.expires_s = 0.0
        self.waiting: Callable[[bytes], None] = lambda _: None
        """The answer to a join that waits for further members."""
        self.kept = Kept()

    def placed(self, name: str) -> int:
        """Whether the member of that name has the place: 0, else the error."""
        if self.member is None:
            return UNKNOWN_MEMBER_ID
        return FENCED_INSTANCE_ID if self.member.name != name else 0

    def empty(self) -> None:
        """The member is gone."""
        self.member, self.state = None, "empty"
        self.generation += 1
        self.kept = Kept(self.generation)

    def reload(self, now_s: float) -> None:
        """Another coordinator has read the group from its log."""
        self.waiting(_joined(_NOT_COORDINATOR))
        self.waiting = lambda _: None
        self.generation, self.member = self.kept
        self.state = "empty" if self.member is None else "stable"
        if self.member is not None:
            # Of what a member offers only the protocol in use is written.
            self.member = self.member._replace(protocols=self.member.protocols[:1])
            self.expires_s = now_s + self.member.session_s


class Seats:
    """All groups of the simulated Kafka."""

    def __init__(self, system: SimSystem, watcher: Watcher, join_delay_s: float) -> None:
        """``join_delay_s`` is ``group.initial.rebalance.delay.ms``."""
        self._system = system
        self._watcher = watcher
        self._join_delay_s = join_delay_s
        self._groups: dict[str, GroupSeat] = {}
        self._members = 0

    def holder(self, group: str) -> str:
        """Client id of the member; empty where there is none."""
        member = self._of(group).member
        return "" if member is None else member.client_id

    def move(self) -> list[str]:
        """Every group goes to another coordinator; those whose newcomer is forgotten by that."""
        forgotten = []
        for group, seat in self._groups.items():
            kept = seat.kept.member
            if seat.state == "syncing" and kept is not None and kept != seat.member:
                forgotten.append(group)
            seat.reload(self._now())
        return forgotten

    def receive(self, message: Message, answer: Callable[[bytes], None]) -> None:
        """Deal with a request."""
        seat = self._of(message.group)
        if message.key == FIND:
            answer(_found(0))
        elif message.key == JOIN:
            self._join(seat, message, answer)
        elif message.key == SYNC:
            answer(_error(self._sync(seat, message)))
        elif message.key == BEAT:
            answer(_error(self._beat(seat, message)))
        elif message.key == LEAVE:
            answer(_left(self._leave(seat, message)))
        elif message.key == DESCRIBE:
            answer(_described(message.group, seat))
        else:
            answer(self._commit(seat, message))

    def _now(self) -> float:
        return self._system.clock.now()

    def _of(self, group: str) -> GroupSeat:
        seat = self._groups.setdefault(group, GroupSeat(group))
        if seat.state in {"syncing", "stable"} and self._now() >= seat.expires_s:
            seat.empty()
        return seat

    # Who has the place.

    def _join(self, seat: GroupSeat, message: Message, answer: Callable[[bytes], None]) -> None:
        reader = wire.Reader(message.body)
        reader.string()  # the group
        session_s = reader.int32() / 1_000
        reader.int32()  # the time to rebalance
        name, instance, _ = reader.string(), reader.string(), reader.string()
        offered = [(reader.string(), reader.blob()) for _ in reader.count()]
        protocols, metadata = tuple(each for each, _ in offered), offered[0][1]
        error = seat.placed(name) if name else 0
        held = seat.member
        if not error and held is not None and not set(protocols) & set(held.protocols):
            error = INCONSISTENT_GROUP_PROTOCOL
        if error:
            answer(_joined(error))
            return
        if not name:
            self._members += 1
            name = f"{instance}-{self._members}"
        seat.member = Member(name, message.client_id, protocols, metadata, session_s)
        seat.waiting(_joined(FENCED_INSTANCE_ID))
        seat.waiting = answer
        if held is None:
            seat.state = "joining"
            self._system.timers.call_after(self._join_delay_s, lambda: self._joined(seat))
        elif seat.state == "syncing" and held == seat.member:
            self._answer_join(seat, leader=name)
        elif seat.state == "stable" and held.name != name and held.protocols[0] == protocols[0]:
            # The same choice of protocol: no new generation, and no new leader is told.
            seat.kept = Kept(seat.generation, seat.member)
            self._extend(seat)
            self._answer_join(seat, leader=held.name)
        elif seat.state != "joining":
            self._joined(seat, force=True)

    def _joined(self, seat: GroupSeat, *, force: bool = False) -> None:
        if seat.member is None or (seat.state != "joining" and not force):
            return
        seat.generation += 1
        seat.state = "syncing"
        self._extend(seat)
        self._answer_join(seat, leader=seat.member.name)

    def _answer_join(self, seat: GroupSeat, leader: str) -> None:
        if seat.member is None:
            return
        name = seat.member.name
        answer, seat.waiting = seat.waiting, lambda _: None
        answer(_joined(0, seat.generation, leader, name, (name,) if leader == name else ()))
        self._watcher.granted(seat.name, seat.member.client_id)

    def _extend(self, seat: GroupSeat) -> None:
        if seat.member is not None:
            seat.expires_s = self._now() + seat.member.session_s

    def _sync(self, seat: GroupSeat, message: Message) -> int:
        error = self._placed(seat, _place(message))
        if error or seat.member is None:
            return error
        if seat.state == "syncing":
            seat.state = "stable"
            seat.kept = Kept(seat.generation, seat.member)
            self._extend(seat)
            self._watcher.seated(message.group, seat.member.client_id)
        return 0

    def _beat(self, seat: GroupSeat, message: Message) -> int:
        error = self._placed(seat, _place(message))
        if not error:
            self._extend(seat)
        return error

    def _placed(self, seat: GroupSeat, place: wire.Place) -> int:
        error = seat.placed(place.member)
        if error:
            return error
        if seat.state == "joining":
            return REBALANCE_IN_PROGRESS
        return ILLEGAL_GENERATION if place.generation != seat.generation else 0

    def _leave(self, seat: GroupSeat, message: Message) -> int:
        reader = wire.Reader(message.body)
        reader.string()  # the group
        reader.int32()  # one member
        name = reader.string()
        # Without a name it is whoever has the instance.
        error = seat.placed(name) if name or seat.member is None else 0
        if not error and seat.member is not None:
            self._watcher.left(seat.name, seat.member.client_id, message.client_id)
            seat.waiting(_joined(UNKNOWN_MEMBER_ID))
            seat.waiting = lambda _: None
            seat.empty()
        return error

    # What is committed.

    def _commit(self, seat: GroupSeat, message: Message) -> bytes:
        place, offsets = _offsets(message)
        error = self._placed(seat, place)
        if not error and seat.state == "syncing":
            error = REBALANCE_IN_PROGRESS
        if not error:
            self._extend(seat)
            self._watcher.took_effect(message.group, self.holder(message.group), offsets)
        return _committed(offsets, error)


def refused(message: Message, code: int) -> bytes:
    """The answer that says nothing but ``code``."""
    if message.key == FIND:
        return _found(code)
    if message.key == JOIN:
        return _joined(code)
    if message.key == LEAVE:
        return _left(code)
    if message.key == DESCRIBE:
        return _described(message.group, GroupSeat(message.group), code)
    if message.key == COMMIT:
        return _committed(_offsets(message)[1], code)
    return _error(code)


def _place(message: Message) -> wire.Place:
    reader = wire.Reader(message.body)
    group, generation = reader.string(), reader.int32()
    member, instance = reader.string(), reader.string()
    return wire.Place(group, instance, member, generation)


def _offsets(message: Message) -> tuple[wire.Place, dict[TopicPartition, OffsetAndMetadata]]:
    reader = wire.Reader(message.body)
    group, generation = reader.string(), reader.int32()
    member, instance = reader.string(), reader.string()
    place = wire.Place(group, instance, member, generation)
    offsets = {}
    for _ in reader.count():
        topic = reader.string()
        for _ in reader.count():
            partition, offset = reader.int32(), reader.int64()
            epoch, metadata = reader.int32(), reader.string()
            value = OffsetAndMetadata(offset, metadata, None if epoch < 0 else epoch)
            offsets[TopicPartition(topic, partition)] = value
    return place, offsets


_NO_THROTTLE: Final = struct.pack(">i", 0)


def _found(code: int) -> bytes:
    head = struct.pack(">ihhi", 0, code, -1, 1)
    return head + wire.string("kafka") + struct.pack(">i", 9092)


def _joined(
    code: int,
    generation: int = -1,
    leader: str = "",
    member: str = "",
    members: tuple[str, ...] = (),
) -> bytes:
    who = wire.string("") + wire.string(leader) + wire.string(member)
    named = wire.array(wire.string(each) + wire.string(None) + wire.blob(b"") for each in members)
    return struct.pack(">ihi", 0, code, generation) + who + named


def _error(code: int) -> bytes:
    return struct.pack(">ih", 0, code)


def _left(code: int) -> bytes:
    member = wire.string("") + wire.string("") + struct.pack(">h", code)
    return struct.pack(">ih", 0, 0) + wire.array([member])


def _described(group: str, seat: GroupSeat, code: int = 0) -> bytes:
    members = []
    if seat.member is not None:
        # Of a member that has not heard of its place yet no metadata is shown.
        metadata = seat.member.metadata if seat.state == "stable" else b""
        who = wire.string(seat.member.name) + wire.string(seat.member.client_id)
        members = [who + wire.string("/10.0.0.1") + wire.blob(metadata) + wire.blob(b"")]
    state = b"".join(wire.string(each) for each in (group, seat.state, "consumer", ""))
    return wire.array([struct.pack(">h", code) + state + wire.array(members)])


def _committed(offsets: Mapping[TopicPartition, OffsetAndMetadata], code: int) -> bytes:
    topics = (
        wire.string(topic) + wire.array([struct.pack(">ih", partition, code)])
        for topic, partition in offsets
    )
    return _NO_THROTTLE + wire.array(topics)
