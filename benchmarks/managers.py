"""Submits to managers and their commits in process, against dictionaries and bare admin clients."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from benchmarks.harness import TIMEOUT_S, TOPIC, at_least, at_most, in_turn, report
from benchmarks.plots import record
from offsetmgr.coordinator.kafka import CLIENTS, KafkaCoordinator
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.kafka.errors import known
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

SUBMITS_PER_S = 1_000_000
STORES = 25
"""Stores into a dictionary in the time of one submit: the floor of a slower machine."""
GROUPWISE_PER_S = 3_000_000
UPDATES = 7.3
"""The same for an offset submitted group-wise, against ``dict.update``."""
ONE_REQUEST = 2.0
"""A commit of one group, against a bare request."""
BARE_POOL = 1.5
"""A commit of many groups, against as many bare clients."""
ONE_CLIENT_RATIO = 6.0
"""Least ratio to the rate of a single client."""

SIZES = (1, 10, 100, 1_000)
"""Partitions of one group."""
OURS = "offset managers"
POOL = f"bare loop, {CLIENTS} admin clients"
ONE_CLIENT = "bare loop, one admin client"

JVM_WARMUP = 100
"""Rounds of short requests before they count: until then the compiler of the broker's JVM takes a
core from whoever's turn it is."""


def spawn(
    factory: Factory, groups: Sequence[str], size: int, topic: str = TOPIC
) -> list[ManagerHandle]:
    """Start managers of ``size`` partitions in each group, until all know their initial offset."""
    handles: list[ManagerHandle] = []
    for group in groups:
        handles += map(known, factory.spawn_many(group, _partitions(size, topic)).values())
    for handle in handles:
        handle.initial_offset(timeout=TIMEOUT_S)
    return handles


def run(brokers: str, rounds: int) -> list[str]:
    missed = _submits(count=500_000, rounds=rounds)
    missed += _groupwise(size=1_000, count=500, rounds=rounds)
    times_ms = {}
    for size in SIZES:
        took = _commits(brokers, groups=1, size=size, rounds=rounds * 10)
        for name, seconds in ((OURS, took[OURS]), ("one bare request", took[POOL])):
            times_ms[f"{name}, {size:,}"] = round(seconds * 1_000, 2)
    record("commits", times_ms)
    what = f"commit of {SIZES[-1]:,} partitions of a group, against a bare request"
    missed += at_most(what, took[OURS] / took[POOL], ONE_REQUEST)
    took = _commits(brokers, groups=1_000, size=10, rounds=rounds)
    what = "commit of 1,000 groups of 10 partitions"
    missed += at_most(f"{what}, against {POOL}", took[OURS] / took[POOL], BARE_POOL)
    faster = took[ONE_CLIENT] / took[OURS]
    return missed + at_least(f"{what}, times faster than {ONE_CLIENT}", faster, ONE_CLIENT_RATIO)


def _partitions(size: int, topic: str = TOPIC) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(size)]


def _submits(*, count: int, rounds: int) -> list[str]:
    """``submit`` in one thread, against storing into a dictionary."""
    factory = Factory(MemoryCoordinator())
    (handle,) = spawn(factory, ["group"], 1)
    store: dict[str, int] = {}

    def plain(number: int) -> None:
        for offset in range(number * count, (number + 1) * count):
            store["offset"] = offset

    def ours(number: int) -> None:
        submit = handle.submit
        for offset in range(number * count, (number + 1) * count):
            submit(offset)

    results = in_turn({"a dictionary store": plain, "handle.submit": ours}, rounds=rounds)
    factory.stop(timeout=TIMEOUT_S)
    title = "Submit to one manager, one thread"
    return _held(title, results, count, "submits", SUBMITS_PER_S, STORES)


