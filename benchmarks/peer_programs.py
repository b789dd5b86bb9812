"""``peer_programs.py PEER WORK BROKERS TOPIC COUNT``: another program, in a process of its own.

It prints the seconds from its first message to its last, commits included.  The works of consumers
are ``single`` (each message alone, offsets committed once a second), ``batch`` (500 at once) and
``handlers`` (5 ms for each message, 64 at once).  ``count`` counts messages by key; for
``recover`` it prints the seconds in which quixstreams recovers its state.  Both take a GROUP and
the FOLDER of the state as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import uuid
from importlib import import_module
from tempfile import mkdtemp
from typing import Any

BATCH = 500
WORKERS = 64
HANDLER_S = 0.005


class Watch:
    """Counts messages from the first to the last, at which ``done`` is set."""

    def __init__(self, count: int) -> None:
        self.done = threading.Event()
        self.took_s = 0.0
        self.count = count
        self._began_s = 0.0
        self._seen = 0

    def see(self, number: int = 1) -> bool:
        """Count messages; True at the last."""
        if not self._seen:
            self._began_s = time.perf_counter()
        self._seen += number
        if self._seen >= self.count:
            self.done.set()
            return True
        return False

    def stop(self) -> None:
        self.took_s = time.perf_counter() - self._began_s

    def tell(self) -> None:
        # Not by print, which faust takes for its log.
        os.write(1, f"\n{self.took_s}\n".encode())


def new_group() -> str:
    return f"group-{uuid.uuid4().hex}"


async def aiokafka(work: str, brokers: str, topic: str, watch: Watch) -> None:
    """Read one by one, or so many at once; handlers of 64 messages are waited for together."""
    peer: Any = import_module("aiokafka")
    consumer = peer.AIOKafkaConsumer(
        topic,
        bootstrap_servers=brokers,
        group_id=new_group(),
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1_000,
    )
    await consumer.start()
    if work == "single":
        async for _ in consumer:
            if watch.see():
                break
    size = WORKERS if work == "handlers" else BATCH
    while not watch.done.is_set():
        found = await consumer.getmany(timeout_ms=1000, max_records=size)
        messages = [each for part in found.values() for each in part]
        if work == "handlers":
            await asyncio.gather(*(asyncio.sleep(HANDLER_S) for _ in messages))
        watch.see(len(messages))
    await consumer.commit()
    watch.stop()
    await consumer.stop()


def faust(work: str, brokers: str, topic: str, watch: Watch, group: str, folder: str) -> None:
    peer: Any = import_module("faust")
    app = peer.App(
        group,
        broker=f"kafka://{brokers}",
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=1.0,
        web_enabled=False,
        datadir=folder,
        topic_partitions=4,
        topic_replication_factor=1,
    )
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw"}
    source = app.topic(topic, **raw, value_serializer="raw")
    table = app.Table("counts", default=int, partitions=4) if work == "count" else None

    async def end_at_last(last: bool) -> None:  # noqa: FBT001
        if last:
            if table is not None:
                await app.producer.flush()
            await app.consumer.commit()
            watch.stop()
            watch.tell()
            os._exit(0)  # its worker takes seconds to stop

    async def batch(stream: Any) -> None:
        async for batch in stream.take(BATCH, within=1.0):
            await end_at_last(watch.see(len(batch)))

    async def one_by_one(stream: Any) -> None:
        async for key, _ in stream.items():  # noqa: PERF102 -- no dictionary
            if work == "handlers":
                await asyncio.sleep(HANDLER_S)
            elif table is not None:
                table[key.decode()] += 1
            await end_at_last(watch.see())

    concurrency = WORKERS if work == "handlers" else 1
    app.agent(source, concurrency=concurrency)(batch if work == "batch" else one_by_one)
    peer.Worker(app, loglevel="error").execute_from_commandline()


async def pyrallel(work: str, brokers: str, topic: str, watch: Watch) -> None:
    config: Any = import_module("pyrallel_consumer.config").KafkaConfig()
    peer: Any = import_module("pyrallel_consumer.consumer")
    config.BOOTSTRAP_SERVERS = [brokers]
    config.CONSUMER_GROUP = new_group()
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


class _Times(logging.Handler):
    """Notes when quixstreams begins to recover, and when that is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith(("Beginning recovery check", "Recovery process complete")):
            self.times.append(record.created)


def quixstreams(work: str, brokers: str, topic: str, watch: Watch, group: str, folder: str) -> None:
    """Count by key; to recover, the state comes before the first message."""
    app = import_module("quixstreams").Application(
        broker_address=brokers,
        consumer_group=group,
        auto_offset_reset="earliest",
        state_dir=folder,
    )
    recovery = _Times()
    logging.getLogger("quixstreams").handlers = [recovery]
    source = app.topic(topic, key_deserializer="bytes", value_deserializer="bytes")

    def count(_value: bytes, state: Any) -> None:
        state.set("count", state.get("count", 0) + 1)

    app.dataframe(source).update(count, stateful=True)
    app.run(count=watch.count)
    if work == "recover":
        watch.took_s = recovery.times[1] - recovery.times[0]


def main(
    peer: str, work: str, brokers: str, topic: str, count: str, group: str = "", folder: str = ""
) -> None:
    watch = Watch(int(count))
    if peer in {"faust", "quixstreams"}:
        program = {"faust": faust, "quixstreams": quixstreams}[peer]
        program(work, brokers, topic, watch, group or new_group(), folder or mkdtemp())
    else:
        asyncio.run({"aiokafka": aiokafka, "pyrallel": pyrallel}[peer](work, brokers, topic, watch))
    watch.tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
