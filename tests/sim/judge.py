"""Invariants of a simulated run, at every step and at its end.

Every value that is submitted carries its place in the order of all submits as its metadata, or,
where it has none, in the last digits of its offset, so that "the committed offset never falls
without a rewind" can be judged as "never goes back in the order of submits", rewinds included.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Literal

from offsetmgr.errors import (
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition
from tests.sim.referee import Referee, WatchedBroker, order_of
from tests.sim.weather import LATEST_LANDING_S

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from actors import Future
    from actors.testing import SimStep, SimSystem
    from offsetmgr.coordinator.memory import MemoryCoordinator

    Results = dict[ManagerKey, StopResult]


class SabotageError(RuntimeError):
    """The fault of an actor that the simulation crashes on purpose."""


@dataclass
class Truth:
    """The true state of one partition in one group."""

    submitted: set[int] = field(default_factory=set)
    rewinds: set[int] = field(default_factory=set)
    applied: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    """Submits refused later, because they turned out to be lower than the committed offset."""
    value: OffsetAndMetadata | None = None
    """The committed offset of the broker."""
    is_late: bool = False
    """True if that landed after its request had been given up."""
    late_s: float = -inf
    """When that happened last."""
    acked: int = 0
    """Newest that was acknowledged to the user."""
    tampered_at: int = 0
    """When somebody else last changed it; 0 when something was committed since."""
    deleted: bool = False
    """True if somebody else has deleted it, and at most lost commits have landed and were kept
    from expiring since: nothing is there to be put back."""
    foreign: set[int] = field(default_factory=set)
    """Offsets committed by others; a manager may keep them from expiring."""
    tampering_read: bool = False
    """True if the committer has had the chance to see that."""
    waiting: set[int] = field(default_factory=set)
    """Submits that are not acknowledged since they were last made."""
    settled_before: set[int] = field(default_factory=set)
    """Submits acknowledged before that, and not made again since."""

    @property
    def current(self) -> int:
        """The place of what the broker holds in the order of submits."""
        return order_of(self.value)


@dataclass
class Life:
    """One manager from spawn to stop, as its user knows it."""

    key: ManagerKey
    newest: OffsetAndMetadata | None = None
    dropped: bool = False
    """True if the newest was dropped as a regression."""
    rewinding: bool = False
    """True if the newest was sent as a rewind, so that it may not be dropped."""
    stopping: bool = False


@dataclass
class Promise:
    """A flush or stop under way."""

    deadline: float
    newest: dict[ManagerKey, OffsetAndMetadata | None]
    must_commit: bool
    """True if nothing can excuse that something is left."""
    tampered: set[ManagerKey]
    """Partitions that somebody else changed before the answer."""


class Judge(Referee):
    """Sees everything: as the broker, as the managers' observer, and after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.truths: dict[ManagerKey, Truth] = {}
        self.stood: dict[ManagerKey, list[OffsetAndMetadata | None]] = defaultdict(list)
        """The committed offsets of each partition, one after the other."""
        self.lives: dict[ManagerKey, Life] = {}
        self.sabotage = False
        """True if the next actor that tells the judge something crashes over it."""
        self.promises: list[Promise] = []
        self._next_deadline = inf

    def watch(self, system: SimSystem, coordinator: MemoryCoordinator) -> None:
        self.begin(system)
        self.follow(coordinator)
        coordinator.broker = WatchedBroker(self)
        system.on_step = self.after_step

    def truth(self, key: ManagerKey) -> Truth:
        return self.truths.setdefault(key, Truth())

    # What the user and somebody else do.

    def stands(self, key: ManagerKey, value: OffsetAndMetadata | None) -> None:
        """The broker holds this now."""
        self.truth(key).value = value
        self.stood[key].append(value)

    def submitted(self, key: ManagerKey, value: OffsetAndMetadata, *, rewind: bool) -> None:
        truth, life = self.truth(key), self.lives[key]
        truth.submitted.add(order_of(value))
        truth.settled_before.discard(order_of(value))
        truth.waiting.add(order_of(value))
        life.newest, life.dropped, life.rewinding = value, False, rewind
        if rewind:
            truth.rewinds.add(order_of(value))

    def began_with(self, key: ManagerKey, value: OffsetAndMetadata) -> None:
        truth = self.truth(key)
        truth.submitted.add(order_of(value))
        truth.applied.add(order_of(value))
        self.stands(key, value)

    def tampered(self, key: ManagerKey, value: OffsetAndMetadata | None) -> None:
        truth = self.truth(key)
        for promise in self.promises:
            promise.tampered.add(key)
        truth.tampered_at = self.next_order() if value is None else order_of(value)
        truth.foreign.add(truth.tampered_at)
        truth.tampering_read = False
        truth.deleted = value is None
        # Where a lost commit has just landed, what was acknowledged before is being put back.
        is_quiet = self._system.clock.now() - truth.late_s > 3 * LATEST_LANDING_S
        truth.settled_before = {n for n in truth.submitted if is_quiet and n <= truth.acked}
        # What was committed once before may wait to be committed again.
        truth.settled_before -= truth.waiting
        truth.submitted.add(truth.tampered_at)
        truth.applied.add(truth.tampered_at)
        truth.is_late = False
        self.stands(key, value)

    def promised(
        self, keys: Collection[ManagerKey], timeout_s: float, *, must_commit: bool
    ) -> Promise:
        """A flush or stop is about to be asked for."""
        newest = {key: self.lives[key].newest for key in keys}
        must_commit = must_commit and not any(self.lives[key].stopping for key in keys)
        truths = {key: self.truth(key) for key in keys}
        tampered = {key for key, each in truths.items() if each.tampered_at or each.deleted}
        deadline = self._system.clock.now() + timeout_s
        promise = Promise(deadline, newest, must_commit, tampered)
        self.promises.append(promise)
        self._next_deadline = min(self._next_deadline, promise.deadline)
        return promise

    def cut_short(self, keys: Collection[ManagerKey]) -> None:
        """These are about to be stopped, so what waits in them may be answered early."""
        for promise in self.promises:
            promise.must_commit = promise.must_commit and promise.newest.keys().isdisjoint(keys)

    def kept(self, promise: Promise, future: Future[Results]) -> None:
        self.promises.remove(promise)
        self._next_deadline = min((p.deadline for p in self.promises), default=inf)
        for key, result in future.get(timeout=0).items():
            self._judge_result(key, promise, result)

    def _judge_result(self, key: ManagerKey, promise: Promise, result: StopResult) -> None:
        truth, newest = self.truth(key), promise.newest[key]
        if result.uncommitted is not None:
            if order_of(result.uncommitted) not in truth.submitted:
                self.blame(f"{key}: answered {result}, which nobody submitted")
            excused = truth.foreign or isinstance(result.error, OffsetRegressionError)
            if promise.must_commit and not excused:
                self.blame(f"{key}: nothing went wrong, yet this was left: {result}")
        elif newest is not None and key not in promise.tampered:
            standing = order_of(result.committed)
            if standing not in truth.applied:
                self.blame(f"{key}: called committed and was not: {result}")
            elif standing < order_of(newest) and order_of(newest) not in truth.dropped:
                self.blame(f"{key}: {newest} was to be committed, and the answer is {result}")

    # What the broker sees.

    def refused(self, key: ManagerKey) -> None:
        if self.lives[key].stopping:
            self.truth(key).acked, self.lives[key].newest = 0, None

    def read(self, group: str, found: Collection[TopicPartition]) -> None:
        """A fetch was answered by the broker; nobody learns of it after its deadline."""
        if not self._coordinator.in_flight(group) or self._sent[group].operation != "fetch":
            return
        for partition in found:
            self.truth(ManagerKey(group, *partition)).tampering_read = True

    def took_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        is_late = self.saw_effect(group, offsets)
        for partition, value in offsets.items():
            key = ManagerKey(group, *partition)
            truth, order = self.truth(key), order_of(value)
            if order not in truth.submitted:
                self.blame(f"{key}: {value} was committed, which nobody submitted")
            if not is_late:
                self._judge_order(key, truth, value)
            truth.deleted = truth.deleted and (is_late or value == truth.value)
            truth.tampered_at = order if order in truth.foreign else 0
            truth.settled_before.discard(truth.tampered_at)
            truth.applied.add(order)
            truth.is_late = is_late
            self.stands(key, value)
            truth.late_s = self._system.clock.now() if is_late else truth.late_s

    def _judge_order(self, key: ManagerKey, truth: Truth, value: OffsetAndMetadata) -> None:
        before, order = truth.value, order_of(value)
        if truth.tampered_at:
            if truth.tampering_read and order in truth.settled_before:
                self.blame(f"{key}: {value} was committed over somebody else's {before}")
            return
        if before is None or truth.is_late:
            return
        rewound = any(truth.current < rewind <= order for rewind in truth.rewinds)
        fell = self.fell(key, before, value)
        if order < truth.current or (fell and not rewound):
            self.blame(f"{key}: the committed offset went back from {before} to {value}")

    def fell(self, key: ManagerKey, before: OffsetAndMetadata, value: OffsetAndMetadata) -> bool:
        """True if it takes a rewind to commit ``value`` over ``before``."""
        del key
        return value.offset < before.offset

    # What the managers tell.

    def told_initial(
        self, key: ManagerKey, since: int, initial: Future[OffsetAndMetadata | None]
    ) -> None:
        """Somebody waits for it; ``since`` is the place of its spawn in what stood."""
        try:
            value = initial.get(timeout=0)
        except ManagerStoppedError:
            return
        self.met["initial offset: " + ("none" if value is None else "one")] += 1
        self.began_at(key, value, [None, *self.stood[key]][since:])

    def began_at(
        self,
        key: ManagerKey,
        value: OffsetAndMetadata | None,
        stood: list[OffsetAndMetadata | None],
    ) -> None:
        """The broker held it when the manager was spawned, or later; or it is being put back."""
        truth = self.truth(key)
        is_put_back = truth.current < order_of(value) in truth.applied
        if value not in stood and not is_put_back:
            self.blame(f"{key}: told {value} as its initial offset; committed were {stood}")

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        for key, offset in offsets.items():
            truth = self.truth(key)
            if order_of(offset) not in truth.applied:
                self.blame(f"{key}: {offset} was acknowledged, and never was committed")
            if order_of(offset) not in truth.foreign:
                truth.acked = max(truth.acked, order_of(offset))
            truth.waiting = {order for order in truth.waiting if order > order_of(offset)}
        self._crash()

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """A commit or fetch failed, or a regression was dropped."""
        life = self.lives[key]
        if error.code == "OFFSET_CHANGED_EXTERNALLY" and not self.truth(key).foreign:
            self.blame(f"{key}: nobody else has committed there, and yet: {error}")
        if isinstance(error, OffsetRegressionError) and life.newest is not None:
            life.dropped = life.newest.offset == error.offset
            if life.dropped:
                self.truth(key).dropped.add(order_of(life.newest))
            if life.dropped and life.rewinding:
                self.blame(f"{key}: dropped a rewind: {error}")
        self._crash()

    def requested(
        self,
        kind: Literal["commit", "fetch"],
        group: str,
        partitions: int,
        failures: int,
        duration_s: float,
    ) -> None:
        del kind, group, partitions, failures, duration_s
        self._crash()

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        if not self.lives[key].stopping:
            self.blame(f"{key}: ended, though nobody stopped it")
        if result.uncommitted is not None:
            self.lives[key].newest = None
            if not getattr(result.error, "retriable", True):
                # Nothing may be written there any more, nor put right.
                self.truth(key).acked = 0
        self._crash()

    def _crash(self) -> None:
        if self.sabotage:
            self.sabotage = False
            raise SabotageError("on purpose, in the middle of a step")

    # After each step, and at the end.

    def after_step(self, step: SimStep) -> None:
        for group in self._sent:
            self.learn_answer(group)
        if self._system.clock.now() > self._next_deadline:
            self.blame(f"{step}: a flush or stop was not answered by its deadline")
        self.check()

    def owed(self, key: ManagerKey) -> OffsetAndMetadata | None:
        life = self.lives.get(key)
        return None if life is None or life.dropped else life.newest

    def final(self) -> None:
        """All that was acknowledged or submitted stands, unless somebody else changed it."""
        for group in self._sent:
            self.learn_answer(group)
        if self.promises:
            self.blame(f"never answered: {self.promises}")
        for key, truth in self.truths.items():
            if truth.tampered_at or truth.deleted:
                continue
            if truth.current < truth.acked:
                self.blame(f"{key}: {truth.acked} was acknowledged; at last {truth.current} stands")
            newest = self.owed(key)
            if newest is not None and not truth.foreign and truth.current != order_of(newest):
                self.blame(f"{key}: {newest} was submitted; at last {truth.current} stands")
        self.check()
