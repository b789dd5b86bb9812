"""Limits on the queues of a simulated run, however long its faults last.

A queue that grows in an outage is short again soon after it, so the worlds look every few steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors import ActorRef
    from actors.testing import SimSystem
    from offsetmgr.manager import Factory
    from offsetmgr.manager.offset_manager import OffsetManager
    from tests.sim.referee import Referee

LOOK_EVERY: Final = 60
"""Steps from one look to the next: a queue takes about one for each of its entries."""

MOST_OVER: Final = 40
"""More flushes in one group that are answered, or past their deadline, would be a queue that grows;
those that still wait are as many as there are callers."""

MOST_QUEUED: Final = 600
"""More messages in one inbox, even while its actor rests after a crash, would be the same."""

MOST_HELD: Final = 30
"""More in any one container of a process would be one too."""

MOST_TIMERS: Final = 600


def look_at_timers(judge: Referee, system: SimSystem) -> None:
    if len(system.timers) > MOST_TIMERS:
        judge.blame(f"{len(system.timers)} timers")


def look_at_managers(judge: Referee, managers: Iterable[OffsetManager], error_limit: int) -> None:
    """The errors, messages and callers that wait for each manager."""
    now = judge.now()
    for manager in managers:
        unread = manager.errors._values or ()
        if len(unread) > error_limit:
            judge.blame(f"{manager.key}: {len(unread)} unread errors")
        if len(manager.actor_inbox) > MOST_QUEUED:
            judge.blame(f"{manager.key}: {len(manager.actor_inbox)} messages wait for it")
        over = sum(waiter.deadline_s <= now for _, waiter in manager.flushes)
        if over > MOST_OVER:
            judge.blame(f"{manager.key}: {over} flushes that are over are kept")


def committers_of(factory: Factory) -> Mapping[str, ActorRef[Any]]:
    return {name: group.committer for name, group in factory._groups.items()}


def look_at_committers(
    judge: Referee, committers: Mapping[str, ActorRef[Any]], partitions: int
) -> None:
    """No index of a group has more entries than the group has partitions."""
    for group, ref in committers.items():
        committer: Any = ref.actor_inbox.actor
        if len(ref.actor_inbox) > MOST_QUEUED:
            judge.blame(f"{group}: {len(ref.actor_inbox)} messages wait for its committer")
        if committer is None:
            continue
        for name, held in vars(committer._plan).items():
            if isinstance(held, dict) and len(held) > partitions:
                judge.blame(f"{group}: {len(held)} entries in the plan's {name}")
        if len(committer._answers) > MOST_HELD:
            judge.blame(f"{group}: {len(committer._answers)} callers wait for their answer")


def look_at_factory(judge: Referee, factory: Factory, error_limit: int, partitions: int) -> None:
    """The managers that a factory has now, and the committers of their groups."""
    for group in factory._groups.values():
        look_at_managers(judge, group.managers.values(), error_limit)
    look_at_committers(judge, committers_of(factory), partitions)


def look_at_parts(judge: Referee, name: str, parts: Iterable[object], most: int) -> None:
    for part in parts:
        for what, held in vars(part).items():
            if isinstance(held, (dict, list, set)) and len(held) > most:
                judge.blame(f"{name}: {len(held)} entries in {type(part).__name__}.{what}")
