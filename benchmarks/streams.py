"""A counter of keys on Spark, beside faust, quixstreams and goka.

Each counts the same messages by key, with its table's changelog in Kafka, as a process of its own.
It runs twice, for few and for many messages; the rate is that of the difference, so that what a
start costs is counted apart.  Peers are installed under ``.peers``: the Python ones by pip, goka by
Go.  Run as a program, it is the counter on Spark.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import uuid4

import psutil

from benchmarks.harness import ROOT, at_least, filled, peer_python, show
from benchmarks.lab import lab
from offsetmgr.streams import Context, codecs, define_group, input, persist
from offsetmgr.streams.processor import Processor, ProcessorSettings

HERE = Path(__file__).parent / "stream_peers"
EVENTS = 1_000_000
KEYS = 200_000
FLOOR = 100_000
"""Messages a second of the processor."""
SAMPLE_S = 0.5
COUNTS = {
    "offsetmgr": (200_000, EVENTS),
    "goka": (100_000, EVENTS),
    "quixstreams": (20_000, 200_000),
    "faust": (5_000, 40_000),
}
"""Few messages and many: the slow ones would take minutes for all."""


class Rate(NamedTuple):
    """Time of a contestant's two runs."""

    start_s: float
    """The run over few messages, less what they take at the rate."""
    per_s: float
    peak_mb: int
    """Most memory of all its processes together, sampled."""


def run(brokers: str, _rounds: int) -> list[str]:
    topic = filled(brokers, EVENTS, KEYS, b"1")
    rates = {}
    for name, command in _commands():
        rates[name] = _measure(command, brokers, topic, *COUNTS[name])
    best = rates["offsetmgr"].per_s
    rows = [
        (name, f"{COUNTS[name][1]:,}", f"{each.start_s:.1f} s", f"{each.per_s:,.0f}/s",
         f"{best / each.per_s:.2f}", f"{each.peak_mb:,} MB")
        for name, each in rates.items()
    ]  # fmt: skip
    show("A counter of keys", ("what", "messages", "start", "rate", "ours is x", "memory"), rows)
    missed = at_least("counter of keys", best, FLOOR, "messages/s")
    for name, each in rates.items():
        missed += at_least(f"counter of keys beside {name}", best / each.per_s, 1.0, "times")
    return missed


def _commands() -> list[tuple[str, list[str]]]:
    """Install the peers; return the beginning of each one's command."""
    faust = peer_python("faust", "faust-streaming==0.15.3")
    return [
        ("offsetmgr", [sys.executable, "-m", "benchmarks.streams"]),
        ("goka", [goka()]),
        ("quixstreams", quix("quix_counter.py")),
        ("faust", [faust, str(HERE / "faust_counter.py")]),
    ]


def goka() -> str:
    """Build the program of goka; return its path."""
    program = ROOT / ".peers" / "goka-counter"
    subprocess.run(["go", "build", "-o", program, "."], cwd=HERE / "goka", check=True)
    return str(program)


def quix(name: str) -> list[str]:
    """Install quixstreams; return the beginning of the command of a program."""
    return [peer_python("quixstreams", "quixstreams==3.28.1"), str(HERE / name)]


def _measure(command: list[str], brokers: str, topic: str, few: int, many: int) -> Rate:
    took_s, peak = [], 0
    for messages in (few, many):
        group = f"count-{uuid4().hex[:8]}"
        began_s = time.perf_counter()
        with (
            TemporaryDirectory(prefix="offsetmgr-streams-") as folder,
            subprocess.Popen(
                [*command, brokers, topic, group, str(messages), folder],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process,
        ):
            while process.poll() is None:
                peak = max(peak, _memory(process.pid))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SAMPLE_S)
        if process.returncode:
            raise RuntimeError(f"{command} ended with status {process.returncode}")
        took_s.append(time.perf_counter() - began_s)
    per_s = (many - few) / (took_s[1] - took_s[0])
    return Rate(took_s[0] - few / per_s, per_s, peak // 1_000_000)


def _memory(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def _count(brokers: str, topic: str, group: str, messages: int) -> None:
    """Count the first ``messages`` of a topic with a processor."""

    def increment(context: Context, _value: bytes) -> None:
        context.set_value((context.value() or 0) + 1)

    graph = define_group(group, input(topic, codecs.Bytes(), increment), persist(codecs.Int64()))
    settings = ProcessorSettings(missing="earliest", max_offsets_per_trigger=messages)
    with lab(brokers, 0) as spark:
        checkpoint = spark.new_checkpoint()
        processor = Processor(
            spark.spark, graph, brokers, checkpoint=checkpoint, settings=settings
        ).start()
        while sum(processor.stats().read.values()) < messages:
            processor.await_end(timeout=0.05)
        processor.stop()


if __name__ == "__main__":
    _count(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
