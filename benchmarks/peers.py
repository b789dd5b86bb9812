"""Our consumers, streams and views compared with those of others, each in a process of its own.

The others are installed under ``.peers``: the Python ones by pip, goka by Go.  pyrallel-consumer
needs Python 3.12; it is left out where there is none.  A peer that is faster than ours is a floor
that is missed.  Run as a program, it is our counter of keys, or our
view's recovery.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import psutil

from benchmarks.harness import PARTITIONS, ROOT, at_least, at_most, filled, show
from benchmarks.plots import record
from benchmarks.spark import lab
from benchmarks.views import ROWS, recovery_s
from offsetmgr.devkafka.command import create_topic
from offsetmgr.streams import Context, Processor, ProcessorSettings, TopicManager, codecs
from offsetmgr.streams.graph import define_group, group_table, input, persist
from offsetmgr.streams.layout import KEYS_PER_BUCKET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM_S: Final = 600.0
FAUST: Final = ("faust", "faust-streaming==0.15.3")
QUIX: Final = ("quixstreams", "quixstreams==3.28.1")
OURS: Final = [sys.executable, "-m", "benchmarks.peers"]


def _installed(name: str, requirement: str, python: str = sys.executable) -> list[str]:
    """Install a Python peer; return the beginning of its command."""
    home = ROOT / ".peers" / name
    installed = home / "bin" / "python"
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    subprocess.run([installed, "-m", "pip", "install", "-q", requirement], check=True)
    return [str(installed), str(ROOT / "benchmarks" / "peer_programs.py"), name]


def _goka() -> str:
    """Build the program of goka; return its path."""
    program = ROOT / ".peers" / "goka-counter"
    source = ROOT / "benchmarks" / "goka"
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True)
    return str(program)


def _seconds_of(command: Sequence[str]) -> float:
    """Run a program whose last word is the number of seconds that it took."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PROGRAM_S, check=True)
    return float(done.stdout.split()[-1])


def _compared(title: str, rates: Mapping[str, Sequence[float]], floor: float = 1.0) -> list[str]:
    """Print the rates of rounds, ours first; return a line for each peer that is too fast."""
    # What else runs on the machine makes a round slower, never faster.
    best = {name: max(found) for name, found in rates.items()}
    rows = [
        (name, f"{rate:,.0f}/s", f"{median(rates[name]):,.0f}/s", f"{best['offsetmgr'] / rate:.2f}")
        for name, rate in best.items()
    ]
    show(title, ("what", "best round", "median", "ours, times it"), rows)
    return _faster(title, best, floor)


def _faster(what: str, rates: Mapping[str, float], floor: float = 1.0) -> list[str]:
    ratios = {name: rates["offsetmgr"] / rate for name, rate in rates.items()}
    texts = {f"{what}, our rate against {name}": ratio for name, ratio in ratios.items()}
    return [line for each in texts.items() for line in at_least(*each, floor, "times")]


# Consumers

WORKS: Final = {"single": 300_000, "batch": 1_000_000, "handlers": 40_000}
"""Messages; fewer for slow peers, as it is rates that are compared."""
CONSUMERS: Final = {
    ("aiokafka", "aiokafka==0.14.0", sys.executable): WORKS,
    (*FAUST, sys.executable): dict.fromkeys(WORKS, 40_000),
    ("pyrallel", "pyrallel-consumer==1.0.0", "python3.12"): {"single": 10_000, "handlers": 10_000},
}
CONSUMER_FLOORS: Final = {"single": 1.0, "batch": 1.0, "handlers": 0.9}
"""Of our rate against each peer's.  64 handlers of 5 ms make 12,800/s at most, by any of them; only
ours and pyrallel's keep the order of a key."""


def consumer_peers(brokers: str, rounds: int) -> list[str]:
    contestants = [([sys.executable, "-m", "benchmarks.consumer"], WORKS, "offsetmgr")]
    for (name, requirement, python), counts in CONSUMERS.items():
        base = shutil.which(python)
        if base is None or subprocess.run([base, "-c", ""], check=False).returncode != 0:
            print(f"{name} is left out: there is no {python}")
        else:
            contestants.append((_installed(name, requirement, base), counts, name))
    topic = filled(brokers, max(WORKS.values()), 1_000)
    missed = []
    for work, floor in CONSUMER_FLOORS.items():
        rates: dict[str, list[float]] = {}
        for _ in range(rounds):
            for command, counts, name in contestants:
                if work in counts:
                    words = [*command, work, brokers, topic, str(counts[work])]
                    rates.setdefault(name, []).append(counts[work] / _seconds_of(words))
        missed += _compared(f"{work}: messages", rates, floor)
        if work == "single":
            record("consumers", {name: round(median(found)) for name, found in rates.items()})
    return missed


# Counters of keys: with the table's changelog in Kafka, run for few and for many messages

EVENTS: Final = 1_000_000
KEYS: Final = 200_000
COUNTER_FLOOR: Final = 100_000
"""Messages a second of the processor."""
SAMPLE_S: Final = 0.5
COUNTS: Final = {
    "offsetmgr": (200_000, EVENTS),
    "goka": (100_000, EVENTS),
    "quixstreams": (20_000, 200_000),
    "faust": (5_000, 40_000),
}
"""Few messages and many: the slow ones would take minutes for all."""


