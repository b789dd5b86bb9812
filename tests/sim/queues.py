"""What must not grow in a simulated run, however long its faults last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors import ActorRef
    from actors.testing import SimSystem
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import ManagerKey
    from tests.sim.judge import Judge

MOST_WAITING: Final = 40
"""More flushes waiting in one manager would be a queue that grows."""

MOST_QUEUED: Final = 600
"""More messages in one inbox, even while its actor rests after a crash, would be the same."""

MOST_TIMERS: Final = 300


def look_at_timers(judge: Judge, system: SimSystem) -> None:
    """Timers that nobody cancels would pile up."""
    if len(system.timers) > MOST_TIMERS:
        judge.blame(f"{len(system.timers)} timers")


def look_at_managers(
    judge: Judge, handles: Mapping[ManagerKey, ManagerHandle], error_limit: int
) -> None:
    """What lies on a manager's desk, and in its inbox."""
    for key, handle in handles.items():
        desk = handle._desk
        if len(desk.waiters) > MOST_WAITING:
            judge.blame(f"{key}: {len(desk.waiters)} flushes wait in it")
        unread = desk.errors._items or ()
        if len(unread) > error_limit:
            judge.blame(f"{key}: {len(unread)} unread errors")
        if desk.ref is not None and len(desk.ref.cell._inbox) > MOST_QUEUED:
            judge.blame(f"{key}: {len(desk.ref.cell._inbox)} messages wait for it")


def look_at_committers(
    judge: Judge, committers: Iterable[tuple[str, ActorRef[Any]]], partitions: int
) -> None:
    """No book of a group has more entries than the group has partitions."""
    for group, ref in committers:
        committer: Any = ref.cell._actor
        if len(ref.cell._inbox) > MOST_QUEUED:
            judge.blame(f"{group}: {len(ref.cell._inbox)} messages wait for its committer")
        if committer is None:
            continue
        plan = committer._plan
        parts = (plan, plan._dirty, plan._reads, plan._bounds, plan._ledger, plan._ledger.foreign)
        books = {name: held for part in parts for name, held in vars(part).items()}
        for name, held in books.items():
            if isinstance(held, dict) and len(held) > partitions:
                judge.blame(f"{group}: {len(held)} entries in the plan's {name}")
