"""``python -m benchmarks.acks``: a consumer with acks beside a bare loop, and its worker pool.

Fails, with exit status 1 and the figures, where a floor is missed.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from statistics import median
from threading import Thread
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import TIMEOUT_S, at_least, end, in_turn, parser, report
from offsetmgr.consumer.acks import AckConsumer
from offsetmgr.consumer.tracker import AckTracker
from offsetmgr.devkafka import DevKafka

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.consumer.deliveries import AckMessage

PARTITIONS = 4
ACKS_PER_S = 300_000
BARE = 0.5
"""Rate of single messages with acks, against a bare loop."""
WORKERS = 64
TIMES_FASTER = 40
"""Of 64 workers against one."""
WINDOW = 1_000


def out_of_order(count: int, rounds: int) -> list[str]:
    """Acks in random order within windows, as a worker pool makes them."""
    orders: list[list[int]] = []
    for _ in range(16):
        order = list(range(WINDOW))
        random.Random(len(orders)).shuffle(order)  # noqa: S311
        orders.append(order)

    def run(_: int) -> None:
        tracker = AckTracker[None](0)
        for base in range(0, count, WINDOW):
            for offset in range(base, base + WINDOW):
                tracker.deliver(offset, None)
            for offset in orders[base // WINDOW % 16]:
                tracker.acknowledge(base + offset)
        if tracker.offset != count or tracker.pending:
            raise RuntimeError(f"{tracker.offset} of {count} are acknowledged")

    took = in_turn({"deliver and acknowledge": run}, rounds=rounds, warmup=0)
    report("Acks out of order", took, items=count, unit="acks")
    rate = count / median(took["deliver and acknowledge"])
    return at_least("acks out of order", rate, ACKS_PER_S, "acks/s")


def filled(brokers: str, count: int, keys: int) -> str:
    """Return a topic with ``count`` messages of 100 bytes."""
    topic = f"acks-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, b"x" * 100, f"key-{number % keys}")
        if number % 10_000 == 0:
            producer.flush(TIMEOUT_S)
    producer.flush(TIMEOUT_S)
    return topic


def bare(brokers: str, topic: str, count: int) -> float:
    """Return the seconds of a loop that commits once a second, from the first message on."""
    config = {
        "bootstrap.servers": brokers,
        "group.id": f"bare-{uuid.uuid4().hex}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    began_s = commit_s = 0.0
    read = 0
    while read < count:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None or not message.value():
            continue
        read += 1
        now_s = time.monotonic()
        began_s = began_s or now_s
        if now_s - commit_s > 1:
            consumer.commit(message=message)
            commit_s = now_s
    consumer.commit(asynchronous=False)
    took_s = time.monotonic() - began_s
    consumer.close()
    return took_s


def acks(brokers: str, topic: str, count: int) -> float:
    """Return the same of a consumer with acks."""
    with AckConsumer(brokers, f"acks-{uuid.uuid4().hex}", [topic]) as consumer:
        began_s = 0.0
        for read, message in enumerate(consumer, 1):
            began_s = began_s or time.monotonic()
            if message.value:
                message.ack()
            if read == count:
                break
        return time.monotonic() - began_s


def beside_a_bare_loop(brokers: str, count: int, rounds: int) -> list[str]:
    """Single messages, with acks and without."""
    topic = filled(brokers, count, 1_000)
    took: dict[str, list[float]] = {"bare loop": [], "acks": []}
    for _ in range(rounds):
        took["bare loop"].append(bare(brokers, topic, count))
        took["acks"].append(acks(brokers, topic, count))
    report("Single messages", took, items=count, unit="messages")
    ratio = median(took["bare loop"]) / median(took["acks"])
    return at_least("acks against a bare loop", ratio, BARE, "times its rate")


def workers(brokers: str, count: int) -> list[str]:
    """Handlers of 5 ms, ordered by key."""
    topic = filled(brokers, count, 1_000)

    def handled(number: int, workers: int) -> float:
        """Return messages per second."""
        consumer = AckConsumer(brokers, f"workers-{uuid.uuid4().hex}", [topic])
        times: list[float] = []

        def handle(_: AckMessage) -> None:
            times.append(time.monotonic())
            time.sleep(0.005)

        run: Callable[..., None] = consumer.run
        thread = Thread(target=run, args=[handle], kwargs={"workers": workers, "ordered_by": "key"})
        thread.start()
        while len(times) < number:
            time.sleep(0.01)
        rate = (number - 1) / (times[number - 1] - times[0])
        consumer.close()
        thread.join()
        return rate

    one, many = handled(min(count, 400), 1), handled(count, WORKERS)
    print(f"Handlers of 5 ms: {one:,.0f}/s by one worker, {many:,.0f}/s by {WORKERS}")
    return at_least(f"{WORKERS} workers", many / one, TIMES_FASTER, "times one worker")


def main() -> int:
    """Run the benchmarks, print their tables, and return the exit status."""
    arguments = parser("benchmarks.acks", __doc__)
    arguments.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = arguments.parse_args()
    missed = out_of_order(1_000_000, options.rounds)
    if options.brokers:
        return end(missed + over_kafka(options.brokers, options.rounds))
    with DevKafka() as kafka:
        return end(missed + over_kafka(kafka.bootstrap_servers, options.rounds))


def over_kafka(brokers: str, rounds: int) -> list[str]:
    """Run those that need a broker."""
    missed = beside_a_bare_loop(brokers, 300_000, rounds)
    return missed + workers(brokers, 40_000)


if __name__ == "__main__":
    sys.exit(main())
