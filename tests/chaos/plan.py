"""The plan of a run: a pure function of the seed, so that its faults can be repeated.

A run is a row of rounds.  In each, faults are injected on three tracks at once (the service, the
clients, the brokers).  When all is healed and commits flow again, the service is killed once more
while the clients fall silent, so that only what they hold can be sent again; then it dies together
with one of them.  All the while topics are deleted and recreated.
"""

from __future__ import annotations

import itertools
import random
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Fault(str, Enum):
    SERVICE_KILL = "service kill -9"
    SERVICE_TERM = "service terminated"
    SERVICE_PAUSE = "service paused"
    CLIENT_KILL = "client kill -9"
    CLIENT_TERM = "client terminated"
    CLIENT_PAUSE = "client paused"
    CLIENT_ZOMBIE = "client paused, replaced, resumed"
    BROKER_KILL = "broker kill -9"
    BROKER_TERM = "broker terminated"
    BROKER_PAUSE = "broker paused"
    IN_SILENCE = "service kill -9, and no client submits again"
    TOGETHER = "client and service kill -9 together"


class Track(NamedTuple):
    faults: Sequence[Fault]
    pause_s: float
    """Mean time between the end of one and the begin of the next."""
    lasting_s: tuple[float, float]
    """Shortest and longest time until it is healed."""
    targets: int


class Injection(NamedTuple):
    """One fault, in seconds since the begin of its round."""

    at_s: float
    until_s: float
    fault: Fault
    target: int
    """Which of the processes of that kind, from 0."""


CLIENTS: Final = 3
BROKERS: Final = 3

SERVICE_FAULTS: Final = (Fault.SERVICE_TERM, Fault.SERVICE_PAUSE, *[Fault.SERVICE_KILL] * 2)
CLIENT_FAULTS: Final = tuple(each for each in Fault if each.name.startswith("CLIENT"))
BROKER_FAULTS: Final = tuple(each for each in Fault if each.name.startswith("BROKER"))
TRACKS: Final = (
    Track(SERVICE_FAULTS, pause_s=3.0, lasting_s=(0.1, 6.0), targets=1),
    Track(CLIENT_FAULTS, pause_s=3.0, lasting_s=(0.1, 6.0), targets=CLIENTS),
    Track(BROKER_FAULTS, pause_s=3.0, lasting_s=(0.2, 8.0), targets=BROKERS),
)


def schedule(seed: int, number: int, length_s: float, tracks: Sequence[Track]) -> list[Injection]:
    """Return the injections of one round, by their begin; all are healed by its end."""
    chance = random.Random(f"{seed} {number}")  # noqa: S311 -- no secret
    injections = []
    for track in tracks:
        at_s = chance.expovariate(1 / track.pause_s)
        while at_s < length_s:
            until_s = min(at_s + chance.uniform(*track.lasting_s), length_s)
            fault, target = chance.choice(track.faults), chance.randrange(track.targets)
            injections.append(Injection(at_s, until_s, fault, target))
            at_s = until_s + chance.expovariate(1 / track.pause_s)
    return sorted(injections)


class Recreation(NamedTuple):
    """A way to recreate a topic."""

    size: float
    """Records of each new log, by those of the former one."""
    partitions: int
    """The number of partitions that are added."""
    away: float
    """Time between deletion and creation, by the time between two recreations; 0: as soon as Kafka
    lets it."""


SIZES: Final = (1 / 3, 1.0, 3.0)
AWAY: Final = (0.0, 0.2)
RECORDS: Final = range(30, 1_000)
"""Limits of a log."""
PARTITIONS: Final = range(2, 7)
"""Limits of a topic that is recreated."""


def recreations(seed: int) -> Iterator[Recreation]:
    """Yield the ways to recreate a topic, each of them once before any comes again."""
    chance = random.Random(f"{seed} recreations")  # noqa: S311 -- no secret
    ways = list(itertools.starmap(Recreation, itertools.product(SIZES, (-2, 0, 2), AWAY)))
    while True:
        yield from chance.sample(ways, len(ways))


def resized(records: int, partitions: int, way: Recreation) -> tuple[int, int]:
    """Return the records and partitions of the next topic; what would pass a limit goes back."""
    size = round(records * way.size)
    if size not in RECORDS:
        size = round(records / way.size)
    count = partitions + way.partitions
    return size, count if count in PARTITIONS else partitions - way.partitions
