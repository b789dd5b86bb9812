"""Invariants of clients, service and Kafka under every fault.

Every submitted value carries its place in the order of all submits as its metadata.  The judge
sees it submitted, sees which requests reach which life of the service, sees what takes effect in
Kafka and what clients are told.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.client import wire
from offsetmgr.errors import OffsetRegressionError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.sim.referee import Referee, order_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.client.transport import Answer
    from offsetmgr.types import FlushResult, TopicPartition
    from tests.sim.drivers import Driver
    from tests.sim.network import Call
    from tests.sim.server import ServiceProcess

OK: Final = 200

LEASE_S: Final = 6.0

HASTE_S: Final = 1.0


class Rank(NamedTuple):
    """The order of the submits of one name; the later one is larger."""

    life: int
    order: int


NEVER: Final = Rank(0, 0)


class Submitted(NamedTuple):
    """One value, and who submitted it."""

    name: str
    """Of the client."""
    life: int
    """Which of that name's processes."""
    value: OffsetAndMetadata
    rewind: bool

    @property
    def rank(self) -> Rank:
        """Its place in the order of this client's submits, the newest life last."""
        return Rank(self.life, order_of(self.value))


@dataclass
class Fate:
    """The true state of one partition in one group."""

    current: OffsetAndMetadata | None = None
    """The committed offset of the broker."""
    late: bool = False
    """True if that landed after its request had been given up."""
    landed: OffsetAndMetadata | None = None
    """The last that landed late; it may be committed again to keep it alive."""
    orphaned: bool = False
    """True if nobody may be left to put it right: the service ended, or the broker refused it."""
    applied: set[int] = field(default_factory=set)
    last: dict[str, Rank] = field(default_factory=dict)
    """By client, the newest that took effect in time."""
    acked: dict[str, Rank] = field(default_factory=dict)
    """By client, the newest that it was told is committed."""
    answered: dict[str, Rank] = field(default_factory=dict)
    """The same without events and later ones, which have no version: they do not end a rewind."""
    rewinds: dict[str, list[Rank]] = field(default_factory=lambda: defaultdict(list))
    tampered: bool = False
    """True if somebody else ever changed it."""

    def heard(self, submit: Submitted, *, event: bool) -> None:
        """A client was told, by an event or an answer, that its ``submit`` is committed."""
        for told in (self.acked,) if event else (self.acked, self.answered):
            told[submit.name] = max(told.get(submit.name, NEVER), submit.rank)


@dataclass
class Heard:
    """The requests that one life of the service has received."""

    newest: dict[str, int] = field(default_factory=dict)
    """By client, the newest incarnation that it has answered."""
    orders: set[int] = field(default_factory=set)
    """Values in requests that arrived, from whomever."""
    accepted: dict[ManagerKey, int] = field(default_factory=dict)
    """The newest value that it has said to have taken."""


