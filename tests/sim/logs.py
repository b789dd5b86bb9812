"""The logs of a simulated topic, and how well their ends can be read.

Producers write, retention cuts, operators add partitions, delete the topic and make it anew.  An
answer about the ends of logs may fail, lack partitions, or come late: behind what a later one says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors import Future
from offsetmgr.coordinator.base import Failure, TopicLog
from offsetmgr.coordinator.memory import Answer, MemoryCoordinator, Refuse, Unknown
from offsetmgr.errors import error_info
from offsetmgr.types import TopicPartition
from tests.sim.referee import LEVEL
from tests.sim.weather import LATEST_LANDING_S, REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from offsetmgr.coordinator.base import PartitionLog
    from offsetmgr.coordinator.memory import BrokerState, Incident
    from tests.sim.finite_judge import FiniteJudge
    from tests.sim.weather import Weather

TOPIC: Final = "t"

FAR: Final = 100_000
"""A level that no run comes to."""

_TIMED_OUT, _NOT_LEADER, _DENIED, _LOADING = -185, 6, 29, 14

_NEVER_PART: Final = 0.1
"""How many of the answers that are late never come."""

_LATEST_S: Final = 1.9
"""How long after its deadline an answer may come, as in a process that stood still."""


class Topic:
    """One topic, whose logs begin and end at whole levels."""

    def __init__(
        self, broker: BrokerState, rng: Random, met: Counter[str], partitions: int
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._met = met
        self._most = partitions
        self._ends: dict[int, tuple[int, int]] = {}
        """Levels at which the logs begin and end; none while the topic is deleted."""
        self._begun = partitions - (partitions > 1 and rng.random() < 0.2)
        self._growth = rng.choice((0.1, 0.4, 0.8))
        self._cuts = rng.choice((0.0, 0.05, 0.2))
        self.ages = True
        """Whether records are written and deleted."""

    def begin(self, level: int) -> None:
        """Make the topic, with logs that end at ``level`` or before."""
        self._broker.create_topic(TOPIC, self._begun)
        for partition in range(self._begun):
            self._set(partition, 0, self._rng.randint(0, level))

    @property
    def whole(self) -> bool:
        """Whether it has all the partitions that are ever committed."""
        return len(self._ends) == self._most

    def ends(self, partition: int) -> tuple[int, int] | None:
        """Levels at which the log begins and ends; None where there is no such partition."""
        return self._ends.get(partition)

    def _set(self, partition: int, start: int, end: int) -> None:
        self._ends[partition] = (start, end)
        where = TopicPartition(TOPIC, partition)
        self._broker.set_log(where, start * LEVEL, end * LEVEL)

    def age(self) -> None:
        """Some records come, and some go."""
        if not self.ages or not self._ends:
            return
        partition = self._rng.choice(list(self._ends))
        start, end = self._ends[partition]
        if self._rng.random() < self._growth:
            self._met["finite: a log grows"] += 1
            end += self._rng.randint(1, 5)
        if self._rng.random() < self._cuts:
            self._met["finite: a log is cut"] += 1
            start = min(end, start + self._rng.randint(1, 12))
        self._set(partition, start, end)

    def write(self, partition: int) -> int:
        """Write a record there; the level of what comes behind it, or 0 where nothing can be."""
        if partition not in self._ends:
            return 0
        start, end = self._ends[partition]
        self._set(partition, start, end + 1)
        return end + 1

    def add_partition(self) -> None:
        """One more, that is empty."""
        if self._ends and not self.whole:
            self._met["finite: a partition is added"] += 1
            self._begun = len(self._ends) + 1
            self._set(len(self._ends), 0, 0)

    def delete(self) -> None:
        """The topic is gone, with all that groups have committed for it."""
        self._met["finite: the topic is deleted"] += 1
        self._ends.clear()
        self._broker.delete_topic(TOPIC)

    @property
    def deleted(self) -> bool:
        """Whether there is no such topic."""
        return not self._ends

    def grow_over_everything(self) -> None:
        """Let the logs hold all that is submitted, but what retention has deleted."""
        for partition, (start, _) in list(self._ends.items()):
            self._set(partition, start, FAR)


class Haze:
    """Faults of the answers about logs; it clears with the weather."""

    def __init__(
        self,
        rng: Random,
        weather: Weather,
        judge: FiniteJudge,
        call_after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._rng = rng
        self._weather = weather
        self._judge = judge
        self._met = judge.met
        self._call_after = call_after

    def _happens(self) -> bool:
        return self._rng.random() < self._weather.rate

    def plan(self) -> Incident | None:
        """What happens to a request; None where it is answered properly."""
        if not self._happens():
            return None
        kinds: dict[str, Incident] = {
            "slow": Answer(self._rng.uniform(0.01, 0.95) * REQUEST_TIMEOUT_S),
            "beyond the deadline": Answer(LATEST_LANDING_S),
            "refused": Refuse(self._rng.choice((_LOADING, _DENIED))),
            "lost": Unknown(_TIMED_OUT, None),
        }
        kind = self._rng.choice(list(kinds))
        self._met[f"logs: {kind}"] += 1
        return kinds[kind]

    def pass_on(self, logs: Mapping[str, TopicLog], asked: Future[Any], latest_s: float) -> None:
        """Tell what was read just now, maybe not all of it, and up to ``latest_s`` from now."""
        tick = self._judge.next_tick()
        if self._happens():
            logs = {topic: self._spoiled(log) for topic, log in logs.items()}

        def tell() -> None:
            self._judge.looked(tick, logs[TOPIC])
            asked.set(logs)

        if not self._happens():
            tell()
        elif self._rng.random() < _NEVER_PART:
            self._met["logs: never told"] += 1
        else:
            self._met["logs: told late"] += 1
            self._call_after(self._rng.uniform(0.0, latest_s), tell)

    def _spoiled(self, log: TopicLog) -> TopicLog:
        """As where the leader of some partition is not there."""
        self._met["logs: not all told"] += 1
        left: dict[int, PartitionLog] = {}
        for partition, ends in log.partitions.items():
            fate = self._rng.random()
            if fate < 0.5:
                left[partition] = ends
            elif fate < 0.8:
                failure = Failure(error_info(_NOT_LEADER))
                left[partition] = ends._replace(
                    log_start_offset=0, high_watermark=0, failure=failure
                )
        return log._replace(partitions=left)


class HazyCoordinator(MemoryCoordinator):
    """A coordinator that sees the ends of logs through a haze."""

    haze: Haze

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """As its parent answers, and then as the haze lets it through."""
        asked: Future[Mapping[str, TopicLog]] = Future()
        latest = self._now() + timeout_s + _LATEST_S

        def read(done: Future[Mapping[str, TopicLog]]) -> None:
            self.haze.pass_on(done.get(timeout=0), asked, latest - self._now())

        super().topic_logs(topics, timeout_s, at_ms, stable=stable).add_done_callback(read)
        return asked
