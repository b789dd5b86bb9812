"""``python -m benchmarks.streams``: a counter of keys on Spark, beside faust, quixstreams and goka.

Each counts the same messages by key, with its table's changelog in Kafka, as a process of its own.
It runs twice, for few and for many messages; the rate is that of the difference, so that what a
start costs is counted apart.  Peers are installed in a folder of their own: the Python ones by pip,
goka by Go.  ``--peers`` leaves out what is not named.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import psutil
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from benchmarks.harness import end, parser, show
from benchmarks.spark import lab
from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.command import create_topic
from offsetmgr.streams import codecs, define_group, input, persist
from offsetmgr.streams.processor import Processor, ProcessorSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.streams import Context

HERE = Path(__file__).parent / "stream_peers"
PARTITIONS = 4
BATCH = 1_000_000
"""Most messages of a batch of the processor."""
FLOOR = 100_000
"""Messages a second of the processor."""
PEERS = ("faust", "quixstreams", "goka")
SAMPLE_S = 0.5
FEW = {"offsetmgr": 200_000, "goka": 100_000, "quixstreams": 20_000, "faust": 5_000}
MANY = {"offsetmgr": 1.0, "goka": 1.0, "quixstreams": 0.2, "faust": 0.04}
"""Part of all messages that each counts: the slow ones would take minutes for all."""


class Rate(NamedTuple):
    """Time of a contestant's two runs."""

    name: str
    messages: int
    start_s: float
    """The run over few messages, less what they take at the rate."""
    per_s: float
    peak_mb: int
    """Most memory of all its processes together, sampled."""


def fill(brokers: str, topic: str, events: int, keys: int) -> None:
    """Produce ``events`` messages over ``keys`` keys, by Spark in a process that ends."""
    create_topic(brokers, topic, PARTITIONS)
    with lab(brokers) as spark_lab:
        key = F.pmod(F.col("id") * 7919, F.lit(keys)).cast("string").cast("binary").alias("key")
        rows = spark_lab.spark.range(events).select(key, F.lit(b"1").alias("value"))
        partition = F.pmod(F.hash("key"), F.lit(PARTITIONS)).alias("partition")
        writer = rows.select("key", "value", partition).write.format("kafka")
        writer.option("kafka.bootstrap.servers", brokers).option("topic", topic).save()


def count(brokers: str, topic: str, messages: int) -> None:
    """Count the first ``messages`` of a topic with a processor."""

    def increment(context: Context, _value: bytes) -> None:
        context.set_value((context.value() or 0) + 1)

    group = f"count-{uuid4().hex[:8]}"
    graph = define_group(group, input(topic, codecs.Bytes(), increment), persist(codecs.Int64()))
    settings = ProcessorSettings(missing="earliest", max_offsets_per_trigger=min(messages, BATCH))
    with lab(brokers) as spark_lab:
        checkpoint = spark_lab.new_checkpoint()
        processor = Processor(
            spark_lab.spark, graph, brokers, checkpoint=checkpoint, settings=settings
        ).start()
        while sum(processor.stats().read.values()) < messages:
            processor.await_end(timeout=0.05)
        processor.stop()


def install(peers: list[str], folder: Path) -> dict[str, list[str]]:
    """Install peers; return the beginning of each one's command."""
    commands = {}
    python = folder / "venv/bin/python"
    if {"faust", "quixstreams"} & set(peers):
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        names = {"faust": "faust-streaming==0.15.3", "quixstreams": "quixstreams==3.28.1"}
        wanted = [names[peer] for peer in peers if peer in names]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    if "goka" in peers:
        program = folder / "goka-counter"
        subprocess.run(["go", "build", "-o", program, "."], cwd=HERE / "goka", check=True)
        commands["goka"] = [str(program)]
    commands["faust"] = [str(python), str(HERE / "faust_counter.py")]
    commands["quixstreams"] = [str(python), str(HERE / "quix_counter.py")]
    return {peer: commands[peer] for peer in peers}


def measure(name: str, few: int, many: int, command: Callable[[int], list[str]]) -> Rate:
    """Run over few messages and over many."""
    took_s, peak = [], 0
    for messages in (few, many):
        began_s = time.perf_counter()
        with subprocess.Popen(
            command(messages), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            while process.poll() is None:
                peak = max(peak, _memory(process.pid))
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=SAMPLE_S)
        if process.returncode:
            raise RuntimeError(f"{name} ended with status {process.returncode}")
        took_s.append(time.perf_counter() - began_s)
    per_s = (many - few) / (took_s[1] - took_s[0])
    return Rate(name, many, took_s[0] - few / per_s, per_s, peak // 1_000_000)


def _memory(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def main() -> int:
    """Measure on a broker of its own, or on ``--brokers``; return the exit status."""
    arguments = parser("benchmarks.streams", __doc__)
    arguments.add_argument("--events", type=int, default=1_000_000, help="messages (1 million)")
    arguments.add_argument("--keys", type=int, default=200_000, help="different keys (200,000)")
    arguments.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    arguments.add_argument(
        "--count", nargs=2, metavar=("TOPIC", "MESSAGES"), help="one run of ours"
    )
    arguments.add_argument("--fill", metavar="TOPIC", help="produce the messages")
    options = arguments.parse_args()
    if options.fill:
        fill(options.brokers, options.fill, options.events, options.keys)
        return 0
    if options.count:
        count(options.brokers, options.count[0], int(options.count[1]))
        return 0
    ours = [sys.executable, "-m", "benchmarks.streams", "--brokers"]
    rates = []
    with TemporaryDirectory(prefix="offsetmgr-streams-") as place, DevKafka() as kafka:
        folder = Path(place)
        brokers, topic = kafka.bootstrap_servers, "events"
        sizes = ["--events", str(options.events), "--keys", str(options.keys)]
        subprocess.run([*ours, brokers, "--fill", topic, *sizes], check=True)

        commands = {"offsetmgr": [*ours, brokers, "--count", topic]}
        commands |= install(options.peers, folder)
        for name in commands:

            def with_arguments(messages: int, name: str = name) -> list[str]:
                group = f"count-{uuid4().hex[:8]}"
                peer = [brokers, topic, group, str(messages), str(folder / group)]
                return commands[name] + ([str(messages)] if name == "offsetmgr" else peer)

            many = int(options.events * MANY[name])
            rates.append(measure(name, min(FEW[name], many // 4), many, with_arguments))
    best = rates[0].per_s
    rows = [
        (each.name, f"{each.messages:,}", f"{each.start_s:.1f} s", f"{each.per_s:,.0f}/s",
         f"{best / each.per_s:.2f}", f"{each.peak_mb:,} MB")
        for each in rates
    ]  # fmt: skip
    show("A counter of keys", ("what", "messages", "start", "rate", "ours is x", "memory"), rows)
    missed = [f"{best:,.0f} messages/s, floor {FLOOR:,}"] if best < FLOOR else []
    missed += [f"{each.name} is faster: {each.per_s:,.0f}/s" for each in rates if each.per_s > best]
    return end(missed)


if __name__ == "__main__":
    sys.exit(main())
