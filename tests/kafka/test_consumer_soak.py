"""A long run of consumers with poison, kills, rebalances, retention and transactions.

``SOAK_MESSAGES=100000 pytest -m chaos tests/kafka/test_consumer_soak.py``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import NewTopic

from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import known
from offsetmgr.kafka.topics import create_topics
from offsetmgr.types import TopicPartition
from tests.kafka.group_member import FAILURES, HANGS
from tests.kafka.messages import read_letters
from tests.kafka.raw_headers import produce_raw
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

MESSAGES: Final = int(os.environ.get("SOAK_MESSAGES", "100000"))
PARTITIONS: Final = 8
MEMBERS: Final = 3
RATE: Final = 500
"""Messages a second at most, so that members are killed in the middle of the work."""

TOGETHER: Final = 200
"""Messages of a transaction; one in ten is aborted, with as many messages of its own."""

POISON_EVERY: Final = 50
MOST_BYTES: Final = 200_000
MEMBER: Final = Path(__file__).with_name("group_member.py")
RARE: Final = ("name", "large", HANGS)
"""Kinds that cost much: each is one in twenty of the poisoned messages."""

USUAL: Final = sorted(FAILURES.keys() - {*RARE})
ABSURD: Final = {
    "offsetmgr-tries": "9" * 400,
    "offsetmgr-due": "318857-01-01",
    "offsetmgr-topic": "__consumer_offsets",
    "offsetmgr-offset": "\0",
}


def kind_of(number: int) -> str:
    poisoned, rest = divmod(number, POISON_EVERY)
    if rest:
        return "good"
    at = poisoned % 20
    return RARE[at] if at < len(RARE) else USUAL[poisoned % len(USUAL)]


def produce_all(kafka: DevKafka, topic: str) -> None:
    """Produce the messages in transactions, of which some are aborted."""
    servers = kafka.bootstrap_servers
    ours = {
        "transactional.id": topic,
        "message.max.bytes": 2 * MOST_BYTES,
        "batch.size": MOST_BYTES // 2,
    }
    producer = Producer({"bootstrap.servers": servers, **ours})
    producer.init_transactions(WAIT_S)
    began_s = time.monotonic()
    for first in range(0, MESSAGES, TOGETHER):
        if first // TOGETHER % 10 == 0:
            producer.begin_transaction()
            for number in range(TOGETHER):
                producer.produce(topic, f"{number} aborted")
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
        producer.begin_transaction()
        for number in range(first, min(first + TOGETHER, MESSAGES)):
            kind = kind_of(number)
            text = f"{number} {kind} "
            if kind == "name":
                produce_raw(servers, topic, text.encode(), [(b"\xff\xfe", b"1")])
                continue
            text += "x" * (MOST_BYTES - 200) if kind == "large" else ""
            headers: dict[str, str | bytes | None] = {**ABSURD} if kind == "headers" else {}
            producer.produce(topic, text, f"key-{number % 1_000}", headers=headers)
        producer.commit_transaction(WAIT_S)
        time.sleep(max(0.0, began_s + first / RATE - time.monotonic()))


class Members:
    """Processes that are killed or ended at random, and started again."""

    def __init__(self, kafka: DevKafka, topic: str, folder: Path) -> None:
        self.kills = 0
        self._command = [sys.executable, str(MEMBER), kafka.bootstrap_servers, topic]
        self._folder = folder
        self._count = 0
        self._running = [self._start() for _ in range(MEMBERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._count += 1
        log = str(self._folder / f"{self._count}")
        return subprocess.Popen([*self._command, "cooperative-sticky", log, "poison"])

    def kill_one(self, chance: random.Random) -> None:
        member = self._running.pop(0)
        assert member.poll() is None, "it has ended by itself"
        if chance.random() < 0.7:
            member.kill()
        else:
            member.terminate()
        member.wait(WAIT_S)
        self.kills += 1
        self._running.append(self._start())

    def end(self) -> None:
        for member in self._running:
            member.terminate()
        for member in self._running:
            member.wait(WAIT_S)

    def handled(self) -> Counter[int]:
        lines = [line for file in self._folder.iterdir() for line in file.read_text().splitlines()]
        return Counter(map(int, lines))


def lags(reader: ClusterReader, group: str) -> Counter[str]:
    """Return the lag of the topic and of the retry topics."""
    topics = [group, f"{group}.retry.1", f"{group}.retry.2"]
    ends = reader.log_ranges(
        where
        for topic, numbers in reader.partitions_of(topics).items()
        for where in [TopicPartition(topic, number) for number in known(numbers)]
    )
    committed = known(reader.committed([group])[group])
    found = Counter[str]()
    for where, log in ends.items():
        end, low = known(log).high_watermark, known(log).log_start_offset
        found[where.topic] += end - (committed[where].offset if where in committed else low)
    return found


def trim(reader: ClusterReader, group: str, ended: threading.Event) -> None:
    """Delete what is committed, as a retention does that is just long enough."""
    while not ended.wait(2):
        with suppress(KafkaException, OffsetManagerError):
            committed = known(reader.committed([group])[group])
            before = [
                KafkaPartition(*where, at.offset)
                for where, at in committed.items()
                if where.topic == group
            ]
            for deleted in (reader.admin.delete_records(before) if before else {}).values():
                deleted.result(WAIT_S)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_soak(kafka: DevKafka, group: str, tmp_path: Path) -> None:
    """Good messages are handled, bad ones are letters once, the lag is 0 at the end."""
    servers: dict[str, object] = {"bootstrap.servers": kafka.bootstrap_servers}
    good = {number for number in range(MESSAGES) if kind_of(number) == "good"}
    chance = random.Random(MESSAGES)  # noqa: S311
    ended = threading.Event()
    with ClusterReader(servers, timeout_s=WAIT_S) as reader:
        limit = {"max.message.bytes": str(MOST_BYTES)}
        create_topics(reader.admin, [NewTopic(group, PARTITIONS, config=limit)], WAIT_S)
        members = Members(kafka, group, tmp_path)
        pool = ThreadPoolExecutor(1)
        retention = threading.Thread(target=trim, args=[reader, group, ended])
        try:
            retention.start()
            producing = pool.submit(produce_all, kafka, group)
            while wait([producing], chance.uniform(2, 8)).not_done:
                members.kill_one(chance)
            producing.result()
            deadline = time.monotonic() + 2 * WAIT_S + MESSAGES / 100
            while members.handled().keys() < good or lags(reader, group).total():
                left = sorted(good - members.handled().keys())[:20]
                assert time.monotonic() < deadline, (lags(reader, group), left)
                time.sleep(1)
        finally:
            members.end()
            ended.set()
            pool.shutdown()
            retention.join()
        handled = members.handled()
    assert handled.keys() == good
    letters = read_letters(servers, f"{group}.dlq", WAIT_S)
    found = Counter((each.value or b"").decode().partition(" ")[0] for each in letters)
    assert found == Counter(str(n) for n in range(MESSAGES) if n not in good)
    print(  # noqa: T201
        f"{MESSAGES} messages, {len(letters)} letters, {members.kills} kills, "
        f"{handled.total() - len(handled)} handled again"
    )
