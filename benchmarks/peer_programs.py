"""``peer_programs.py PEER WORK BROKERS TOPIC COUNT``: another consumer, in a process of its own.

It prints the seconds from its first message to its last, commits included.  The works are
``single`` (each message alone, offsets committed once a second), ``batch`` (500 at once) and
``handlers`` (5 ms for each message, 64 at once).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import uuid
from importlib import import_module
from typing import Any

BATCH = 500
WORKERS = 64
HANDLER_S = 0.005


class Watch:
    """Counts messages from the first to the last, at which ``done`` is set."""

    def __init__(self, count: int) -> None:
        self.done = threading.Event()
        self.took_s = 0.0
        self._count = count
        self._began_s = 0.0
        self._seen = 0

    def see(self, number: int = 1) -> bool:
        """Count messages; True at the last."""
        if not self._seen:
            self._began_s = time.perf_counter()
        self._seen += number
        if self._seen >= self._count:
            self.done.set()
            return True
        return False

    def stop(self) -> None:
        self.took_s = time.perf_counter() - self._began_s

    def tell(self) -> None:
        # Not by print, which faust takes for its log.
        os.write(1, f"\n{self.took_s}\n".encode())


def group() -> str:
    return f"peer-{uuid.uuid4().hex}"


async def aiokafka(work: str, brokers: str, topic: str, watch: Watch) -> None:
    peer: Any = import_module("aiokafka")
    consumer = peer.AIOKafkaConsumer(
        topic,
        bootstrap_servers=brokers,
        group_id=group(),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    positions: dict[Any, int] = {}
    commit_at_s = time.monotonic() + 1
    if work == "single":
        async for message in consumer:
            positions[peer.TopicPartition(message.topic, message.partition)] = message.offset + 1
            if time.monotonic() >= commit_at_s:
                await consumer.commit(positions)
                commit_at_s = time.monotonic() + 1
            if watch.see():
                break
    elif work == "batch":
        while not watch.done.is_set():
            found = await consumer.getmany(timeout_ms=1000, max_records=BATCH)
            for where, messages in found.items():
                positions[where] = messages[-1].offset + 1
                watch.see(len(messages))
            if time.monotonic() >= commit_at_s and positions:
                await consumer.commit(positions)
                commit_at_s = time.monotonic() + 1
    else:
        await _in_batches_of_tasks(consumer, watch)
    await consumer.commit(positions or None)
    watch.stop()
    await consumer.stop()


async def _in_batches_of_tasks(consumer: Any, watch: Watch) -> None:
    """Handle 64 messages at once, wait for all, commit: what its users write by hand."""
    commit_at_s = time.monotonic() + 1
    while not watch.done.is_set():
        found = await consumer.getmany(timeout_ms=1000, max_records=WORKERS)
        messages = [each for part in found.values() for each in part]
        await asyncio.gather(*(asyncio.sleep(HANDLER_S) for _ in messages))
        watch.see(len(messages))
        if time.monotonic() >= commit_at_s:
            await consumer.commit()
            commit_at_s = time.monotonic() + 1


def faust(work: str, brokers: str, topic: str, watch: Watch) -> None:
    peer: Any = import_module("faust")
    app = peer.App(
        group(),
        broker=f"kafka://{brokers}",
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=1.0,
        web_enabled=False,
        store="memory://",
    )
    source = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw",
                       value_serializer="raw")  # fmt: skip

    async def end_at_last(last: bool) -> None:  # noqa: FBT001
        if last:
            await app.consumer.commit()
            watch.stop()
            watch.tell()
            os._exit(0)  # its worker takes seconds to stop

    async def single(stream: Any) -> None:
        async for _ in stream:
            await end_at_last(watch.see())

    async def batch(stream: Any) -> None:
        async for batch in stream.take(BATCH, within=1.0):
            await end_at_last(watch.see(len(batch)))

    async def handlers(stream: Any) -> None:
        async for _ in stream:
            await asyncio.sleep(HANDLER_S)
            await end_at_last(watch.see())

    program = {"single": single, "batch": batch, "handlers": handlers}[work]
    app.agent(source, concurrency=WORKERS if work == "handlers" else 1)(program)
    peer.Worker(app, loglevel="error").execute_from_commandline()


async def pyrallel(work: str, brokers: str, topic: str, watch: Watch) -> None:
    config: Any = import_module("pyrallel_consumer.config").KafkaConfig()
    peer: Any = import_module("pyrallel_consumer.consumer")
    config.BOOTSTRAP_SERVERS = [brokers]
    config.CONSUMER_GROUP = group()
    config.dlq_enabled = False
    config.parallel_consumer.worker_pool_size = WORKERS  # its width of ordering by key
    ended = asyncio.Event()

    async def worker(_: object) -> None:
        if work == "handlers":
            await asyncio.sleep(HANDLER_S)
        if watch.see():
            ended.set()

    consumer = peer.PyrallelConsumer(config=config, worker=worker, topic=topic)
    await consumer.start()
    await ended.wait()
    watch.stop()
    await consumer.stop()


def main(peer: str, work: str, brokers: str, topic: str, count: str) -> None:
    watch = Watch(int(count))
    if peer == "faust":
        faust(work, brokers, topic, watch)
    else:
        program = {"aiokafka": aiokafka, "pyrallel": pyrallel}[peer]
        asyncio.run(program(work, brokers, topic, watch))
    watch.tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
