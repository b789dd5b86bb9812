"""What managers cost by themselves: a coordinator in memory, so that only our own work is seen."""

from __future__ import annotations

import threading

from benchmarks.harness import Contestant, in_turn, report
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import TopicPartition

TIMEOUT_S = 60.0


def _spawn(factory: Factory, groups: int, size: int) -> list[ManagerHandle]:
    handles = []
    for number in range(groups):
        wanted = [TopicPartition("bench", partition) for partition in range(size)]
        made = factory.spawn_many(f"group-{number}", wanted).values()
        handles += [handle for handle in made if isinstance(handle, ManagerHandle)]
    for handle in handles:
        handle.initial_offset(TIMEOUT_S)
    return handles


def life(*, groups: int, size: int, rounds: int) -> None:
    """Spawn, commit and stop ``groups`` times ``size`` managers."""
    factory = Factory(MemoryCoordinator())
    held: list[ManagerHandle] = []

    def spawn(_number: int) -> None:
        held.extend(_spawn(factory, groups, size))

    def flush(number: int) -> None:
        for handle in held:
            handle.submit(number + 1)
        factory.flush([handle.key for handle in held], TIMEOUT_S).get()

    def stop(_number: int) -> None:
        factory.stop_managers([handle.key for handle in held], TIMEOUT_S).get()
        held.clear()

    results = in_turn(
        [
            Contestant("spawn, with initial offsets", spawn),
            Contestant("submit and flush", flush),
            Contestant("stop", stop),
        ],
        rounds=rounds,
    )
    threads = threading.active_count()
    factory.stop(TIMEOUT_S)
    title = (
        f"{groups * size:,} managers in {groups:,} groups, coordinator in memory, {threads} threads"
    )
    report(title, results, items=groups * size, unit="managers")


def submits(*, count: int, rounds: int) -> None:
    """``submit`` in one thread, against storing into a dictionary."""
    factory = Factory(MemoryCoordinator())
    handle = factory.spawn("group", "bench", 0)
    handle.initial_offset(TIMEOUT_S)
    store: dict[str, int] = {}

    def plain(number: int) -> None:
        for offset in range(number * count, (number + 1) * count):
            store["offset"] = offset

    def ours(number: int) -> None:
        submit = handle.submit
        for offset in range(number * count, (number + 1) * count):
            submit(offset)

    results = in_turn(
        [Contestant("a dictionary store", plain), Contestant("handle.submit", ours)], rounds=rounds
    )
    factory.stop(TIMEOUT_S)
    report("Submit to one manager, one thread", results, items=count, unit="submits")


def groupwise(*, size: int, count: int, rounds: int) -> None:
    """``Factory.submit`` of ``size`` partitions at once, against updating a dictionary."""
    factory = Factory(MemoryCoordinator())
    _spawn(factory, 1, size)
    keys = [TopicPartition("bench", partition) for partition in range(size)]
    store: dict[TopicPartition, int] = {}

    def batches(number: int) -> list[dict[TopicPartition, int]]:
        return [dict.fromkeys(keys, number * count + step) for step in range(count)]

    # Made beforehand, as a caller has them: what is measured is what is done with them.
    prepared = [batches(number) for number in range(rounds + 1)]

    def plain(number: int) -> None:
        for offsets in prepared[number]:
            store.update(offsets)

    def ours(number: int) -> None:
        for offsets in prepared[number]:
            if factory.submit("group-0", offsets):
                raise RuntimeError("an offset was refused")

    results = in_turn(
        [Contestant("dict.update", plain), Contestant("factory.submit", ours)], rounds=rounds
    )
    factory.stop(TIMEOUT_S)
    title = f"Submit {size:,} partitions of a group at once, checks included, one thread"
    report(title, results, items=size * count, unit="offsets")
