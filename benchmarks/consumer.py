"""Consumers with marks and acks, and the reader of clusters, compared with a bare confluent-kafka.

All commit once a second; the bare loops by hand.  The clock runs from the first message to the last
commit.  Run as a program, it is one of ``consumer_peers``.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from functools import partial
from statistics import median
from threading import Lock, Thread
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer

from benchmarks.harness import at_least, at_most, filled, in_turn, report
from benchmarks.peer_programs import BATCH, HANDLER_S, WORKERS, Watch, new_group
from offsetmgr.acked_ranges import AckTracker
from offsetmgr.clusters import MultiClusterReader
from offsetmgr.consumer import AckConsumer, AckMessage, GroupConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT: Final = 200_000
BATCHED: Final = 1_000_000
"""Messages that are read in batches: fewer take a tenth of a second."""
HANDLED: Final = 40_000
COMMIT_S: Final = 1.0
KEYS: Final = 1_000
ACKS: Final = 1_000_000
WINDOW: Final = 1_000
"""Acks come in random order within so many messages, as a pool of workers makes them."""
PAUSE_MS: Final = 1_000
"""librdkafka's pause in fetching after a full queue."""
OUR_PAUSE_MS: Final = 50
"""The same in our consumers."""

BATCHES_FLOOR: Final = 0.8
ACKS_FLOOR: Final = 0.5
READER_FLOOR: Final = 0.85
TRACKER_FLOOR: Final = 300_000
PENDING_BYTES: Final = 300
WORKERS_FLOOR: Final = 40


def run(brokers: str, rounds: int) -> list[str]:
    return _tracking(rounds) + _reading(brokers, rounds) + _workers(brokers)


# Without a broker