def streams(brokers: str, _rounds: int) -> list[str]:
    sizes = {count for counts in COUNTS.values() for count in counts}
    # Ours would begin a further batch if there were more messages than it counts.
    topics = {size: filled(brokers, size, KEYS, b"1") for size in sorted(sizes)}
    commands = {
        "offsetmgr": OURS,
        "goka": [_goka()],
        "quixstreams": [*_installed(*QUIX), "count"],
        "faust": [*_installed(*FAUST), "count"],
    }
    found = {name: _measure(name, command, brokers, topics) for name, command in commands.items()}
    rates = {name: rate for name, (_, rate, _) in found.items()}
    rows = [
        (name, f"{start_s:.1f} s", f"{rate:,.0f}/s", f"{peak_mb:,} MB")
        for name, (start_s, rate, peak_mb) in found.items()
    ]
    show("A counter of keys", ("what", "start", "rate", "memory"), rows)
    record("streams", {name: round(rate) for name, rate in rates.items()})
    missed = at_least("counter of keys", rates["offsetmgr"], COUNTER_FLOOR, "messages/s")
    return missed + _faster("counter of keys", rates)


def _measure(
    name: str, command: list[str], brokers: str, topics: dict[int, str]
) -> tuple[float, float, int]:
    """Return the seconds of the start, messages a second, and the most MB of all processes.

    The rate is that of the difference between a run over few messages and one over many.
    """
    took_s, peaks = [], []
    few, many = COUNTS[name]
    for messages in (few, many):
        words = [brokers, topics[messages], str(messages), f"count-{uuid4().hex[:8]}"]
        seconds, peak = _run([*command, *words])
        took_s.append(seconds)
        peaks.append(peak)
    per_s = (many - few) / (took_s[1] - took_s[0])
    return took_s[0] - few / per_s, per_s, max(peaks) // 1_000_000


def _run(command: Sequence[str]) -> tuple[float, int]:
    """Run a program with a folder as its last word; return its seconds and most bytes of memory."""
    peak, began_s = 0, time.perf_counter()
    with (
        TemporaryDirectory(prefix="offsetmgr-streams-") as folder,
        subprocess.Popen(
            [*command, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_S)
    if process.returncode:
        raise RuntimeError(f"{command} ended with status {process.returncode}")
    return time.perf_counter() - began_s, peak


def _memory(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def _count(brokers: str, topic: str, count: str, group: str) -> None:
    """Count the messages of a topic with a processor."""

    def increment(context: Context, _value: bytes) -> None:
        context.set_value((context.value() or 0) + 1)

    messages = int(count)
    graph = define_group(group, input(topic, codecs.Bytes(), increment), persist(codecs.Int64()))
    # A batch of all, up to a size that fits into memory.
    settings = ProcessorSettings(
        missing="earliest",
        max_offsets_per_trigger=min(messages, EVENTS),
        buckets=None if messages <= EVENTS else messages // KEYS_PER_BUCKET,
    )
    with lab(brokers, 0) as spark:
        checkpoint = spark.new_checkpoint()
        processor = Processor(
            spark.spark, graph, brokers, checkpoint=checkpoint, settings=settings
        ).start()
        while sum(processor.stats().read.values()) < messages:
            processor.await_end(timeout=0.05)
        processor.stop()


# A table of many keys: a processor that counts them, and a view of its table

MANY_KEYS: Final = 10_000_000
MOST_MINUTES: Final = 15
"""Of the processor and the view together."""


def keys(brokers: str, _rounds: int) -> list[str]:
    topic, group = filled(brokers, MANY_KEYS, MANY_KEYS, b"1"), f"keys-{uuid4().hex[:8]}"
    programs = {
        "a processor counts them": [*OURS, brokers, topic, str(MANY_KEYS), group],
        "a view reads its table": [*OURS, brokers, group_table(group)],
    }
    found = {name: _run(command) for name, command in programs.items()}
    rows = [
        (name, f"{seconds:,.0f} s", f"{MANY_KEYS / seconds:,.0f}/s", f"{peak // 1_000_000:,} MB")
        for name, (seconds, peak) in found.items()
    ]
    show(f"{MANY_KEYS:,} keys", ("what", "time", "rate", "memory"), rows)
    minutes = sum(seconds for seconds, _ in found.values()) / 60
    return at_most("time of ten million keys", minutes, MOST_MINUTES, "minutes")


# Recovery of views: all read the same topic, named and marked as quixstreams' changelogs

GROUP: Final = "bench"
INPUT: Final = "events"
"""quixstreams' input; it recovers its state before the first message."""
TABLE: Final = f"changelog__{GROUP}--{INPUT}--default"
HEADERS: Final = {"__column_family__": b"default"}


def view_peers(brokers: str, rounds: int) -> list[str]:
    with TopicManager(brokers) as topics:
        topics.ensure_table(TABLE, PARTITIONS)
    filled(brokers, ROWS, ROWS, topic=TABLE, headers=HEADERS)
    create_topic(brokers, INPUT, PARTITIONS)
    filled(brokers, 1_000, 1_000, topic=INPUT)
    commands = {
        "offsetmgr": [*OURS, brokers, TABLE],
        "goka": [_goka(), "view", brokers, TABLE],
        "quixstreams": [*_installed(*QUIX), "recover", brokers, INPUT, "1", GROUP],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            with TemporaryDirectory(prefix="offsetmgr-views-") as folder:
                rates[name].append(ROWS / _seconds_of([*command, f"{folder}/store"]))
    return _compared(f"Recovery of {ROWS:,} rows", rates)


if __name__ == "__main__":
    brokers, topic, *words, folder = sys.argv[1:]
    if words:
        _count(brokers, topic, *words)
    else:
        print(recovery_s(brokers, topic, Path(folder)))