def _groupwise(*, size: int, count: int, rounds: int) -> list[str]:
    """``Factory.submit`` of ``size`` partitions at once, against updating a dictionary."""
    factory = Factory(MemoryCoordinator())
    spawn(factory, ["group"], size)
    store: dict[TopicPartition, int] = {}
    # Made beforehand, as a caller has them: what is measured is what is done with them.
    prepared = [
        [dict.fromkeys(_partitions(size), number * count + step) for step in range(count)]
        for number in range(rounds + 1)
    ]

    def plain(number: int) -> None:
        for offsets in prepared[number]:
            store.update(offsets)

    def ours(number: int) -> None:
        for offsets in prepared[number]:
            if factory.submit("group", offsets):
                raise RuntimeError("an offset was refused")

    results = in_turn({"dict.update": plain, "factory.submit": ours}, rounds=rounds)
    factory.stop(timeout=TIMEOUT_S)
    title = f"Submit {size:,} partitions of a group at once, checks included, one thread"
    return _held(title, results, size * count, "offsets", GROUPWISE_PER_S, UPDATES)


def _held(
    title: str, results: dict[str, list[float]], items: int, unit: str, floor: float, times: float
) -> list[str]:
    """Hold ours to ``floor`` a second, on a slow machine to the plain rate over ``times``."""
    report(title, results, items=items, unit=unit)
    plain_rate, rate = (items / median(seconds) for seconds in results.values())
    return at_least(title, rate, min(floor, plain_rate / times), f"{unit} per second")


def _commits(bootstrap_servers: str, *, groups: int, size: int, rounds: int) -> dict[str, float]:
    """Return the seconds until ``groups`` times ``size`` offsets, dirty at once, are committed."""
    many = [AdminClient({"bootstrap.servers": bootstrap_servers}) for _ in range(CLIENTS)]
    for number, client in enumerate(many):
        _bare_commit([client], [f"warm-{number}"], 1, 1)
    bare_groups = [f"bare-{groups}-{size}-{number}" for number in range(groups)]
    coordinator = KafkaCoordinator({"bootstrap.servers": bootstrap_servers})
    factory = Factory(coordinator)
    our_groups = [f"ours-{groups}-{size}-{number}" for number in range(groups)]
    partitions = _partitions(size)
    keys = [handle.key for handle in spawn(factory, our_groups, size)]

    def ours(number: int) -> None:
        """Submit as the service does, a group at a time."""
        offsets = dict.fromkeys(partitions, number + 1)
        for group in our_groups:
            if factory.submit(group, offsets):
                raise RuntimeError("an offset was refused")
        left = factory.flush(keys, timeout=TIMEOUT_S).get()
        if any(result.uncommitted for result in left.values()):
            raise RuntimeError("not everything was committed")

    contestants = {
        POOL: lambda number: _bare_commit(many, bare_groups, size, number + 1),
        OURS: ours,
    }
    if groups > 1:
        contestants[ONE_CLIENT] = lambda number: _bare_commit(
            many[:1], bare_groups, size, number + 1
        )
        for number in range(JVM_WARMUP // 5):
            _bare_commit(many, bare_groups, size, number)
    warmup = 1 if groups > 1 else JVM_WARMUP
    results = in_turn(contestants, rounds=rounds, warmup=warmup)
    factory.stop(timeout=TIMEOUT_S)
    coordinator.close(timeout=TIMEOUT_S)
    title = f"Commit {groups:,} group(s) x {size:,} partitions, all dirty at once"
    report(title, results, items=groups * size, unit="offsets")
    return {name: median(seconds) for name, seconds in results.items()}


def _bare_commit(clients: Sequence[AdminClient], groups: Sequence[str], size: int, at: int) -> None:
    """Every group's offsets in one request each, all at once, over these clients in turn."""
    futures: list[Future[ConsumerGroupTopicPartitions]] = []
    for number, group in enumerate(groups):
        offsets = [KafkaPartition(TOPIC, partition, at) for partition in range(size)]
        client = clients[number % len(clients)]
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        futures += client.alter_consumer_group_offsets(request, request_timeout=TIMEOUT_S).values()
    for future in futures:
        failed = [p.error for p in future.result(TIMEOUT_S).topic_partitions or () if p.error]
        if failed:
            raise RuntimeError(f"the bare commit failed: {failed[0]}")