def _tracking(rounds: int) -> list[str]:
    """Acknowledge out of order, in processor time: nothing here waits."""
    took = []
    for _ in range(rounds):
        began = process_time()
        _track(ACKS)
        took.append(process_time() - began)
    title = "Acks out of order, processor time"
    report(title, {"deliver and acknowledge": took}, items=ACKS, unit="acks")
    _track(WINDOW)
    tracemalloc.start()
    _track(ACKS // 10)
    peak = tracemalloc.get_traced_memory()[1] / WINDOW
    tracemalloc.stop()
    print(f"Memory for each of {WINDOW:,} pending offsets: {peak:.0f} bytes")
    missed = at_least("acks out of order", ACKS / median(took), TRACKER_FLOOR, "acks/s")
    return missed + at_most("memory of a pending offset", peak, PENDING_BYTES, "bytes")


def _track(count: int) -> None:
    tracker = AckTracker[None](0)
    order = list(range(WINDOW))
    random.Random(count).shuffle(order)  # noqa: S311
    for base in range(0, count, WINDOW):
        for offset in range(base, base + WINDOW):
            tracker.deliver(offset, None)
        for offset in order:
            tracker.acknowledge(base + offset)
    if tracker.offset != count or tracker.pending:
        raise RuntimeError(f"{tracker.offset} of {count} are acknowledged")


# Beside bare loops


def _reading(brokers: str, rounds: int) -> list[str]:
    """Read messages one by one, and more of them in batches."""
    _, bare, _, acked, polled, reader = _in_turn(
        brokers,
        rounds,
        COUNT,
        {
            "confluent-kafka, one by one": partial(_bare, size=1),
            "the same, with our pause": partial(_bare, size=1, pause_ms=OUR_PAUSE_MS),
            "iteration with mark_offset": _marks,
            "iteration with ack": acks,
            "confluent-kafka, no commits": partial(_bare, size=1, commits=False),
            "MultiClusterReader, one cluster": _cluster_reader,
        },
    )
    missed = at_least("messages with acks against bare ones", bare / acked, ACKS_FLOOR)
    missed += at_least("reader of one cluster against bare", polled / reader, READER_FLOOR)
    _, bare, marked = _in_turn(
        brokers,
        rounds,
        BATCHED,
        {
            f"confluent-kafka, batches of {BATCH}": partial(_bare, size=BATCH),
            "the same, with our pause": partial(_bare, size=BATCH, pause_ms=OUR_PAUSE_MS),
            "batches() with marks": batches,
        },
    )
    return missed + at_least("batches with marks against bare ones", bare / marked, BATCHES_FLOOR)


def _in_turn(
    brokers: str, rounds: int, count: int, readers: dict[str, Callable[[str, str, Watch], None]]
) -> list[float]:
    """Let each read ``count`` messages in turn; return the median of the seconds of each."""
    topic = filled(brokers, count, KEYS)

    def timed(read: Callable[[str, str, Watch], None]) -> Callable[[int], float]:
        def read_all(_round: int) -> float:
            watch = Watch(count)
            read(brokers, topic, watch)
            return watch.took_s

        return read_all

    took = in_turn({name: timed(read) for name, read in readers.items()}, rounds=rounds)
    report(f"Read {count:,} messages", took, items=count, unit="messages")
    return [median(each) for each in took.values()]


def _bare(
    brokers: str,
    topic: str,
    watch: Watch,
    *,
    size: int,
    commits: bool = True,
    pause_ms: int = PAUSE_MS,
) -> None:
    config: dict[str, str | bool | int] = {
        "bootstrap.servers": brokers,
        "group.id": new_group(),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
        "fetch.queue.backoff.ms": pause_ms,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    commit_at_s = perf_counter() + COMMIT_S
    while not watch.done.is_set():
        if size > 1:
            count = len([each for each in consumer.consume(size, 1.0) if each.error() is None])
        else:
            message = consumer.poll(1.0)
            count = int(message is not None and message.error() is None and bool(message.value()))
        if count == 0:
            continue
        is_last = watch.see(count)
        if commits and (is_last or perf_counter() >= commit_at_s):
            consumer.commit(asynchronous=False)
            commit_at_s = perf_counter() + COMMIT_S
    watch.stop()
    consumer.close()


def batches(brokers: str, topic: str, watch: Watch) -> None:
    with GroupConsumer(brokers, new_group(), [topic]) as consumer:
        for batch in consumer.batches(BATCH):
            consumer.mark_messages(batch)
            if watch.see(len(batch)):
                break
        consumer.commit_offsets()
        watch.stop()


def _marks(brokers: str, topic: str, watch: Watch) -> None:
    consumer = GroupConsumer(brokers, new_group(), [topic])
    _one_by_one(consumer, consumer.mark_offset, watch)


def acks(brokers: str, topic: str, watch: Watch) -> None:
    _one_by_one(AckConsumer(brokers, new_group(), [topic]), AckMessage.ack, watch)


def _one_by_one(consumer: Any, done: Callable[[Any], object], watch: Watch) -> None:
    with consumer:
        for message in consumer:
            if message.value():
                done(message)
            if watch.see():
                break
        consumer.commit_offsets()
        watch.stop()


def _cluster_reader(brokers: str, topic: str, watch: Watch) -> None:
    with MultiClusterReader({"here": brokers}, topic) as reader:
        while True:
            found = reader.read_message(timeout=60.0)
            if found is not None and found.message.value() and watch.see():
                break
        watch.stop()


# A pool of workers


def _workers(brokers: str) -> list[str]:
    """Run handlers of 5 ms, ordered by key."""
    topic = filled(brokers, HANDLED, KEYS)
    rates = []
    for workers, count in ((1, HANDLED // 100), (WORKERS, HANDLED)):
        watch = Watch(count)
        handlers(brokers, topic, watch, workers)
        rates.append(count / watch.took_s)
    one, many = rates
    print(f"Handlers of 5 ms: {one:,.0f}/s by one worker, {many:,.0f}/s by {WORKERS}")
    return at_least(f"{WORKERS} workers", many / one, WORKERS_FLOOR, "times one worker")


def handlers(brokers: str, topic: str, watch: Watch, workers: int = WORKERS) -> None:
    consumer = AckConsumer(brokers, new_group(), [topic])
    lock = Lock()

    def handle(_: object) -> None:
        time.sleep(HANDLER_S)
        with lock:
            watch.see()

    pool = Thread(target=lambda: consumer.run(handle, workers=workers, ordered_by="key"))
    pool.start()
    watch.done.wait()
    watch.stop()
    consumer.close()
    pool.join()


if __name__ == "__main__":
    _, work, brokers, topic, count = sys.argv
    watch = Watch(int(count))
    {"single": acks, "batch": batches, "handlers": handlers}[work](brokers, topic, watch)
    watch.tell()
