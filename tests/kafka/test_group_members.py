"""Members of a group that join, leave, freeze and are killed: no message is passed over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.conftest import create_topic

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

PARTITIONS = 4
WAIT_S = 120.0
MEMBER = Path(__file__).with_name("group_member.py")


class Members:
    """The members of a group, and a judge of what it commits."""

    def __init__(
        self, kafka: DevKafka, group: str, strategy: str, folder: Path, stack: ExitStack
    ) -> None:
        self._brokers = kafka.bootstrap_servers
        self._group = group
        self._strategy = strategy
        self._folder = folder
        self._stack = stack
        self._logs: list[Path] = []
        self._producer = Producer({"bootstrap.servers": self._brokers})
        self._reader = Consumer({"bootstrap.servers": self._brokers, "group.id": group})
        stack.callback(self._reader.close)
        self._committed = [0] * PARTITIONS
        self.produced = 0
        create_topic(kafka, group, PARTITIONS)

    def join(self) -> subprocess.Popen[bytes]:
        log = self._folder / f"member-{len(self._logs)}"
        log.touch()
        self._logs.append(log)
        arguments = [self._brokers, self._group, self._group, self._strategy, str(log)]
        process = subprocess.Popen([sys.executable, str(MEMBER), *arguments])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def produce(self, count: int) -> None:
        """Produce message n to partition n % 4, so that its offset is n // 4."""
        for number in range(self.produced, self.produced + count):
            value = str(number).encode()
            self._producer.produce(self._group, value, partition=number % PARTITIONS)
        self.produced += count
        assert self._producer.flush(WAIT_S) == 0

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` messages are processed; judge the commits meanwhile."""
        deadline = time.monotonic() + WAIT_S
        while len(self.judged()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def judged(self) -> set[int]:
        """Return the processed messages; what is committed has to be among them."""
        committed = self.committed()
        texts = [log.read_text() for log in self._logs]
        # A member that is writing may have written half a line.
        done = {int(line) for text in texts for line in text[: text.rfind("\n") + 1].split()}
        for partition, offset in enumerate(committed):
            assert all(each * PARTITIONS + partition in done for each in range(offset))
            assert offset >= self._committed[partition]
        self._committed = committed
        return done

    def committed(self) -> list[int]:
        asked = [KafkaPartition(self._group, number) for number in range(PARTITIONS)]
        return [max(each.offset, 0) for each in self._reader.committed(asked, WAIT_S)]


def turmoil(members: Members, portion: int) -> None:
    """One is killed, one leaves, one stands still for longer than the session; others join."""
    killed, leaving = members.join(), members.join()
    members.produce(portion)
    members.wait_for(members.produced - portion // 2)
    killed.kill()
    frozen = members.join()
    members.produce(portion)
    members.wait_for(members.produced - portion // 2)
    leaving.send_signal(signal.SIGTERM)
    staying = members.join()
    assert leaving.wait(WAIT_S) == 0
    frozen.send_signal(signal.SIGSTOP)
    members.produce(portion)
    members.wait_for(members.produced)
    frozen.send_signal(signal.SIGCONT)
    members.produce(portion)
    members.wait_for(members.produced)
    for each in (frozen, staying):
        each.send_signal(signal.SIGTERM)
        assert each.wait(WAIT_S) == 0
    assert members.judged() == set(range(members.produced))
    assert members.committed() == [members.produced // PARTITIONS] * PARTITIONS


def test_members_that_are_killed_pass_over_no_message(
    kafka: DevKafka, group: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        turmoil(Members(kafka, group, "cooperative-sticky", tmp_path, stack), 600)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_fifteen_thousand_messages(
    kafka: DevKafka, group: str, tmp_path: Path, strategy: str
) -> None:
    with ExitStack() as stack:
        members = Members(kafka, group, strategy, tmp_path, stack)
        for _ in range(5):
            turmoil(members, 752)
        assert members.produced > 15_000
