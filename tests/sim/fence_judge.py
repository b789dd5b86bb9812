"""What must hold where several services with a fence take groups over from one another.

All services of a run submit in one order: the offset of each submit is its place in it, and its
metadata is the number of the service.  So what a service commits can be told from what others do.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.fence.keeper import HEARTBEATS, LOOK_S
from offsetmgr.coordinator.fence.seat import FENCED_INSTANCE_ID, Standing
from offsetmgr.types import ManagerKey
from tests.sim.referee import Referee
from tests.sim.seats import BEAT, COMMIT, JOIN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.coordinator.base import CommitResult
    from offsetmgr.types import OffsetAndMetadata, TopicPartition
    from tests.sim.fenced import FencedService
    from tests.sim.processes import Process
    from tests.sim.seats import Message

SESSION_S: Final = 18.0


class FenceJudge(Referee):
    """Sees what is sent, what has an effect in Kafka, and how each service stands."""

    def __init__(self) -> None:
        super().__init__()
        self.services: dict[str, FencedService] = {}
        """All that ever started, by name."""
        self.last: dict[str, FencedService] = {}
        """Who was given the seat of a group last and may keep it, whether or not it lived to."""
        self.orphaned: dict[str, None] = {}
        """Groups where all services may end fenced; see DESIGN.md for these limits."""
        self.calm = False
        """Whether nothing goes wrong between services and Kafka."""
        self.committed_values: dict[ManagerKey, set[int]] = defaultdict(set)
        self._unheard: dict[tuple[str, str], float] = {}
        """When a place was given that nobody has sat down on since, by group and service."""
        self._ousted: dict[tuple[str, str], str] = {}
        """Services that had a group when another one took it over, and which that was."""
        self._passed_over: dict[tuple[str, str], None] = {}
        """Services that had a group when the place was given to another one, seated or not."""
        self._sat: dict[tuple[str, str], None] = {}
        """Who sat in Kafka's eyes, and did not leave, by group."""
        self._unaware: dict[tuple[str, str], None] = {}
        """Those of them who had not heard of it when a newer one sat down."""
        self._stands: dict[ManagerKey, OffsetAndMetadata] = {}
        self._beats: dict[tuple[str, str], int] = defaultdict(int)
        self._fenced: dict[str, dict[str, None]] = defaultdict(dict)

    # What is sent.

    def sending(self, process: Process, message: Message) -> None:
        """A service sends a request about one of its groups."""
        service = self.services[process.name]
        if message.key in {JOIN, COMMIT} and service.standing(message.group) is Standing.FENCED:
            self.blame(f"{service} is fenced and still sends {message}")
        if message.key != BEAT:
            return
        self._beats[service.name, message.group] += 1
        lived_s = self._system.clock.now() - service.born_s
        pause_s = SESSION_S / HEARTBEATS if self.calm else LOOK_S
        if self._beats[service.name, message.group] > lived_s / pause_s + 1:
            self.blame(f"{service}: more heartbeats for {message.group} than it needs")

    # What Kafka does.

    def seated(self, group: str, client_id: str) -> None:
        """A member is in its place."""
        newer = self.services[client_id]
        self._unheard.pop((group, client_id), None)
        for older in self.services.values():
            if older is not newer and older.has_had(group):
                self.met["fence: takeover"] += 1
                self._ousted.setdefault((older.name, group), newer.name)
            elif older is not newer and (older.name, group) in self._sat:
                self._unaware[older.name, group] = None
        self._sat[client_id, group] = None

    def granted(self, group: str, client_id: str) -> None:
        """A member is given the place.

        One that lost it to another, unaware of that, asks for it while nobody has it: it finds out
        by what it is given, also where the other one died before it sat down.  But its successor,
        where that has sat there and lost it too, cannot know why.  Nor can one whose last answer
        was lost for so long that this place lapsed too.
        """
        given = self.services[client_id]
        for other in self.services.values():
            if other is not given and other.has_had(group):
                self._passed_over[other.name, group] = None
        if given.has_had(group) and (client_id, group) in self._passed_over:
            self.met["fence: passed over service let in"] += 1
        else:
            self._passed_over.pop((client_id, group), None)
            self.last[group] = given
        now_s = self._system.clock.now()
        unheard_s = self._unheard.get((group, client_id), now_s)
        self._unheard[group, client_id] = now_s
        if now_s - unheard_s >= SESSION_S:
            self.met["fence: place lapsed unheard"] += 1
            self.orphaned[group] = None
        unaware = (client_id, group) in self._unaware and given.has_had(group)
        if unaware or (client_id, group) in self._ousted:
            self.met["fence: ousted service let in"] += 1
            self.orphaned[group] = None

    def left(self, group: str, client_id: str, asked_by: str) -> None:
        """A member's place was given up."""
        self._sat.pop((client_id, group), None)
        if client_id != asked_by:
            self.blame(f"{asked_by} took away the place of {client_id} in {group}")

    def forgotten(self, group: str) -> None:
        """A coordinator moved and forgot a newcomer, who meets the one before it as if newer."""
        self.met["fence: newcomer forgotten"] += 1
        self.orphaned[group] = None

    def took_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Kafka has committed ``offsets``."""
        for partition, value in offsets.items():
            key, name = ManagerKey(group, *partition), f"service{value.metadata}"
            successor = self._ousted.get((name, group))
            if successor is not None:
                self.blame(f"{key}: {name} committed {value} though {successor} had taken over")
            before = self._stands.get(key)
            if before and before.metadata != value.metadata and before.offset > value.offset:
                self.blame(f"{key}: {value} was committed over {before}")
            self._stands[key] = value
            self.committed_values[key].add(value.offset)

    def answered_commit(self, group: str, answer: CommitResult) -> None:
        """Not looked at: this judge follows no coordinator."""

    def read(self, group: str, found: Collection[TopicPartition]) -> None:
        """Whoever reads does no harm."""

    # How the services stand.

    def look(self) -> None:
        """Once fenced, a service stays so."""
        for service in self.services.values():
            fenced = self._fenced[service.name]
            for group in service.groups:
                if service.standing(group) is Standing.FENCED:
                    fenced[group] = None
                elif group in fenced:
                    self.blame(f"{service} was fenced from {group}, and came back by itself")
            if service.loop.trouble:
                self.blame(f"{service}: {service.loop.trouble}")
            for promise in service.promises:
                if self._system.clock.now() > promise:
                    self.blame(f"{service}: a flush or stop was not answered by its deadline")
        self.check()

    def acknowledged(self, key: ManagerKey, value: OffsetAndMetadata) -> None:
        """A service was told that ``value`` is committed."""
        if value.offset not in self.committed_values[key]:
            self.blame(f"{key}: {value} was acknowledged, and never was committed")

    def final(self) -> None:
        """The newest service has committed all it holds; the others know that they may not."""
        for (name, group), successor in self._ousted.items():
            service = self.services[name]
            if service.dead or not service.factory.managers(group):
                continue
            if service.standing(group) is not Standing.FENCED:
                standing = service.standing(group)
                self.blame(f"{name} lost {group} to {successor}, and thinks it is {standing}")
            for handle in service.factory.managers(group):
                status = handle.status()
                told = getattr(status.last_error, "info", None)
                if status.dirty and (told is None or told.code != FENCED_INSTANCE_ID):
                    self.blame(f"{name}: {handle.key} is not told that it is fenced: {status}")
        for group, service in self.last.items():
            lost = service.dead or group in self.orphaned
            for handle in [] if lost else service.factory.managers(group):
                if handle.status().dirty or handle.status().phase != "ready":
                    self.blame(f"{service} was given {group} last, and yet: {handle.status()}")
        self.check()
