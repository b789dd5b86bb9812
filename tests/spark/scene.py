"""A driver and a service that are killed again and again, and what holds all the same.

The checkpoint is read here by hand, so that our own reader does not judge itself.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from offsetmgr.kafka.commit_log import read_commits
from offsetmgr.types import TopicPartition
from tests.chaos.offsets_topic import read_committed
from tests.chaos.processes import Supervised

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from offsetmgr.kafka.commit_log import CommitRecord
    from tests.spark.support import Topic

EACH = 10
"""Records that are produced at once."""
PAUSE_S = 0.05
TICK_S = 0.02
GUARD_S = 900.0
"""Time limit for everything to come back on a busy machine; not a measure."""


class Driver(Supervised):
    """A Spark driver, which is Python and Java: both are killed, as with a container."""

    def __init__(self, folder: Path, job: str, options: Mapping[str, object]) -> None:
        command = [job, *(f"--{name}={value}" for name, value in options.items())]
        super().__init__("the driver", folder / "driver.log", lambda _: command, frozenset({0}))

    def kill(self) -> None:
        """End all of its process group, of which the watchdog is one."""
        self._ordered |= {-signal.SIGKILL}
        os.killpg(os.getpgid(self.process.pid), signal.SIGKILL)


class Orders:
    """Goes on producing until the end of its block; then all of them are in Kafka."""

    def __init__(self, topic: Topic) -> None:
        self.count = 0
        self._topic = topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="test-orders", daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._topic.kafka.bootstrap_servers})
        while not self._stopped.wait(PAUSE_S):
            for _ in range(EACH):
                partition = self.count % self._topic.partitions
                producer.produce(self._topic.name, str(self.count), partition=partition)
                self.count += 1
            producer.flush(GUARD_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(GUARD_S)


def runs(one: Supervised) -> bool:
    return one.process.running()


def supervise_until(those: Sequence[Supervised], holds: Callable[[], bool], what: str) -> None:
    """Start those again that end, until something holds; else fail, and say what does not."""
    deadline = time.monotonic() + GUARD_S
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}; incidents: {[each.incidents for each in those]}")
        for each in those:
            each.tick()
        time.sleep(TICK_S)


class Scene:
    """A driver and a service under supervision, and what the checkpoint holds meanwhile."""

    def __init__(self, served: Supervised, driver: Driver, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.service, self.driver = served, driver
        self.both = (served, driver)
        self.kills: Counter[str] = Counter()
        for each in self.both:
            each.start()

    @property
    def incidents(self) -> list[str]:
        """Ends that nobody ordered."""
        return [what for each in self.both for what in each.incidents]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        supervise_until(self.both, holds, what)

    def kill(self, victim: Supervised, delay_s: float, *, in_work: bool) -> None:
        """Kill after a while, counted from the next batch that is finished or from the start."""
        if in_work:
            before = last_number(self._checkpoint)
            self.until(lambda: last_number(self._checkpoint) > before, "no batch is finished")
        self.until(lambda: runs(victim), f"{victim.name} does not start")
        at = time.monotonic() + delay_s
        self.until(lambda: time.monotonic() >= at, "time stands still")
        if runs(victim):
            victim.kill()
            self.kills[victim.name] += 1
            self.until(lambda: not runs(victim), f"{victim.name} survives")

    def kill_at_random(self, kills: int, chance: random.Random) -> None:
        """Kill one or the other, in the middle of batches and between them."""
        for _ in range(kills):
            victim = chance.choice(self.both)
            in_work = chance.random() < 0.75
            self.kill(victim, chance.uniform(0, 1 if in_work else 8), in_work=in_work)

    def judge(self, topic: Topic, group: str, count: int) -> list[CommitRecord]:
        """Wait until all ``count`` records are read, kill both, and check all that was committed.

        Nothing new comes any more then: what was not committed is in the checkpoint alone.
        """
        checkpoint = self._checkpoint
        self.until(lambda: records(checkpoint) == count, "not everything is read")
        for each in self.both:
            self.kill(each, 0, in_work=False)
        self.until(self.well, "not both run again")
        batches = read_batches(checkpoint)
        ends = {where.partition: end for where, end in batches[-1].ends.items()}
        servers = topic.kafka.bootstrap_servers
        self.until(
            lambda: read_committed(servers, group, topic.name, ends) == ends,
            "the group does not end where the checkpoint is",
        )
        commits = list(read_commits(servers, {group}))
        assert violations(batches, commits) == []
        assert self.incidents == []
        return commits

    def well(self) -> bool:
        return all(map(runs, self.both))

    def close(self) -> None:
        for each in self.both:
            each.close()


class Batch(NamedTuple):
    """A batch that Spark has finished."""

    number: int
    finished_at_s: float
    """When its commit log was written, by the wall clock."""
    ends: Mapping[TopicPartition, int]


def last_number(checkpoint: Path) -> int:
    """The newest finished batch; -1 where there is none."""
    return max(_numbers(checkpoint), default=-1)


def read_batches(checkpoint: Path) -> list[Batch]:
    """Every finished batch of a query with one Kafka source, whose checkpoint was never purged."""
    return [_batch(checkpoint, number) for number in sorted(_numbers(checkpoint))]


def records(checkpoint: Path) -> int:
    """The number of offsets up to the end of the newest finished batch."""
    number = last_number(checkpoint)
    return 0 if number < 0 else sum(_batch(checkpoint, number).ends.values())


def _numbers(checkpoint: Path) -> list[int]:
    folder = checkpoint / "commits"
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [int(name) for name in names if name.isdigit()]


def _batch(checkpoint: Path, number: int) -> Batch:
    _version, _settings, source = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    ends = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json.loads(source).items()
        for partition, offset in partitions.items()
    }
    return Batch(number, (checkpoint / "commits" / str(number)).stat().st_mtime, ends)


def violations(batches: Sequence[Batch], commits: Iterable[CommitRecord]) -> list[str]:
    """The commits that are not the end of a batch which was finished before them, in words."""
    finished: dict[tuple[TopicPartition, int], Batch] = {}
    for batch in batches:
        for where, end in batch.ends.items():
            finished.setdefault((where, end), batch)
    found: list[str] = []
    for commit in commits:
        where = TopicPartition(commit.key.topic, commit.key.partition)
        if commit.offset is None:
            found.append(f"{where} was forgotten")
            continue
        first = finished.get((where, commit.offset))
        if first is None:
            found.append(f"{where} at {commit.offset} is the end of no finished batch")
        elif commit.at_s < first.finished_at_s:
            early_s = first.finished_at_s - commit.at_s
            found.append(
                f"{where} at {commit.offset} was committed {early_s:.3f} s before batch "
                f"{first.number} was finished"
            )
    return found
