"""The Factory's actor, parent of all managers and committers, and the groups that outlive it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors import PooledActor
from offsetmgr.manager.group_committer import Attach, Expedite, Group, GroupCommitter, Vacant
from offsetmgr.manager.offset_manager import OffsetManager, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from actors import ActorRef
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.partition_state import PartitionState
    from offsetmgr.types import TopicPartition

INBOX_LIMIT: Final = 1_000_000
"""A committer, or the factory, hears from each manager a few times at most between two turns."""


class ManagerRegistry:
    """The live managers: one per group, topic and partition.

    Names are taken and given back under one lock; looking one up needs none.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.groups: dict[str, Group] = {}
        """Changed with the lock held; a group is kept until its committer is done."""

    def find(self, key: Any) -> PartitionState | None:
        """Return the live manager of ``key``; None also where it is no key."""
        try:
            group, topic, partition = key
            # A TopicPartition is such a tuple, and takes longer to make.
            return self.groups[group].states[topic, partition]  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            return None

    def states_of(self, group: str) -> Mapping[TopicPartition, PartitionState]:
        """Return the live managers of ``group``, to be looked at and not kept."""
        held = self.groups.get(group)
        return {} if held is None else held.states

    def states(self, group: str | None = None) -> list[PartitionState]:
        """Return all live managers (of one group), as of now."""
        with self.lock:
            if group is not None:
                return list(self.states_of(group).values())
            return [state for held in self.groups.values() for state in held.states.values()]

    def release(self, state: PartitionState) -> None:
        """Give the name of ``state`` back, unless another has it already."""
        with self.lock:
            states = self.states_of(state.key.group)
            if states.get(state.submits.partition) is state:
                del self.groups[state.key.group].states[state.submits.partition]

    def drop(self, vacant: Vacant) -> bool:
        """Forget a group whose committer is done, unless managers are on their way to it."""
        group = vacant.group
        with self.lock:
            done = group.told == vacant.attached and not group.states
            if done:
                del self.groups[group.submits.name]
            return done


class Start(NamedTuple):
    """Start the managers of one group that are not running."""

    group: str
    states: Mapping[TopicPartition, PartitionState]


class FactoryActor(PooledActor):
    """Parent of all managers and committers; restarts them, however often they fail."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: CommitSettings,
        rng: Random,
        observer: Observer,
        registry: ManagerRegistry,
    ) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._settings = settings
        self._rng = rng
        self._observer = observer
        self._registry = registry

    def on_restart(self, reason: BaseException) -> None:
        """Start everything again: a restart has stopped the children."""
        del reason
        with self._registry.lock:
            groups = {name: dict(group.states) for name, group in self._registry.groups.items()}
        for name in groups:
            group = self._registry.groups[name]
            group.served.clear()
            # Numbers only rise: a group that was left before the crash may not be so any more.
            group.committer, group.attached = None, group.told
        # Also committers without managers: their last request may still be under way.
        for name, states in groups.items():
            self._start(name, states)

    def on_receive(self, message: Start | Expedite | Vacant) -> None:
        """Start actors; drop a committer whose group is empty."""
        match message:
            case Start(name, states):
                self._start(name, states)
            case Expedite(states):
                if not states[0].submits.group.tell(message):
                    message.give_up()
            case Vacant(group):
                committer = group.committer
                if committer is not None and self._registry.drop(message):
                    group.committer = None
                    committer.stop(block=False)
                    self._coordinator.release(group.submits.name)

    def _start(self, name: str, states: Mapping[TopicPartition, PartitionState]) -> None:
        group = self._registry.groups.get(name)
        if group is None:
            return  # all of them have ended
        if group.committer is None:
            group.committer = self._start_committer(group)
        committer = group.committer
        # Some may live already, and some have ended, whose names others may have by now.
        absent = {
            partition: state
            for partition, state in states.items()
            if group.states.get(partition) is state
            and (state.ref is None or not state.ref.is_alive())
        }
        for partition, state in absent.items():
            state.ref = self.spawn_child(
                OffsetManager,
                state,
                committer,
                self._observer,
                self._registry.release,
                name=f"{name}/{partition.topic}/{partition.partition}",
            )
        for state in states.values():
            if state.stops and state.ref is not None:
                state.ref.try_tell(Stop())  # who asked for it may not have had the ref
        group.told += 1
        committer.tell(Attach(absent))
        group.submits.attach(committer, self._settings.commit_interval_s)

    def _start_committer(self, group: Group) -> ActorRef[GroupCommitter]:
        return self.spawn_child(
            GroupCommitter,
            group,
            self._coordinator,
            self._settings,
            self._rng,
            self._observer,
            name=group.submits.name,
            inbox_limit=INBOX_LIMIT,
        )
