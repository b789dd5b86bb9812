"""Which names are taken: one manager per group, topic and partition of a factory."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.tray import Tray
    from offsetmgr.types import ManagerKey, TopicPartition


_group_of: Final = itemgetter(0)
"""The group of a manager's key."""


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
        group = self.groups.get(key.group)
        return None if group is None else group.desks.get(key.topic_partition)

    def find_all(self, keys: Iterable[ManagerKey]) -> dict[Tray, list[Desk]]:
        """The live managers of ``keys``, by the tray of their group."""
        found: dict[Tray, list[Desk]] = {}
        # Those of a group mostly come in a row.
        for name, row in groupby(keys, _group_of):
            group = self.groups.get(name)
            if group is not None:
                find: Callable[[tuple[Any, ...]], Desk | None] = group.desks.get  # type: ignore[assignment]
                # Two names in one tuple, as a TopicPartition is, and quicker made than one.
                desks = [desk for key in row if (desk := find(key[1:])) is not None]
                found.setdefault(group.tray, []).extend(desks)
        return found

    def tray(self, group: str) -> Tray | None:
        """The tray of ``group``; None where it has no managers."""
        held = self.groups.get(group)
        return None if held is None else held.tray

    def named(self, group: str) -> Mapping[TopicPartition, Desk]:
        """Who has the names of ``group`` now; to be looked at, not kept."""
        held = self.groups.get(group)
        return {} if held is None else held.desks

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
            self._release(desk)

    def retire(self, desk: Desk) -> bool:
        """The same for one that nobody uses, in one step with its end; False where it is used.

        Who finds it ended is told to spawn a new one, which must not find the name taken.
        """
        with self.lock:
            if not desk.slot.close_if_clean():
                return False
            self._release(desk)
            return True

    def _release(self, desk: Desk) -> None:
        group = self.groups.get(desk.key.group)
        if group is not None and group.desks.get(desk.slot.where) is desk:
            del group.desks[desk.slot.where]
            self.prune(desk.key.group)

    def prune(self, name: str) -> None:
        """Forget the group if it has no managers; with the lock held."""
        if name in self.groups and not self.groups[name].desks:
            del self.groups[name]
