"""Managers that were given up, though the service may have them still: it is asked to stop them.

A stop ends with its caller's time, whether the service has answered or not.  The client lives on
and renews its lease, so that nobody else could ever have what such a stop has left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.client.ready import Ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.types import ManagerKey, TopicPartition

LEFT_LIMIT: Final = 10_000
"""Managers that are remembered; those beyond stay the client's until its lease lapses."""

STOP_LIMIT: Final = 1_000
"""Managers that one request stops."""


class LeftStop(NamedTuple):
    """A request to stop managers, sent again as it is until it is answered.

    It stops none that was spawned anew since: a newer sequence has touched that one.
    """

    group: str
    partitions: tuple[TopicPartition, ...]
    sequence: int


class Left:
    """What is to be stopped yet.  Not safe between threads by itself."""

    def __init__(self) -> None:
        self._keys = Ready()
        self._asked: LeftStop | None = None
        """Sent, maybe, and not answered."""

    def __bool__(self) -> bool:
        return self._asked is not None or bool(self._keys)

    def add(self, key: ManagerKey) -> None:
        """Nobody here has `key` any more, but the service may."""
        if len(self._keys) < LEFT_LIMIT:
            self._keys.add(key)

    def discard(self, key: ManagerKey) -> None:
        """`key` is wanted again."""
        self._keys.discard(key)

    def stop(self, next_sequence: Callable[[], int]) -> LeftStop | None:
        """The next request, if there is one; the same again until it is answered."""
        if self._asked is None and self._keys:
            group, keys = self._keys.take(STOP_LIMIT)
            partitions = tuple(key.topic_partition for key in keys)
            self._asked = LeftStop(group, partitions, next_sequence())
        return self._asked

    def answered(self, stop: LeftStop) -> None:
        """The service has done `stop`, or calls it bad."""
        if self._asked is stop:
            self._asked = None
