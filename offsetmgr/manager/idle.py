"""Which managers of a group nobody has used for a while."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.desk import Desk
    from offsetmgr.types import TopicPartition

_LOOKS: Final = 4
"""Looks in one time-out: a manager is found idle at most a quarter of it late."""


class _Seen(NamedTuple):
    desk: Desk
    number: int
    """Of its newest version."""
    since: float


class Idle:
    """Looks at all managers now and then; idle is who had no new submit between many looks.

    Submitting again what is committed already is no use of a manager.
    """

    def __init__(self, timeout_s: float) -> None:
        """A ``timeout_s`` of 0 finds nobody idle."""
        self._timeout_s = timeout_s
        self._seen: dict[TopicPartition, _Seen] = {}
        self.at = -inf if timeout_s else inf
        """When to look next; ``inf`` for never."""

    def look(self, desks: Mapping[TopicPartition, Desk], now: float) -> list[Desk]:
        """Who is idle: clean, waited for by nobody, and unchanged for the time-out."""
        self.at = now + self._timeout_s / _LOOKS
        self._seen = {partition: self._see(partition, desks[partition], now) for partition in desks}
        return [
            seen.desk
            for seen in self._seen.values()
            if now - seen.since >= self._timeout_s and not seen.desk.waiters
        ]

    def _see(self, partition: TopicPartition, desk: Desk, now: float) -> _Seen:
        newest, before = desk.slot.newest, self._seen.get(partition)
        number = 0 if newest is None else newest.number
        unchanged = before is not None and before.desk is desk and before.number == number
        if before is None or not unchanged or desk.slot.dirty or not desk.slot.established:
            return _Seen(desk, number, now)
        return before
