"""Which names are taken: one manager per group, topic and partition of a factory."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.tray import Tray
    from offsetmgr.types import ManagerKey, TopicPartition


class Group(NamedTuple):
    """The managers of a group, and the tray that they share."""

    tray: Tray
    desks: dict[TopicPartition, Desk]


class Names:
    """All live managers by name; a name is taken and given back under one lock.

    To look one up needs no lock.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.groups: dict[str, Group] = {}
        """Changed with the lock held; a group without managers is not in it."""

    def __contains__(self, group: object) -> bool:
        """Whether the group has a manager."""
        with self.lock:
            return group in self.groups

    def find(self, key: ManagerKey) -> Desk | None:
        """The live manager of ``key``, if there is one."""
        found = self.find_all((key,))
        return found[0] if found else None

    def find_all(self, keys: Iterable[ManagerKey]) -> list[Desk]:
        """The live managers of ``keys``, in their order."""
        groups, found = self.groups, []
        for key in keys:
            group = groups.get(key[0])
            if group is not None:
                # Two names in one tuple, as a TopicPartition is, and quicker made than one.
                desk = group[1].get(key[1:])  # type: ignore[call-overload]
                if desk is not None:
                    found.append(desk)
        return found

    def desks(self, name: str | None = None) -> list[Desk]:
        """All live managers (of one group), as of now."""
        with self.lock:
            if name is not None:
                group = self.groups.get(name)
                return [] if group is None else list(group.desks.values())
            return [desk for group in self.groups.values() for desk in group.desks.values()]

    def snapshot(self) -> dict[str, Group]:
        """All groups, as of now."""
        with self.lock:
            return {name: Group(g.tray, dict(g.desks)) for name, g in self.groups.items()}

    def release(self, desk: Desk) -> None:
        """Give the name of ``desk`` back, unless another has it already."""
        with self.lock:
            group = self.groups.get(desk.key.group)
            if group is not None and group.desks.get(desk.slot.where) is desk:
                del group.desks[desk.slot.where]
                self.prune(desk.key.group)

    def prune(self, name: str) -> None:
        """Forget the group if it has no managers; with the lock held."""
        if name in self.groups and not self.groups[name].desks:
            del self.groups[name]
