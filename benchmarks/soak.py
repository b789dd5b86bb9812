"""``python -m benchmarks.soak MINUTES``: a day's commits in a few minutes, and nothing may grow.

A job that triggers every 5 s has its offsets committed 17,280 times a day.  Here the real service
process does that on a real Kafka with the interval shortened to fit, for several clients, each
with a group of its own.  Now and then the broker stands still (SIGSTOP), for longer than a request
may take.  Once a minute a line says how it goes; at the end Kafka is asked, past all of our code,
whether it holds the newest offset of every partition.

It fails, with exit status 1 and the reason, when an offset is lost, when the service ends by
itself or does not stop in order, when memory, threads or file descriptors grow past a bound, and
when ten minutes or more bring less than a day's commits.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import threading
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from benchmarks.harness import TIMEOUT_S, TOPIC, resident_mb
from benchmarks.service import sidecar
from offsetmgr import OffsetClient
from offsetmgr.devkafka import Broker, DevKafka
from offsetmgr.devkafka.command import create_topic
from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.service.support import ServeProcess

DAY_TICKS: Final = 86_400 // 5
"""Commits of one group in a day, with a trigger every 5 s."""
DAY_MINUTES: Final = 10.0
"""A run that is as long brings a day's commits at least.  A shorter one need not: a client sends
fifty requests a second at most, and gets no answer while the brokers stand still."""
SLACK: Final = 0.5
"""Part of the time that a day's commits get at full pace; pauses and round trips take the rest."""

CLIENTS: Final = 3
PARTITIONS: Final = 20
"""Of each client's group."""
SAMPLES: Final = 10
"""Before the broker stands still."""
SAMPLE_S: Final = 5.0
PAUSE_S: Final = 8.0
"""Longer than a request may take (5 s), so that outcomes become unknown."""
WARM_UP: Final = 0.25
"""Part of the run after which nothing may grow any more."""
BOUNDS: Final = {"rss_mb": (1.1, 8.0), "threads": (1.0, 20.0), "descriptors": (1.0, 20.0)}
"""At the end there may be this many times what there was after the warm-up, plus that."""


class SoakError(RuntimeError):
    """Something that must not happen did."""


class Sample(NamedTuple):
    """The service at one moment."""

    committed: int
    """Offsets that Kafka has acknowledged."""
    rss_mb: float
    threads: int
    descriptors: int


def sample(service: ServeProcess) -> Sample:
    if service.process.poll() is not None:
        raise SoakError("the service ended by itself:\n" + "".join(service.lines[-25:]))
    with service.http() as http:
        metrics = http.get("/metrics").text
    (committed,) = re.findall(r'\noffsetmgr_commits_total{.*"committed"} (\S+)', metrics)
    stats = psutil.Process(service.process.pid)
    resources = resident_mb(stats), stats.num_threads(), stats.num_fds()
    return Sample(int(float(committed)), *resources)


class Job(threading.Thread):
    """A client that submits a higher offset of each of its partitions at every tick."""

    def __init__(self, address: str, number: int, interval_s: float) -> None:
        super().__init__(name=f"job-{number}", daemon=True)
        self.group = f"soak-{number}"
        self.ticks = 0
        self.late = 0
        """Waiting submits that Kafka did not acknowledge in time: it stood still."""
        self._client = OffsetClient(address, name=self.group)
        self._interval_s = interval_s
        self._over = threading.Event()

    def run(self) -> None:
        """Tick until ``finish``; one tick of a hundred waits for Kafka."""
        _unread = self._client.spawn(self.group, TOPIC, 0).errors()
        while not self._over.wait(self._interval_s):
            self.ticks += 1
            offsets = {(TOPIC, number): self.ticks for number in range(PARTITIONS)}
            try:
                self._client.submit(self.group, offsets, sync=self.ticks % 100 == 0, timeout=3)
            except OffsetManagerError:
                self.late += 1

    def finish(self, admin: AdminClient) -> None:
        """Raise SoakError if not everything is committed, by our answer or by Kafka's."""
        self._over.set()
        self.join(TIMEOUT_S)
        left = self._client.flush(timeout=TIMEOUT_S).uncommitted
        if left:
            raise SoakError(f"{len(left)} offsets of {self.group} were not committed: {left}")
        wanted = [KafkaPartition(TOPIC, number) for number in range(PARTITIONS)]
        request = [ConsumerGroupTopicPartitions(self.group, wanted)]
        answer = admin.list_consumer_group_offsets(request)[self.group].result(TIMEOUT_S)
        held = {found.offset for found in answer.topic_partitions}
        if held != {self.ticks}:
            raise SoakError(f"group {self.group} is at {sorted(held)} instead of {self.ticks}")

    def close(self) -> None:
        self._over.set()
        self._client.close()


