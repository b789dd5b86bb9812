"""Micro-batches of a query without a listener, with it, and with it while nothing can be committed.

The service is dead, stands still, is refused by Kafka, or is something else that answers errors.
It fails if a query fails, or if an offset that should be committed is not.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer

from benchmarks.harness import TIMEOUT_S, show
from benchmarks.lab import BATCHES, Lab, lab, progress_of
from benchmarks.sidecar import sidecar
from offsetmgr.client import OffsetClient
from offsetmgr.spark import commit_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming import StreamingQuery

SKIPPED = 2
"""The first batches of each run, which start readers and caches."""
BATCH = 5_000
"""Records: so few that a batch is mostly what Spark does around it."""


class Service(NamedTuple):
    """State of the service at the address of a listener's client."""

    address: str
    commits: bool = False
    group: str | None = None
    """The group to commit to; None for a new one each time."""


def run(brokers: str, rounds: int) -> list[str]:
    """Compare the durations of micro-batches, by Spark's own measure."""
    durations_ms: dict[str, list[int]] = {}
    cpu_s: dict[str, float] = {}
    with lab(brokers, BATCH * BATCHES) as spark, _services(spark) as services:
        for number in range(rounds + 1):
            for name, service in services.items():
                before_s = spark.cpu_s()
                query = _listened(spark, name, service)
                if number:  # the first round is to warm up
                    cpu_s[name] = cpu_s.get(name, 0.0) + spark.cpu_s() - before_s
                    took = [each["durationMs"]["triggerExecution"] for each in progress_of(query)]
                    durations_ms.setdefault(name, []).extend(took[SKIPPED:BATCHES])
    base = median(next(iter(durations_ms.values())))
    rows = []
    for name, each in durations_ms.items():
        batch_ms = f"{cpu_s[name] * 1000 / (rounds * BATCHES):,.1f} ms/batch"
        took_ms = median(each)
        rows.append((name, str(len(each)), f"{took_ms:,.1f} ms", f"{took_ms / base:.3f}", batch_ms))
    columns = ("what", "batches", "median", "x no listener", "driver's processor time")
    show(f"A streaming query's micro-batches of {BATCH:,} records", columns, rows)
    return []


def _listened(spark: Lab, name: str, service: Service | None) -> StreamingQuery:
    """Run a query with a listener whose client finds ``service``; without one where it is None."""
    writer = spark.stream().writeStream.format("noop")
    if service is None:
        return spark.run(writer)
    timeout_s = TIMEOUT_S if service.commits else 0
    client = OffsetClient(service.address, name=spark.new_name())
    commits = commit_offsets(spark.spark, client, group=service.group or spark.new_name())
    try:
        query = spark.run(writer)
        committed = commits.flush(query, timeout=timeout_s).committed.values()
        done = sum(each.offset for each in committed)
        if done != (spark.records if service.commits else 0):
            raise RuntimeError(f"{name}: {done} of {spark.records} records are committed")
        return query
    finally:
        # A client that is closed first ends what would be tried again for a while.
        client.close(timeout=timeout_s)
        commits.detach(timeout=timeout_s)


@contextmanager
def _services(spark: Lab) -> Iterator[dict[str, Service | None]]:
    """Have a service in every state that it can be in."""
    with ExitStack() as stack:
        well = stack.enter_context(sidecar(spark.brokers)).address
        with sidecar(spark.brokers) as dying:
            dead = dying.address
        stalled = stack.enter_context(sidecar(spark.brokers))
        stalled.stats.suspend()
        stack.callback(stalled.stats.resume)
        refused = spark.new_name()
        stack.enter_context(_member(spark, refused))
        yield {
            "no listener": None,
            "listener": Service(well, commits=True),
            "service dead": Service(dead),
            "service stalled (SIGSTOP)": Service(stalled.address),
            "Kafka refuses the commits": Service(well, group=refused),
            "another server, which answers 501": Service(stack.enter_context(_wrong_server())),
        }


@contextmanager
def _wrong_server() -> Iterator[str]:
    """Run a web server that knows none of the requests, in a process of its own."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            told = next(iter(process.stdout or ()))  # ends with (http://127.0.0.1:PORT/) ...
            yield told.partition("(")[2].partition("/)")[0]
        finally:
            process.kill()


@contextmanager
def _member(spark: Lab, group: str) -> Iterator[None]:
    """Keep an ordinary consumer in the group: Kafka refuses everybody else's commits."""
    config: dict[str, str | int] = {"bootstrap.servers": spark.brokers, "group.id": group}
    consumer = Consumer(config | {"max.poll.interval.ms": 86_400_000})
    consumer.subscribe([spark.topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.pause(consumer.assignment())
    try:
        yield
    finally:
        consumer.close()
