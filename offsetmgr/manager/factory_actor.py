"""The Factory's actor: parent of all managers and committers of one factory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors import Directive, PooledActor
from offsetmgr.manager.group_committer import Attach, GroupCommitter, Roster, Vacant
from offsetmgr.manager.ledger import Ledger
from offsetmgr.manager.offset_manager import OffsetManager, deliver
from offsetmgr.manager.recent_logs import RecentLogs
from offsetmgr.manager.tray import Bell

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from actors import ActorRef
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.names import Names
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.offset_manager import Abandon, Hurry, Stop
    from offsetmgr.manager.tray import Tray
    from offsetmgr.types import TopicPartition

INBOX_LIMIT: Final = 1_000_000
"""A committer, or the factory, hears from each manager a few times at most between two turns."""

LANDING_TIMEOUTS: Final = 2
"""How many request timeouts after the coordinator answers again a lost commit may still land."""


class Start(NamedTuple):
    """Start the actors of these desks, all of one group."""

    tray: Tray
    desks: Mapping[TopicPartition, Desk]


class Forward(NamedTuple):
    """For a manager whose actor was not there yet when its user spoke."""

    desk: Desk
    message: Stop | Abandon


class ForwardHurry(NamedTuple):
    """The same for a committer."""

    tray: Tray
    message: Hurry


class FactoryActor(PooledActor):
    """Parent of all managers and committers; restarts them, however often they fail."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: CommitSettings,
        rng: Random,
        observer: Observer,
        names: Names,
        rosters: dict[str, Roster],
    ) -> None:
        """``rosters`` are its own, but outlive it."""
        super().__init__()
        self._coordinator = coordinator
        self._settings = settings
        self._rng = rng
        self._observer = observer
        self._names = names
        self._rosters = rosters
        self._recent = RecentLogs(settings)
        self._committers: dict[str, ActorRef[GroupCommitter]] = {}
        # What each committer was told of last.
        self._attached: dict[str, object] = {}

    def on_restart(self, reason: BaseException) -> None:
        """Start all managers again: a restart has stopped the children."""
        del reason
        population = self._names.snapshot()
        for roster in self._rosters.values():
            roster.desks.clear()
            roster.attached = None
        # Also committers without managers: their last request may still be under way.
        trays = {name: roster.tray for name, roster in self._rosters.items()}
        trays |= {name: group.tray for name, group in population.items()}
        for name, tray in trays.items():
            self._start(tray, population[name].desks if name in population else {})

    def on_child_failure(self, child: ActorRef[Any], reason: BaseException) -> Directive:
        """Restart always, after the policy's pause: giving up would stop commits in silence."""
        del child, reason
        return Directive.RESTART

    def on_receive(self, message: Start | Forward | ForwardHurry | Vacant) -> None:
        """Start actors; drop a committer whose group is empty."""
        match message:
            case Start(tray, desks):
                # A group that had no manager left has begun anew since, with another tray.
                if self._names.tray(tray.group) is tray:
                    self._start(tray, desks)
            case Forward(desk, inner):
                deliver(desk, inner)
            case ForwardHurry(tray, hurry):
                if not tray.tell(hurry) and hurry.ticket is not None:
                    hurry.ticket.done([(desk, desk.left()) for desk in hurry.desks])
            case Vacant(group, attached):
                # Not where managers were on their way to it as it said so, or to its successor.
                newest = group in self._attached and self._attached[group] is attached
                if newest and group not in self._names:
                    self._drop(group)

    def _drop(self, group: str) -> None:
        self._committers.pop(group).stop(block=False)
        del self._rosters[group], self._attached[group]
        self._coordinator.release(group)

    def _start(self, tray: Tray, desks: Mapping[TopicPartition, Desk]) -> None:
        group = tray.group
        committer = self._committers.get(group)
        if committer is None:
            committer = self._committers[group] = self._start_committer(tray)
        # After a restart of this actor the message that asks for them may still be on its way: for
        # some that live already, and for some that have ended, whose names others may have by now.
        named = self._names.named(group)
        absent = {
            partition: desk
            for partition, desk in desks.items()
            if named.get(partition) is desk and (desk.ref is None or not desk.ref.is_alive())
        }
        for partition, desk in absent.items():
            desk.ref = self.spawn_child(
                OffsetManager,
                desk,
                committer,
                self._observer,
                self._names,
                name=f"{group}/{partition.topic}/{partition.partition}",
            )
        self._attached[group] = absent
        committer.tell(Attach(tray, absent))
        bell = Bell(
            committer, self.system.timers, self.system.clock, self._settings.commit_interval_s
        )
        tray.attend(bell)

    def _start_committer(self, tray: Tray) -> ActorRef[GroupCommitter]:
        group = tray.group
        roster = self._rosters.get(group)
        if roster is None:
            window_s = LANDING_TIMEOUTS * self._settings.request_timeout_s
            ledger = Ledger(window_s, self._settings.on_external_change)
            roster = self._rosters[group] = Roster(ledger, tray)
        return self.spawn_child(
            GroupCommitter,
            group,
            roster,
            self._coordinator,
            self._settings,
            self._rng,
            self._observer,
            self._recent,
            name=group,
            inbox_limit=INBOX_LIMIT,
        )
