"""Commits and initial fetches through the managers against bare admin clients, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import Contestant, in_turn, report
from offsetmgr.coordinator.kafka import CLIENTS, KafkaCoordinator
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from offsetmgr.types import ManagerKey

TIMEOUT_S = 60.0

BROKER_WARMUP = 20
"""Bare loops before those that count: until then the compiler of the broker's JVM takes a core, and
each request more than twice the processor time of later ones."""


def _bare_commit(clients: Sequence[AdminClient], groups: Sequence[str], size: int, at: int) -> None:
    """Every group's offsets in one request each, all at once, over these clients in turn."""
    futures: list[Future[ConsumerGroupTopicPartitions]] = []
    for number, group in enumerate(groups):
        offsets = [KafkaPartition("bench", partition, at) for partition in range(size)]
        client = clients[number % len(clients)]
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        futures += client.alter_consumer_group_offsets(request, request_timeout=TIMEOUT_S).values()
    for future in futures:
        failed = [p.error for p in future.result(TIMEOUT_S).topic_partitions or () if p.error]
        if failed:
            raise RuntimeError(f"the bare commit failed: {failed[0]}")


def _bare_fetch(client: AdminClient, group: str, size: int) -> None:
    wanted = [KafkaPartition("bench", partition) for partition in range(size)]
    request = [ConsumerGroupTopicPartitions(group, wanted)]
    answer = client.list_consumer_group_offsets(request, request_timeout=TIMEOUT_S)
    if len(answer[group].result(TIMEOUT_S).topic_partitions) != size:
        raise RuntimeError("the bare fetch did not answer for every partition")


def create_topic(bootstrap_servers: str, partitions: int) -> None:
    """Create the topic whose offsets are committed, where it is not there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    if "bench" not in admin.list_topics(timeout=TIMEOUT_S).topics:
        admin.create_topics([NewTopic("bench", partitions)])["bench"].result(TIMEOUT_S)


def _clients(bootstrap_servers: str, count: int) -> list[AdminClient]:
    clients = [AdminClient({"bootstrap.servers": bootstrap_servers}) for _ in range(count)]
    for number, client in enumerate(clients):
        _bare_commit([client], [f"warm-{number}"], 1, 1)
    return clients


def spawn(factory: Factory, groups: Sequence[str], size: int) -> list[ManagerHandle]:
    """Start managers of ``size`` partitions in each group, until all know their initial offset."""
    handles = []
    for group in groups:
        wanted = [TopicPartition("bench", partition) for partition in range(size)]
        for handle in factory.spawn_many(group, wanted).values():
            if not isinstance(handle, ManagerHandle):
                raise handle
            handles.append(handle)
    for handle in handles:
        handle.initial_offset(TIMEOUT_S)
    return handles


def _commit_all(
    factory: Factory,
    groups: Sequence[str],
    partitions: Sequence[TopicPartition],
    keys: Sequence[ManagerKey],
    at: int,
) -> None:
    """Submitted as the service does it, a group at a time."""
    offsets = dict.fromkeys(partitions, at)
    for group in groups:
        if factory.submit(group, offsets):
            raise RuntimeError("an offset was refused")
    left = factory.flush(keys, TIMEOUT_S).get()
    if any(result.uncommitted for result in left.values()):
        raise RuntimeError("not everything was committed")


def commits(
    bootstrap_servers: str, *, groups: int, size: int, rounds: int, warmup: int = 1
) -> None:
    """All of ``groups`` times ``size`` dirty at once, until all are committed."""
    many = _clients(bootstrap_servers, CLIENTS)
    one = many[:1]
    bare = [f"bare-{groups}-{number}" for number in range(groups)]
    coordinator = KafkaCoordinator({"bootstrap.servers": bootstrap_servers})
    factory = Factory(coordinator)
    ours = [f"ours-{groups}-{number}" for number in range(groups)]
    partitions = [TopicPartition("bench", partition) for partition in range(size)]
    keys = [handle.key for handle in spawn(factory, ours, size)]
    for number in range(BROKER_WARMUP if groups > 1 else 0):
        _bare_commit(many, bare, size, number)
    contestants = [
        Contestant(
            f"bare loop, {len(many)} admin clients",
            lambda number: _bare_commit(many, bare, size, number + 1),
        ),
        Contestant(
            "offset managers",
            lambda number: _commit_all(factory, ours, partitions, keys, number + 1),
        ),
    ]
    if groups > 1:
        contestants.append(
            Contestant(
                "bare loop, one admin client",
                lambda number: _bare_commit(one, bare, size, number + 1),
            )
        )
    results = in_turn(contestants, rounds=rounds, warmup=warmup)
    factory.stop(TIMEOUT_S)
    coordinator.close(TIMEOUT_S)
    title = f"Commit {groups:,} group(s) x {size:,} partitions, all dirty at once"
    report(title, results, items=groups * size, unit="offsets")


def initial_fetch(bootstrap_servers: str, *, size: int, rounds: int) -> None:
    """Spawn ``size`` managers of one group, until all have their initial offset."""
    client = _clients(bootstrap_servers, 1)[0]
    group = f"initial-{size}"
    _bare_commit([client], [group], size, 7)
    coordinator = KafkaCoordinator({"bootstrap.servers": bootstrap_servers})
    factory = Factory(coordinator)

    wanted = [TopicPartition("bench", partition) for partition in range(size)]

    def fetch(_number: int) -> None:
        if len(coordinator.fetch(group, wanted, TIMEOUT_S).get(timeout=TIMEOUT_S).offsets) != size:
            raise RuntimeError("the fetch did not answer for every partition")

    def ours(number: int) -> None:
        spawned.append(spawn(factory, [group], size) if number >= 0 else [])

    def clear(_number: int) -> None:
        for handles in spawned:
            factory.stop_managers([handle.key for handle in handles], TIMEOUT_S).get()
        spawned.clear()

    spawned: list[list[ManagerHandle]] = []
    results = in_turn(
        [
            Contestant("one bare request", lambda _: _bare_fetch(client, group, size)),
            Contestant("the coordinator's fetch", fetch),
            Contestant("spawn managers, all initial offsets", ours),
            Contestant("(stop them again)", clear),
        ],
        rounds=rounds,
    )
    factory.stop(TIMEOUT_S)
    coordinator.close(TIMEOUT_S)
    title = f"Initial offsets of {size:,} partitions of one group"
    report(title, results, items=size, unit="offsets")
