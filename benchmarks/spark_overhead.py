"""What a streaming query notices of ``commit_offsets``: the duration of its micro-batches.

The same data is read again and again, a query at a time: without a listener, with it, and with it
while the service is dead, stands still, is refused by Kafka, or answers errors.  The runs take
turns, in an order of each round's own, so that what drifts meets all of them alike.  Durations are
Spark's own.  The first batches of a run, which start readers and caches, are left out.
"""

from __future__ import annotations

import math
import random
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median, median_grouped
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer
from rich.console import Console
from rich.table import Table

from benchmarks.broken_service import answering_500
from benchmarks.service import sidecar
from benchmarks.spark_lab import reports
from offsetmgr.client import OffsetClient
from offsetmgr.spark import commit_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming import StreamingQuery

    from benchmarks.spark_lab import Lab
    from offsetmgr.spark.commits import OffsetCommits

BATCH = 5_000
"""Records: so few that a batch is mostly what Spark does around it."""
BATCHES = 12
SKIPPED = 2
"""The first batches of each run."""
TARGET = 0.01
DEALS = 10_000
LIKELY = 0.99
PLAIN = "no listener"
TIMEOUT_S = 60.0


class Service(NamedTuple):
    """What a listener's client finds at its address."""

    name: str
    address: str
    group: str | None = None
    """The group to commit to; None for a new one each time."""
    well: bool = False
    """Whether it commits."""


@dataclass
class Runs:
    """What the runs of one kind took."""

    durations_ms: list[list[int]] = field(default_factory=list)
    """Of the batches of each run."""
    processor_s: float = 0.0
    batches: int = 0

    @property
    def median_ms(self) -> float:
        """Of all batches, between whole milliseconds."""
        return _median([each for run in self.durations_ms for each in run])


def _median(durations_ms: Sequence[int]) -> float:
    # Spark tells whole milliseconds, of which one may be a per cent.
    return median_grouped(durations_ms, 1)


def overhead(lab: Lab, *, rounds: int) -> bool:
    """Measure and print; whether each kind is within its bound.

    Of five kinds and a few rounds one may be beyond it by chance: then as many rounds more are run,
    and all of them together decide.
    """
    rng = random.Random(1)  # noqa: S311 -- an order, not a secret
    runs: dict[str, Runs] = {}
    with lab.filled("overhead", BATCH * BATCHES), _services(lab) as services:
        # Two runs without a listener in each round: how far they are apart is the yardstick.
        kinds = [None, None, *services]
        names = [PLAIN, *(service.name for service in services)]

        def measure(into: dict[str, Runs]) -> None:
            for service in rng.sample(kinds, len(kinds)):
                _run(lab, service, into.setdefault(service.name if service else PLAIN, Runs()))

        measure({})  # to warm up
        for _ in range(rounds):
            measure(runs)
        good = _report(runs, names, rng)
        if not good:
            for _ in range(rounds):
                measure(runs)
            good = _report(runs, names, rng)
    return good


def _run(lab: Lab, service: Service | None, into: Runs) -> None:
    writer = lab.stream(BATCH).writeStream.format("noop")
    with ExitStack() as stack:
        commits = stack.enter_context(_listening(lab, service)) if service else None
        before_s = lab.processor_s()
        query = lab.run(writer, lab.new_checkpoint())
        into.processor_s += lab.processor_s() - before_s
        if service and commits:
            _check(service, commits, query, lab.records)
    took_ms = [each["durationMs"]["triggerExecution"] for each in reports(query)]
    into.batches += len(took_ms)
    into.durations_ms.append(took_ms[SKIPPED:BATCHES])


def _check(service: Service, commits: OffsetCommits, query: StreamingQuery, records: int) -> None:
    """The group has everything, or nothing where the service is not well."""
    result = commits.flush(query, timeout=TIMEOUT_S if service.well else 0)
    committed = sum(each.offset for each in result.committed.values())
    if committed != (records if service.well else 0):
        raise RuntimeError(f"{service.name}: {committed} of {records} records are committed")


