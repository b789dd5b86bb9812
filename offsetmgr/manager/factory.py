"""The Factory: spawns one OffsetManager actor per group/topic/partition, and stops them.

``Factory`` is the thread-safe side that users hold; ``FactoryActor`` is the parent of all
managers and committers.  Names are taken and given back under one lock, so that a second spawn is
refused at once; what is submitted goes into slots; everything else is messages.
"""

from __future__ import annotations

from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import pykka

from actors import ActorSystem, InboxFullError, Supervision
from offsetmgr.config import CommitSettings
from offsetmgr.errors import ManagerExistsError, ManagerStoppedError
from offsetmgr.manager.desk import Desk
from offsetmgr.manager.factory_actor import (
    INBOX_LIMIT,
    FactoryActor,
    Forward,
    ForwardHurry,
    Start,
)
from offsetmgr.manager.groupwise import no_manager, submit_each
from offsetmgr.manager.handle import ManagerHandle
from offsetmgr.manager.names import Group, Names
from offsetmgr.manager.observer import NO_OBSERVER
from offsetmgr.manager.offset_manager import Abandon, Hurry, Stop, deliver
from offsetmgr.manager.ticket import Ticket
from offsetmgr.manager.tray import Tray
from offsetmgr.types import TopicPartition, check_group, check_partition, check_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from actors import Future
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.groupwise import Submission
    from offsetmgr.manager.observer import Observer
    from offsetmgr.types import ManagerKey, StopResult

TIRELESS = Supervision(max_restarts=1_000)
"""Its pauses are too long for so many restarts in one window: it never gives up."""

STOP_GRACE_S = 1.0
"""What the actors' own end may take after all managers have answered."""


