"""The live managers of a factory by name: one per group, topic and partition."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.manager.partition_state import PartitionState
    from offsetmgr.manager.submits import GroupSubmits
    from offsetmgr.types import ManagerKey, TopicPartition


class Group(NamedTuple):
    """The live managers of a group, and what their submits share."""

    submits: GroupSubmits
    states: dict[TopicPartition, PartitionState]


class Registry:
    """Names are taken and given back under one lock; looking one up needs none."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.groups: dict[str, Group] = {}
        """Changed with the lock held; a group without managers is not in it."""

    def find(self, key: ManagerKey) -> PartitionState | None:
        group = self.groups.get(key.group)
        return None if group is None else group.states.get(key.topic_partition)

    def find_all(self, keys: Iterable[ManagerKey]) -> list[PartitionState]:
        """Return the live managers of ``keys``."""
        groups, found = self.groups, []
        for group, topic, partition in keys:
            held = groups.get(group)
            # Two names in one tuple, as a TopicPartition is, and quicker made than one.
            state = held and held.states.get((topic, partition))  # type: ignore[call-overload]
            if state:
                found.append(state)
        return found

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

    def snapshot(self) -> dict[str, Group]:
        """Return all groups, as of now."""
        with self.lock:
            return {
                name: Group(held.submits, dict(held.states)) for name, held in self.groups.items()
            }

    def release(self, state: PartitionState) -> None:
        """Give the name of ``state`` back, unless another has it already."""
        with self.lock:
            group = self.groups.get(state.key.group)
            if group is not None and group.states.get(state.submits.partition) is state:
                del group.states[state.submits.partition]
                self.prune(state.key.group)

    def prune(self, group: str) -> None:
        """Forget the group if it has no managers; with the lock held."""
        if group in self.groups and not self.groups[group].states:
            del self.groups[group]
