"""``python -m benchmarks.soak MINUTES``: a day's commits in a few minutes, and nothing may grow.

A job that triggers every 5 s has its offsets committed 17,280 times a day.  Here the real service
process does that on a real Kafka with the interval shortened to fit, for several clients, each
with a group of its own.  Now and then the broker stands still (SIGSTOP), for longer than a request
may take.  Once a minute a row says how it goes; at the end Kafka is asked, past all of our code,
whether it holds the newest offset of every partition.

It fails, with exit status 1 and the reason, when an offset is lost, when the service ends by
itself or does not stop in order, when memory, threads or file descriptors grow past a bound, and
when ten minutes or more bring less than a day's commits.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.request import urlopen

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import TIMEOUT_S, TOPIC, resident_mb
from benchmarks.sidecar import Sidecar, sidecar
from offsetmgr import OffsetClient
from offsetmgr.devkafka import Broker, DevKafka
from offsetmgr.devkafka.command import create_topic
from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
GROWTH_RATIO: Final = 1.1
GROWTH_FREE_MB: Final = 8.0
"""Resident memory at the end may be this many times what it was after the warm-up, plus that."""
GROWTH_HANDLES: Final = 20
"""Threads, and file descriptors, that there may be more at the end than after the warm-up."""


class SoakError(RuntimeError):
    """Something that must not happen did."""


class Sample(NamedTuple):
    """The service at one moment."""

    committed: int
    """Offsets that Kafka has acknowledged."""
    failed: int
    """Offsets that Kafka has refused, or of which nothing is known."""
    rss_mb: float
    threads: int
    descriptors: int


def sample(service: Sidecar) -> Sample:
    service.check()
    with urlopen(f"{service.address}/metrics", timeout=TIMEOUT_S) as page:  # noqa: S310 -- http
        families = list(text_string_to_metric_families(page.read().decode()))
    counts = {
        each.labels["result"]: int(each.value)
        for family in families
        for each in family.samples
        if each.name == "offsetmgr_commits_total"
    }
    stats = service.stats
    return Sample(
        counts["committed"],
        counts["failed"],
        resident_mb(stats),
        stats.num_threads(),
        stats.num_fds(),
    )


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
        told = self._client.spawn(self.group, TOPIC, 0).errors()
        while not self._over.wait(self._interval_s):
            self.ticks += 1
            offsets = {(TOPIC, number): self.ticks for number in range(PARTITIONS)}
            try:
                self._client.submit(self.group, offsets, sync=self.ticks % 100 == 0, timeout=3)
            except OffsetManagerError:
                self.late += 1
        del told

    def finish(self) -> None:
        """Raise SoakError if not everything is committed."""
        self._over.set()
        self.join(TIMEOUT_S)
        left = self._client.flush(timeout=TIMEOUT_S).uncommitted
        if left:
            raise SoakError(f"{len(left)} offsets of {self.group} were not committed: {left}")

    def close(self) -> None:
        self._over.set()
        self._client.close()


def watch(
    service: Sidecar, jobs: Sequence[Job], broker: Broker, minutes: float
) -> tuple[list[Sample], int]:
    """Let it run, with a row about each minute; return the samples, and how often Kafka froze."""
    heads = ("minute", *Sample._fields, "late", "pauses")
    print(" ".join(f"{head:>11}" for head in heads), flush=True)
    samples: list[Sample] = []
    pauses = 0
    began = time.monotonic()
    while (now_s := time.monotonic() - began) < minutes * 60:
        for _ in range(SAMPLES):
            samples.append(sample(service))
            time.sleep(SAMPLE_S)
        row = (now_s / 60, *samples[-1], sum(job.late for job in jobs), pauses)
        print(" ".join(f"{value:>11,.0f}" for value in row), flush=True)
        broker.pause()
        time.sleep(PAUSE_S)
        broker.resume()
        pauses += 1
    return samples, pauses


def check_growth(samples: Sequence[Sample]) -> str:
    """Compare memory at the end with memory after the warm-up.

    Raises SoakError where it is more than the bounds allow.
    """
    first = int(len(samples) * WARM_UP)
    width = max(1, (len(samples) - first) // 4)
    early, late = samples[first : first + width], samples[-width:]
    before_mb, after_mb = median(s.rss_mb for s in early), median(s.rss_mb for s in late)
    text = f"resident memory {before_mb:.1f} MB after the warm-up, {after_mb:.1f} MB at the end"
    if after_mb > before_mb * GROWTH_RATIO + GROWTH_FREE_MB:
        raise SoakError(f"memory grows: {text}")
    for what in ("threads", "descriptors"):
        before, after = (median(getattr(s, what) for s in part) for part in (early, late))
        text += f"; {what} {before:.0f} and {after:.0f}"
        if after > before + GROWTH_HANDLES:
            raise SoakError(f"{what} grow: {text}")
    return text


def check_days(minutes: float, commits: int) -> float:
    """Return the days of commits that each group has had, of so many offsets acknowledged in all.

    Raises SoakError where a run of ``DAY_MINUTES`` has had less than one.
    """
    days = commits / PARTITIONS / CLIENTS / DAY_TICKS
    if minutes >= DAY_MINUTES and days < 1:
        raise SoakError(f"{days:.2f} days of commits for each group in {minutes:g} minutes, not 1")
    return days


def check_kafka(bootstrap_servers: str, jobs: Sequence[Job]) -> None:
    """Ask Kafka itself.  Raises SoakError where it does not hold the newest offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for job in jobs:
        wanted = [KafkaPartition(TOPIC, number) for number in range(PARTITIONS)]
        request = [ConsumerGroupTopicPartitions(job.group, wanted)]
        answer = admin.list_consumer_group_offsets(request)[job.group].result(TIMEOUT_S)
        held = {found.offset for found in answer.topic_partitions}
        if held != {job.ticks}:
            raise SoakError(f"group {job.group} is at {sorted(held)} instead of {job.ticks}")


def soak(minutes: float) -> None:
    interval_s = minutes * 60 * SLACK / DAY_TICKS
    print(f"{CLIENTS} groups x {PARTITIONS} partitions, a commit every {interval_s * 1000:.1f} ms")
    with ExitStack() as stack:
        kafka = stack.enter_context(DevKafka())
        create_topic(kafka.bootstrap_servers, TOPIC, PARTITIONS)
        service = stack.enter_context(
            sidecar(kafka.bootstrap_servers, **{"commit.commit_interval_s": interval_s})
        )
        jobs = [Job(service.address, number, interval_s) for number in range(CLIENTS)]
        for job in jobs:
            stack.callback(job.close)
            job.start()
        samples, pauses = watch(service, jobs, kafka.broker(1), minutes)
        for job in jobs:
            job.finish()
        check_kafka(kafka.bootstrap_servers, jobs)
        print(check_growth(samples))
        days = check_days(minutes, sample(service).committed)
        print(f"{days:.2f} days of commits for each group, {pauses} pauses, none lost")
        for job in jobs:
            job.close()
        service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10.0, help="how long (10)")
    # What a frozen broker makes of each partition stands in the table, as a count.
    logging.getLogger("offsetmgr.client").setLevel(logging.ERROR)
    try:
        soak(parser.parse_args().minutes)
    except RuntimeError as error:
        sys.exit(f"soak failed: {error}")


if __name__ == "__main__":
    main()