class Factory:
    """Spawns and stops offset managers; at most one per group/topic/partition."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: CommitSettings | None = None,
        *,
        system: ActorSystem | None = None,
        observer: Observer = NO_OBSERVER,
        rng: Random | None = None,
    ) -> None:
        """Without ``system`` it makes, and on stop ends, one of its own."""
        self._settings = settings if settings is not None else CommitSettings()
        self._own_system = ActorSystem(name="offsetmgr") if system is None else None
        self._system = system if system is not None else self._own_system or ActorSystem()
        self._observer = observer
        self._names = Names()
        self._stopped = False
        self._ref = self._system.spawn(
            FactoryActor,
            coordinator,
            self._settings,
            rng if rng is not None else _default_rng(),
            observer,
            self._names,
            {},
            name="factory",
            inbox_limit=INBOX_LIMIT,
            supervision=TIRELESS,
        )

    def spawn(
        self, group: str, topic: str, partition: int, owner: str = "this process"
    ) -> ManagerHandle:
        """Start the manager of a partition in a group; returns at once.

        Its initial offset is fetched in the background, with those of all managers of the group
        that are spawned meanwhile.  Raises ManagerExistsError, InvalidValueError, and
        ManagerStoppedError once the factory is stopped.
        """
        where = TopicPartition(check_topic(topic), check_partition(partition))
        made = self.spawn_many(group, [where], owner)[where]
        if isinstance(made, ManagerExistsError):
            raise made
        return made

    def spawn_many(
        self, group: str, partitions: Sequence[TopicPartition], owner: str = "this process"
    ) -> dict[TopicPartition, ManagerHandle | ManagerExistsError]:
        """Start many at once; a partition that has a manager gets its error, the others start.

        ``partitions`` are taken as checked.  Raises InvalidValueError for the group and
        ManagerStoppedError once the factory is stopped.
        """
        check_group(group)
        made: dict[TopicPartition, ManagerHandle | ManagerExistsError] = {}
        fresh: dict[TopicPartition, Desk] = {}
        with self._names.lock:
            if self._stopped:
                raise ManagerStoppedError("the factory is stopped; nothing can be spawned any more")
            groups = self._names.groups
            tray, desks = groups.get(group) or groups.setdefault(group, Group(Tray(group), {}))
            for where in partitions:
                held = desks.get(where)
                if held is not None:
                    made[where] = ManagerExistsError(str(held.key), held.owner)
                    continue
                limit = self._settings.error_limit
                desk = Desk(tray, where, owner, limit, self._observer)
                desks[where] = fresh[where] = desk
                made[where] = ManagerHandle(desk, self)
            if fresh:
                self._begin(tray, fresh)
            self._names.prune(group)
        return made

    def _begin(self, tray: Tray, fresh: Mapping[TopicPartition, Desk]) -> None:
        try:
            self._ref.tell(Start(tray, fresh))
        except (pykka.ActorDeadError, InboxFullError) as error:
            for where in fresh:
                del self._names.groups[tray.group].desks[where]
            self._names.prune(tray.group)
            if isinstance(error, InboxFullError):
                raise
            raise ManagerStoppedError(
                "the actor system of the factory is stopped; nothing can be spawned any more"
            ) from None

    def get(self, key: ManagerKey) -> ManagerHandle | None:
        """The live manager of ``key``, if there is one."""
        desk = self._names.find(key)
        return None if desk is None else ManagerHandle(desk, self)

    def managers(self, group: str | None = None) -> list[ManagerHandle]:
        """All live managers (of ``group``), as of now."""
        desks = self._names.desks(group)
        return [ManagerHandle(desk, self) for desk in desks]

    def submit(
        self, group: str, offsets: Mapping[TopicPartition, int | Submission]
    ) -> dict[TopicPartition, OffsetManagerError]:
        """Submit many offsets of one group; never blocks.

        A plain offset is checked here, a ``Submission`` is taken as checked.  Quickest are plain
        offsets of the same partitions in the same order as the last time.  Returns the refused
        ones: OffsetRegressionError, or ManagerStoppedError where there is no live manager.
        Raises InvalidValueError, with nothing submitted, where one is no offset.
        """
        held = self._names.groups.get(group)
        if held is None:
            return {where: no_manager(group, where) for where in offsets}
        if held.tray.repeat(offsets):
            return {}
        return submit_each(held, offsets)

    def flush(
        self, keys: Iterable[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Commit what is newest now, without waiting for the interval; answers by the deadline.

        Keys without a live manager are left out of the answer.
        """
        found = self._names.find_all(keys)
        ticket = self._ticket([*chain(*found.values())], timeout_s, stopping=False)
        for tray, members in found.items():
            self._hurry(tray, Hurry(members, ticket))
        return ticket.future

    def stop_managers(
        self, keys: Iterable[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Commit what is newest, then stop; what is not committed by the deadline is answered so.

        Keys without a live manager are left out of the answer.
        """
        return self.stop_desks([*chain(*self._names.find_all(keys).values())], timeout_s)

    def stop_desks(
        self, desks: Sequence[Desk], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Stop these; for handles, whose manager may be gone already."""
        ticket = self._ticket(desks, timeout_s, stopping=True)
        for desk in desks:
            desk.slot.close()
            # A message may die with an instance of the actor; the next one finds it here.
            desk.end_for(ticket)
        for tray, members in groupby(desks, attrgetter("slot.tray")):
            self._hurry(tray, Hurry(list(members)))
        for desk in desks:
            self._send(desk, Stop(ticket))
        return ticket.future

    def stop(self, timeout_s: float = 10.0) -> dict[ManagerKey, StopResult]:
        """Stop all managers, then the factory; returns by ``timeout_s`` plus a grace of 1 s.

        Twice is harmless: the second answer is empty.  Not to be called by an actor.
        """
        over_s = self._system.clock.now() + timeout_s + STOP_GRACE_S
        results = self.wait(self.begin_stop(timeout_s), timeout_s + STOP_GRACE_S)
        if self._own_system is not None:
            # What the managers did not need is the actors': thousands take seconds to end.
            self._own_system.stop(max(0.0, over_s - self._system.clock.now()))
        else:
            self._ref.stop(block=False)
        return results

    def begin_stop(self, timeout_s: float) -> Future[dict[ManagerKey, StopResult]]:
        """Take nothing more and stop all managers, without blocking; answers by the deadline.

        The factory itself ends with its system, or with ``stop``.
        """
        with self._names.lock:
            self._stopped = True
        return self.stop_desks(self._names.desks(), timeout_s)

    def wait(
        self, future: Future[dict[ManagerKey, StopResult]], timeout_s: float
    ) -> dict[ManagerKey, StopResult]:
        """Block on an answer that comes by ``timeout_s`` by itself."""
        return self._system.wait(future, timeout_s)

    def _ticket(self, desks: Sequence[Desk], timeout_s: float, *, stopping: bool) -> Ticket:
        ticket = Ticket(desks, self._system.clock.now() + timeout_s)

        def expire() -> None:
            for desk in ticket.expire():
                if stopping:
                    self._send(desk, Abandon())

        timer = self._system.timers.call_after(max(0.0, timeout_s), expire)
        ticket.future.add_done_callback(lambda _: timer.cancel())
        return ticket

    def _send(self, desk: Desk, message: Stop | Abandon) -> None:
        if deliver(desk, message):
            return
        try:
            # It is not started yet, or is just being started again.
            self._ref.tell(Forward(desk, message))
        except (pykka.ActorDeadError, InboxFullError):
            if isinstance(message, Stop):
                message.ticket.done([(desk, desk.left())])

    def _hurry(self, tray: Tray, message: Hurry) -> None:
        if tray.tell(message):
            return
        try:
            self._ref.tell(ForwardHurry(tray, message))
        except (pykka.ActorDeadError, InboxFullError):
            if message.ticket is not None:
                message.ticket.done([(desk, desk.left()) for desk in message.desks])


def _default_rng() -> Random:
    import random  # noqa: PLC0415 -- only where nobody injects one

    return random.Random()  # noqa: S311 -- jitter, no secret