def watch(
    service: ServeProcess, jobs: Sequence[Job], broker: Broker, minutes: float
) -> list[Sample]:
    """Let it run, and freeze Kafka after each line; return the samples."""
    samples: list[Sample] = []
    began = time.monotonic()
    while (now_s := time.monotonic() - began) < minutes * 60:
        for _ in range(SAMPLES):
            samples.append(sample(service))
            time.sleep(SAMPLE_S)
        late = sum(job.late for job in jobs)
        print(f"minute {now_s / 60:.0f}: {samples[-1]}, {late} late", flush=True)
        broker.pause()
        time.sleep(PAUSE_S)
        broker.resume()
    return samples


def check_growth(samples: Sequence[Sample]) -> str:
    """Compare the end of a run with the time after its warm-up.

    Raises SoakError where something has grown past its bound.
    """
    first = int(len(samples) * WARM_UP)
    width = max(1, (len(samples) - first) // 4)
    told = []
    for what, (ratio, free) in BOUNDS.items():
        figures = [getattr(each, what) for each in samples]
        before, after = median(figures[first : first + width]), median(figures[-width:])
        told.append(f"{what} {before:.1f} after the warm-up, {after:.1f} at the end")
        if after > before * ratio + free:
            raise SoakError(f"{what} grow: {told[-1]}")
    return "; ".join(told)


def check_days(minutes: float, commits: int) -> float:
    """Return the days of commits that each group has had, of so many offsets acknowledged in all.

    Raises SoakError where a run of ``DAY_MINUTES`` has had less than one.
    """
    days = commits / PARTITIONS / CLIENTS / DAY_TICKS
    if minutes >= DAY_MINUTES and days < 1:
        raise SoakError(f"{days:.2f} days of commits for each group in {minutes:g} minutes, not 1")
    return days


def soak(minutes: float) -> None:
    interval_s = minutes * 60 * SLACK / DAY_TICKS
    print(f"{CLIENTS} groups x {PARTITIONS} partitions, a commit every {interval_s * 1000:.1f} ms")
    with ExitStack() as stack:
        kafka = stack.enter_context(DevKafka())
        create_topic(kafka.bootstrap_servers, TOPIC, PARTITIONS)
        settings = {"commit.commit_interval_s": interval_s}
        service = stack.enter_context(sidecar(kafka.bootstrap_servers, **settings))
        jobs = [Job(service.address, number, interval_s) for number in range(CLIENTS)]
        for job in jobs:
            stack.callback(job.close)
            job.start()
        samples = watch(service, jobs, kafka.broker(1), minutes)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for job in jobs:
            job.finish(admin)
        print(check_growth(samples))
        days = check_days(minutes, sample(service).committed)
        print(f"{days:.2f} days of commits for each group, none lost")
        for job in jobs:
            job.close()
        if service.stop() != 0:
            raise SoakError("the service did not stop well:\n" + "".join(service.lines[-25:]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10.0, help="how long (10)")
    # What a frozen broker makes of each partition is counted.
    logging.getLogger("offsetmgr.client").setLevel(logging.ERROR)
    try:
        soak(parser.parse_args().minutes)
    except RuntimeError as error:
        sys.exit(f"soak failed: {error}")


if __name__ == "__main__":
    main()
