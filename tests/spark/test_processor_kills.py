"""Drivers and Python workers of a processor are killed at random; `make chaos` runs it."""

from __future__ import annotations

import random
import signal
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from offsetmgr.local import LocalOffsets
from offsetmgr.streams import Tester, TopicManager
from tests.spark.lab import messages, table
from tests.spark.processor_job import numbering
from tests.spark.scene import Driver, supervise_until
from tests.tables import Transactional

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

SEED = 11
KILLS = 30
KEYS = 50
EACH = 500
"""Messages that are produced after each kill."""


class ProcessorDriver(Driver):
    """The driver; its Python workers can be killed as well."""

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one of the Python workers; return False if none runs."""
        workers = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                if "pyspark.daemon" in " ".join(process.cmdline()):
                    workers.append(process)
        if not workers:
            return False
        chance.choice(workers).send_signal(signal.SIGKILL)
        return True


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
def test_table_and_outputs_end_as_in_the_tester(
    kafka: DevKafka,
    new_topic: TopicFactory,
    group: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The table is exactly right; outputs are too, once repeated ids are dropped.

    Messages of transactions that were aborted do not count.
    """
    chance = random.Random(SEED)  # noqa: S311 -- a schedule
    brokers, inputs, outputs = kafka.bootstrap_servers, new_topic(3), new_topic(3)
    options = {
        "brokers": brokers,
        "inputs": inputs,
        "outputs": outputs,
        "group": group,
        "checkpoint": tmp_path / "checkpoint",
    }
    tester = Tester()
    processor = tester.add_processor(numbering(group, inputs, outputs))
    driver = ProcessorDriver(tmp_path, "tests.spark.processor_job", options)
    kills: Counter[str] = Counter()
    aborted = 0
    topics = TopicManager(brokers)
    driver.start()
    try:
        while kills.total() < KILLS:
            keys = [f"key-{chance.randrange(KEYS)}" for _ in range(EACH)]
            commits = chance.random() < 0.6
            transact(kafka, inputs, keys, commits=commits)
            if not commits:
                aborted += EACH
                continue
            for key in keys:
                tester.consume(inputs, key, b"")
            before = written(topics, outputs)
            supervise_until(
                [driver], partial(has_more, topics, outputs, before), "no batch is written"
            )
            if chance.random() < 0.5 and driver.kill_worker(chance):
                kills["worker"] += 1
            elif driver.process.running():
                driver.kill()
                kills["driver"] += 1
        total = KILLS * EACH
        with LocalOffsets(brokers) as offsets:

            def committed() -> int:
                return sum(offset.offset for offset in offsets.committed(group).values())

            supervise_until(
                [driver], lambda: committed() >= written(topics, inputs), "not all is read"
            )
    finally:
        driver.close()
        topics.close()
    topic = processor.graph.table_topic
    rows = {key: int(row) for key, row in table(brokers, topic).items()}
    assert rows == {key: processor.get(key) for key in tester.table_keys(topic)}
    assert sum(rows.values()) >= total
    emitted: dict[bytes, dict[str, int]] = defaultdict(dict)
    repeated = 0
    for message in messages(brokers, outputs):
        ids = emitted[message.key()]
        ident = dict(message.headers())["offsetmgr-id"].decode()
        repeated += ident in ids
        # What is written again is the same, byte for byte.
        assert ids.setdefault(ident, int(message.value())) == int(message.value())
    for key, count in rows.items():
        assert sorted(emitted[key.encode()].values()) == list(range(1, count + 1))
    record_property("outputs written again", f"{repeated} of {sum(rows.values())}")
    record_property("messages of aborted transactions", aborted)
    assert aborted > KILLS * EACH // 5
    assert min(kills.values()) > KILLS // 5


def transact(kafka: DevKafka, topic: str, keys: list[str], *, commits: bool) -> None:
    """Write messages in a transaction, and commit or abort it."""
    transaction = Transactional(kafka, f"{topic}-writer")
    transaction.write(*((topic, key, "") for key in keys))
    transaction.end(commits=commits)


def written(topics: TopicManager, topic: str) -> int:
    """Return the end of a topic's log, summed over its partitions."""
    return sum(log.high_watermark for log in topics.logs([topic])[topic].partitions.values())


def has_more(topics: TopicManager, topic: str, before: int) -> bool:
    return written(topics, topic) > before
