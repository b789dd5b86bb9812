"""The Factory's actor: parent of all managers and committers of one factory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from actors import PooledActor
from offsetmgr.manager.group_committer import (
    Attach,
    Expedite,
    GroupCommitter,
    GroupState,
    Vacant,
)
from offsetmgr.manager.history import CommitHistory
from offsetmgr.manager.log_ends import RecentLogEnds
from offsetmgr.manager.offset_manager import OffsetManager, deliver
from offsetmgr.manager.submits import WakeUp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from actors import ActorRef
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.offset_manager import Abandon, Stop
    from offsetmgr.manager.partition_state import PartitionState
    from offsetmgr.manager.registry import Registry
    from offsetmgr.manager.submits import GroupSubmits
    from offsetmgr.types import TopicPartition

INBOX_LIMIT: Final = 1_000_000
"""A committer, or the factory, hears from each manager a few times at most between two turns."""

LANDING_TIMEOUTS: Final = 2
"""How many request time-outs after the coordinator answers again nearly all that it still held has
landed."""


class Start(NamedTuple):
    """Start the managers of one group."""

    submits: GroupSubmits
    states: Mapping[TopicPartition, PartitionState]


class Forward(NamedTuple):
    """A message for a manager whose actor was not there yet."""

    state: PartitionState
    message: Stop | Abandon


class ForwardExpedite(NamedTuple):
    """The same for a committer."""

    submits: GroupSubmits
    message: Expedite


class FactoryActor(PooledActor):
    """Parent of all managers and committers; restarts them, however often they fail."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: CommitSettings,
        rng: Random,
        observer: Observer,
        registry: Registry,
        groups: dict[str, GroupState],
    ) -> None:
        """``groups`` are its own, but outlive it."""
        super().__init__()
        self._coordinator = coordinator
        self._settings = settings
        self._rng = rng
        self._observer = observer
        self._registry = registry
        self._groups = groups
        self._recent = RecentLogEnds(settings)
        self._committers: dict[str, ActorRef[GroupCommitter]] = {}
        self._attached: dict[str, int] = {}  # how many Attach each committer was told

    def on_restart(self, reason: BaseException) -> None:
        """Start all managers again: a restart has stopped the children."""
        del reason
        registered = self._registry.snapshot()
        for group in self._groups.values():
            group.states.clear()
            group.attached = 0
        # Also committers without managers: their last request may still be under way.
        submits = {name: group.submits for name, group in self._groups.items()}
        submits |= {name: group.submits for name, group in registered.items()}
        for name, each in submits.items():
            self._start(each, registered[name].states if name in registered else {})

    def on_receive(self, message: Start | Forward | ForwardExpedite | Vacant) -> None:
        """Start actors; drop a committer whose group is empty."""
        match message:
            case Start(submits, states):
                group = self._registry.groups.get(submits.name)
                # A group that had no manager left may have begun anew since.
                if group is not None and group.submits is submits:
                    self._start(submits, states)
            case Forward(state, inner):
                deliver(state, inner)
            case ForwardExpedite(submits, expedite):
                if not submits.tell(expedite) and expedite.flush is not None:
                    expedite.flush.answer(
                        [(each, each.result_without_actor()) for each in expedite.states]
                    )
            case Vacant(name, attached):
                # Not where managers were on their way to it as it said so.
                if self._attached.get(name) == attached and not self._registry.states_of(name):
                    self._committers.pop(name).stop(block=False)
                    del self._groups[name], self._attached[name]
                    self._coordinator.release(name)

    def _start(
        self, submits: GroupSubmits, states: Mapping[TopicPartition, PartitionState]
    ) -> None:
        name = submits.name
        committer = self._committers.get(name)
        if committer is None:
            committer = self._committers[name] = self._start_committer(submits)
        # After a restart of this actor the message that asks for them may still be on its way: for
        # some that live already, and for some that have ended, whose names others may have by now.
        registered = self._registry.states_of(name)
        absent = {
            partition: state
            for partition, state in states.items()
            if registered.get(partition) is state
            and (state.ref is None or not state.ref.is_alive())
        }
        for partition, state in absent.items():
            state.ref = self.spawn_child(
                OffsetManager,
                state,
                committer,
                self._observer,
                self._registry,
                name=f"{name}/{partition.topic}/{partition.partition}",
            )
        self._attached[name] = self._attached.get(name, 0) + 1
        committer.tell(Attach(submits, absent))
        interval_s = self._settings.commit_interval_s
        submits.attach(WakeUp(committer, self.system.timers, self.system.clock, interval_s))

    def _start_committer(self, submits: GroupSubmits) -> ActorRef[GroupCommitter]:
        name = submits.name
        if name not in self._groups:
            landing_s = LANDING_TIMEOUTS * self._settings.request_timeout_s
            self._groups[name] = GroupState(CommitHistory(landing_s), submits)
        return self.spawn_child(
            GroupCommitter,
            name,
            self._groups[name],
            self._coordinator,
            self._settings,
            self._rng,
            self._observer,
            self._recent,
            name=name,
            inbox_limit=INBOX_LIMIT,
        )