class ServiceJudge(Referee):
    """Sees clients, requests and broker."""

    def __init__(self) -> None:
        super().__init__()
        self.submits: dict[int, Submitted] = {}
        self.fates: dict[ManagerKey, Fate] = defaultdict(Fate)
        self.rivals = False
        """True if several clients want the same partitions."""
        self.heard = Heard()
        self._banned: set[int] = set()

    def began(self, service: ServiceProcess) -> None:
        """A new life of the service, which knows nothing of the one before."""
        self.heard = Heard()
        self._service = service
        self._banned.clear()
        self._orphan_late()
        self.follow(service.coordinator)

    def _orphan_late(self) -> None:
        """A life of the service is over: what landed late is not verified any more."""
        for fate in self.fates.values():
            fate.orphaned = fate.orphaned or fate.late

    # What users do, and are told.

    def submitted(self, key: ManagerKey, order: int, submit: Submitted) -> None:
        self.submits[order] = submit
        if submit.rewind:
            self.fates[key].rewinds[submit.name].append(submit.rank)

    def told_committed(
        self, key: ManagerKey, name: str, value: OffsetAndMetadata, *, event: bool = False
    ) -> None:
        fate, order = self.fates[key], order_of(value)
        if order not in fate.applied:
            self.blame(f"{key}: {name} was told that {value} is committed, and it never was")
        elif order in self.submits and self.submits[order].name == name:
            fate.heard(self.submits[order], event=event)

    def acknowledged(self, key: ManagerKey, name: str, value: OffsetAndMetadata) -> None:
        """A client was told that ``value``, or what it submitted later, is committed."""
        fate, order = self.fates[key], order_of(value)
        done = [self.submits[n] for n in fate.applied if n in self.submits]
        mine = [submit.rank for submit in done if submit.name == name]
        if max(mine, default=NEVER) < self.submits[order].rank and not fate.tampered:
            self.blame(f"{key}: {name} was told that {value} is committed, and nothing was since")
        if order in fate.applied:
            fate.heard(self.submits[order], event=False)
        self.met["client: sync submit acknowledged"] += 1

    def told_initial(self, key: ManagerKey, value: OffsetAndMetadata) -> None:
        """A client was told that ``value`` was committed when its manager started."""
        if order_of(value) not in self.fates[key].applied:
            self.blame(f"{key}: {value} is called the initial offset, and never was committed")

    def settled(
        self, name: str, newest: Mapping[ManagerKey, OffsetAndMetadata], result: FlushResult
    ) -> None:
        """A flush or stop of what was ``newest`` was answered."""
        for key, value in result.committed.items():
            wanted = newest.get(key)
            # The client cannot tell a later one from somebody else's, as with an event.
            is_later = order_of(value) > order_of(wanted)
            self.told_committed(key, name, value, event=is_later)
            if wanted is not None and not self.fates[key].tampered:
                standing = order_of(value)
                mine = standing in self.submits and self.submits[standing].name == name
                if mine and self.submits[standing].rank < self.submits[order_of(wanted)].rank:
                    self.blame(f"{key}: {wanted} was flushed; called committed was {value}")
        for key, left in result.uncommitted.items():
            if order_of(left.offset) not in self.submits:
                self.blame(f"{key}: {left.offset} is called uncommitted; nobody submitted it")
        missing = newest.keys() - result.committed.keys() - result.uncommitted.keys()
        if missing:
            self.blame(f"{name}: the answer says nothing of {missing}")

    # What reaches the service.

    def arrives(self, call: Call) -> None:
        name, incarnation = _caller(call)
        orders = {order for _, order in _offsets(call)}
        self.met["request: version seen before"] += bool(orders & self.heard.orders)
        if incarnation < self.heard.newest.get(name, 0):
            self.met["request: of a fenced incarnation"] += 1
            # What stands already may be committed again, to keep it alive.
            stood = {order for fate in self.fates.values() for order in fate.applied}
            self._banned |= orders - self.heard.orders - stood
        self.heard.orders |= orders

    def answered(self, call: Call, answer: Answer) -> None:
        name, incarnation = _caller(call)
        if answer.status != OK:
            return
        heard = self.heard
        heard.newest[name] = max(heard.newest.get(name, 0), incarnation)
        if call.path == wire.STOP:
            self._stopped(json.loads(call.request.body or b"{}"), json.loads(answer.body))
        refused = _refused(answer) if call.path == wire.OFFSETS and call.request.body else set()
        for key, order in _offsets(call):
            if key.topic_partition not in refused:
                before = heard.accepted.get(key)
                if before is None or self._follows(before, order):
                    heard.accepted[key] = order

    def _stopped(self, asked: dict[str, Any], answer: dict[str, Any]) -> None:
        """A stop in less time than two requests take may leave a value, and says so."""
        if asked["timeout_s"] < HASTE_S:
            for each in answer["uncommitted"]:
                key = ManagerKey(each["group"], each["topic"], each["partition"])
                if self.heard.accepted.get(key) == int(each["metadata"]):
                    del self.heard.accepted[key]

    def _follows(self, before: int, order: int) -> bool:
        """True if a value that was taken later counts: an older one is passed over."""
        first, second = self.submits[before], self.submits[order]
        return first.name != second.name or first.rank < second.rank

    # What the broker sees.

    def tampered(self, key: ManagerKey, value: OffsetAndMetadata | None) -> None:
        fate = self.fates[key]
        fate.tampered, fate.current = True, value
        if value is not None:
            fate.applied.add(order_of(value))

    def took_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        late = self.saw_effect(group, offsets)
        for partition, value in offsets.items():
            key = ManagerKey(group, *partition)
            fate, order = self.fates[key], order_of(value)
            submit = self.submits.get(order)
            if submit is None:
                if not fate.tampered:
                    self.blame(f"{key}: {value} was committed, which nobody submitted")
            elif not late:
                self._judge(key, fate, submit)
                fate.last[submit.name] = max(fate.last.get(submit.name, NEVER), submit.rank)
            else:
                # What was known to be committed before is put back, which may not be the newest.
                fate.last.clear()
                fate.landed = value
            fate.applied.add(order)
            fate.current, fate.late = value, late
            fate.orphaned = late and self._service.draining

    def _judge(self, key: ManagerKey, fate: Fate, submit: Submitted) -> None:
        before, value, order = fate.current, submit.value, order_of(submit.value)
        if order in self._banned:
            self.blame(f"{key}: {value} was committed for a fenced incarnation of {submit.name}")
        last = fate.last.get(submit.name, NEVER)
        if submit.rank < last:
            self.blame(f"{key}: {submit} was committed after a newer submit: {last}")
        if before is None or before == fate.landed or fate.tampered:
            return
        if value.offset >= before.offset:
            return
        known = fate.answered.get(submit.name, NEVER) if self.rivals else last
        if not any(known < rewind <= submit.rank for rewind in fate.rewinds[submit.name]):
            self.blame(f"{key}: the committed offset fell from {before} to {value}")

    def refused(self, key: ManagerKey) -> None:
        if self._service.assembly.factory.get(key) is None:
            self.fates[key].orphaned = True

    def read(self, group: str, found: Collection[TopicPartition]) -> None:
        """The broker was read; that tells nothing here."""

    # At the end.

    def check_live(self, driver: Driver) -> None:
        """All that a live client holds is committed at last, unless it was told why not."""
        for key, value in driver.newest.items():
            fate, held = self.fates[key], driver.client.core.partitions.get(key)
            if fate.tampered or self.rivals or held is None or fate.current == value:
                continue
            dropped = isinstance(held.error, OffsetRegressionError) or value in driver.passed_over
            if not dropped or not self._passed(key, order_of(value)):
                self.blame(f"{key}: {driver.name} holds {value}; at last {fate.current} stands")

    def check_end(self, *, kept: bool) -> None:
        """Nothing acknowledged is lost; with ``kept``, nothing that the service has taken.

        The exception is a commit that landed late, shortly before the service ended.
        """
        for group in self._sent:
            self.learn_answer(group)
        for key, fate in self.fates.items():
            if fate.tampered or fate.orphaned or fate.current is None:
                continue
            submit = self.submits[order_of(fate.current)]
            acked = fate.acked.get(submit.name, NEVER)
            if submit.rank < acked:
                self.blame(f"{key}: {acked} was acknowledged; at last {fate.current} stands")
        for key, order in self.heard.accepted.items() if kept else ():
            fate = self.fates[key]
            if order_of(fate.current) == order or fate.tampered or fate.orphaned or self.rivals:
                continue
            if not self._passed(key, order):
                self.blame(f"{key}: {order} was taken; at last {fate.current} stands")

    def _passed(self, key: ManagerKey, order: int) -> bool:
        """True if it was dropped for something higher that was committed before."""
        current = self.fates[key].current
        return current is not None and current.offset > self.submits[order].value.offset


def _caller(call: Call) -> tuple[str, int]:
    headers = call.request.headers
    return headers["Offsetmgr-Client"], int(headers["Offsetmgr-Incarnation"])


def _offsets(call: Call) -> list[tuple[ManagerKey, int]]:
    """The values in a request, by their place in the order of submits."""
    if call.path != wire.OFFSETS or not call.request.body:
        return []
    body: dict[str, Any] = json.loads(call.request.body)
    return [
        (ManagerKey(body["group"], each["topic"], each["partition"]), int(each["metadata"]))
        for each in body["offsets"]
    ]


def _refused(answer: Answer) -> set[TopicPartition]:
    return {wire.partition_of(each) for each in json.loads(answer.body)["refused"]}
