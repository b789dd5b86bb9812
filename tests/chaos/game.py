"""One chaos run on a Kafka that is there: rounds of faults, the end, and the judgement."""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.devkafka.settings import free_ports
from tests.chaos.checker import Death, Evidence, check
from tests.chaos.history import Key, read_history
from tests.chaos.offsets_topic import read_commits, read_committed
from tests.chaos.plan import storm
from tests.chaos.processes import client, service
from tests.chaos.stage import Cast, Stage
from tests.chaos.workload import Life
from tests.conftest import create_topic

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from offsetmgr.devkafka import DevKafka
    from tests.chaos.checker import Verdict
    from tests.chaos.plan import Strike, Track

PARTITIONS_EACH: Final = 4
"""Of each client."""

INTERVAL_S: Final = 0.25
"""Between two commits of a group."""

_REQUEST_TIMEOUT_S: Final = 2.0

_SETTINGS: Final = (
    f"commit.commit_interval_s={INTERVAL_S}",
    f"commit.request_timeout_s={_REQUEST_TIMEOUT_S}",
    "commit.retry_backoff_max_s=2",
    "lease_s=4",
    "stop_timeout_s=3",
)


class Setting(NamedTuple):
    """Where a run takes place."""

    kafka: DevKafka
    folder: Path
    """For the logs of everybody."""
    seed: int
    topic: str
    """Is created."""
    groups: Sequence[str]
    clients: int
    loss_bound_s: float
    """How old a submit may be and still be lost with its client and the service."""
    settings: Sequence[str] = ()
    """Further ones of the service, as ``name=value``."""

    def lives(self, url: str) -> list[Life]:
        """The first life of each client; each has partitions of its own, in all groups."""
        return [
            Life(
                folder=self.folder,
                url=url,
                name=f"client-{number}",
                number=1,
                seed=self.seed,
                topic=self.topic,
                partitions=tuple(range(number * PARTITIONS_EACH, (number + 1) * PARTITIONS_EACH)),
                groups=tuple(self.groups),
            )
            for number in range(self.clients)
        ]


class Outcome(NamedTuple):
    """What came of a run."""

    verdict: Verdict
    incidents: Sequence[str]
    """What nobody ordered, such as a crash."""
    struck: Counter[str]
    missed: int
    moves: int
    """Coordinators that moved to another broker."""
    service_lives: int
    client_lives: int
    slowest_recovery_s: float
    logs: Sequence[Path]

    @property
    def held(self) -> bool:
        """Whether every promise was kept."""
        return not self.verdict.violations and not self.incidents


class Game:
    """A run; use it as ``with Game(...) as game``, play rounds, then let it be judged."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._deaths: list[Death] = []
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        lives = setting.lives(f"http://{address}")
        create_topic(setting.kafka, setting.topic, setting.clients * PARTITIONS_EACH)
        served = service(
            setting.folder,
            address,
            setting.kafka.bootstrap_servers,
            [*_SETTINGS, *setting.settings],
        )
        clients = [client(life) for life in lives]
        self._stage = Stage(Cast(setting.kafka, served, clients, lives))

    def __enter__(self) -> Self:
        self._stage.start()
        self._stage.calm()
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.close()

    def play(self, number: int, length_s: float, tracks: Sequence[Track]) -> None:
        """A round: a storm, then the deaths that need good times before them."""
        self._blow(storm(self._setting.seed, number, length_s, tracks))
        self._stage.calm()
        self._stage.kill_in_silence()
        self._stage.calm()
        victim = number % self._setting.clients
        life = self._stage.cast.clients[victim].life
        name = self._stage.cast.lives[victim].name
        self._deaths.append(Death(name, life, self._stage.kill_together(victim)))

    def _blow(self, strikes: Sequence[Strike]) -> None:
        began_at = time.monotonic()
        order = itertools.count()
        steps: list[tuple[float, int, Callable[[], object]]] = []

        def begin(strike: Strike) -> None:
            heal = self._stage.strike(strike)
            if heal is not None:
                heapq.heappush(steps, (began_at + strike.until_s, next(order), heal))

        steps += [
            (began_at + each.at_s, next(order), functools.partial(begin, each)) for each in strikes
        ]
        heapq.heapify(steps)
        while steps:
            at, _, step = heapq.heappop(steps)
            self._stage.wait(at)
            step()

    def judge(self) -> Outcome:
        """Heal all, let everybody end, and hold Kafka's log against what the clients saw."""
        stage, setting = self._stage, self._setting
        stage.calm()
        stage.end()
        servers = setting.kafka.bootstrap_servers
        standing: dict[Key, int] = {}
        for group in setting.groups:
            numbers = range(setting.clients * PARTITIONS_EACH)
            found = read_committed(servers, group, setting.topic, numbers)
            standing |= {Key(group, each): offset for each, offset in found.items()}
        evidence = Evidence(
            read_history(setting.folder),
            read_commits(servers, setting.groups),
            standing,
            stage.cast.service.starts,
            {
                (client.name, number): at_s
                for client in stage.cast.clients
                for number, at_s in enumerate(client.starts, start=1)
            },
            self._deaths,
            _REQUEST_TIMEOUT_S,
            setting.loss_bound_s,
        )
        return Outcome(
            check(evidence),
            stage.incidents,
            stage.struck,
            stage.missed,
            stage.moves,
            stage.cast.service.life,
            sum(each.life for each in stage.cast.clients),
            stage.slowest_recovery_s,
            stage.logs,
        )
