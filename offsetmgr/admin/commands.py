"""Commands of this product that are printed, to be pasted into a shell."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.text import shell_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.types import TopicPartition

_ASK_SERVICE: Final = frozenset({"reset", "delete-offsets"})
"""Commands that take the address of a service."""


class Connection(NamedTuple):
    """The options by which the user's own command finds Kafka and the service."""

    kafka: tuple[str, ...] = ()
    service: tuple[str, ...] = ()

    def command(
        self, name: str, group: str | None = None, *options: str, execute: bool = False
    ) -> str:
        """Return the command ``name`` for a group, with the same connection."""
        service = self.service if name in _ASK_SERVICE else ()
        more = [*options, *self.kafka, *service, *(["--execute"] if execute else [])]
        words = ["offsetmgr", *name.split()]
        if group is None:
            return shell_command([*words, *more])
        if group.startswith("-"):  # else it would be taken for an option
            return shell_command([*words, *more, "--", group])
        return shell_command([*words, group, *more])


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Return the numbers of partitions by topic, sorted."""
    numbers = defaultdict(list)
    for topic, number in sorted(set(partitions)):
        numbers[topic].append(number)
    return numbers


def topic_options(partitions: Iterable[TopicPartition]) -> list[str]:
    """Return the options that name partitions, such as ``--topic orders:0,3``."""
    return [
        word
        for topic, numbers in by_topic(partitions).items()
        for word in ("--topic", f"{topic}:{','.join(map(str, numbers))}")
    ]