@contextmanager
def _listening(lab: Lab, service: Service) -> Iterator[OffsetCommits]:
    """Attached for one run; nothing of it works on in the next one."""
    client = OffsetClient(service.address, name=lab.new_name())
    commits = commit_offsets(lab.spark, client, group=service.group or lab.new_name())
    try:
        yield commits
    finally:
        # A client that is closed first ends what would be tried again for a while.
        client.close(timeout=TIMEOUT_S if service.well else 0)
        commits.detach(timeout=TIMEOUT_S if service.well else 0)


@contextmanager
def _services(lab: Lab) -> Iterator[list[Service]]:
    """Every state that a service can be in; all of them stay as they are."""
    with ExitStack() as stack:
        well = stack.enter_context(sidecar(lab.brokers)).address
        with sidecar(lab.brokers) as dying:
            dead = dying.address
        stalled = stack.enter_context(sidecar(lab.brokers))
        stalled.process.suspend()
        stack.callback(stalled.process.resume)
        refused = lab.new_name()
        stack.enter_context(_member(lab, refused))
        yield [
            Service("listener", well, well=True),
            Service("service dead", dead),
            Service("service stalled (SIGSTOP)", stalled.address),
            Service("Kafka refuses the commits", well, refused),
            Service("service answers 500", stack.enter_context(answering_500())),
        ]


@contextmanager
def _member(lab: Lab, group: str) -> Iterator[None]:
    """An ordinary consumer that is in the group: Kafka refuses everybody else's commits."""
    config: dict[str, str | int] = {"bootstrap.servers": lab.brokers, "group.id": group}
    consumer = Consumer(config | {"max.poll.interval.ms": 86_400_000})
    consumer.subscribe([lab.topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.pause(consumer.assignment())
    try:
        yield
    finally:
        consumer.close()


def _ratios(runs: Runs, plain: Runs) -> list[float]:
    """How a kind's run of each round compares with the two of that round without a listener."""
    pairs = zip(plain.durations_ms[::2], plain.durations_ms[1::2], strict=True)
    both = [first + second for first, second in pairs]
    return [
        _median(ours) / _median(theirs)
        for ours, theirs in zip(runs.durations_ms, both, strict=True)
    ]


def _spread(plain: Runs, rng: random.Random) -> float:
    """How far two jobs without a listener are apart in this run, in all but 1 % of the cases.

    The two runs of each round are dealt out to two jobs, by chance and again and again.
    """
    pairs = list(zip(plain.durations_ms[::2], plain.durations_ms[1::2], strict=True))
    logs = [math.log(_median(first) / _median(second)) for first, second in pairs]
    dealt = ([rng.choice((each, -each)) for each in logs] for _ in range(DEALS))
    return math.expm1(sorted(abs(median(each)) for each in dealt)[int(LIKELY * DEALS)])


def _report(runs: dict[str, Runs], names: Sequence[str], rng: random.Random) -> bool:
    plain = runs[PLAIN]
    spread = _spread(plain, rng)
    bound = max(TARGET, spread)
    title = f"A streaming query's micro-batches of {BATCH:,} records"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("what")
    for column in ("batches", "median", "x no listener", "driver's processor time", ""):
        table.add_column(column, justify="right")
    good = True
    for name in names:
        each = runs[name]
        ratio = 1.0 if each is plain else median(_ratios(each, plain))
        within = ratio <= 1 + bound
        good = good and within
        table.add_row(
            name,
            str(sum(map(len, each.durations_ms))),
            f"{each.median_ms:,.1f} ms",
            f"{ratio:.3f}",
            f"{each.processor_s / each.batches * 1000:,.1f} ms/batch",
            "" if within else "beyond",
        )
    Console(width=110).print(table)
    print(
        f"Two jobs without a listener are up to {spread:.1%} apart in this run; the bound is "
        f"{bound:.1%}. No exception reached a query."
    )
    return good
