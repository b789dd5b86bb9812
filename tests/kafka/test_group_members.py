"""Members of a group that join, leave, freeze and are killed: no message is passed over."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from offsetmgr.acked_ranges import decode_acks
from offsetmgr.kafka.cluster import ClusterReader
from tests.conftest import create_topic
from tests.kafka.messages import read_letters
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.devkafka import DevKafka

PARTITIONS = 4
MEMBER = Path(__file__).with_name("group_member.py")
IN_ORDER = (0, 128 + signal.SIGTERM)
"""Statuses of members that a SIGTERM has ended."""


class Members:
    """The members of a group, and a judge of what it commits."""

    def __init__(
        self,
        kafka: DevKafka,
        group: str,
        strategy: str,
        kind: str,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        """``kind`` is ``marks``, ``acks`` or ``retries``."""
        self._brokers = kafka.bootstrap_servers
        self.kind = kind
        self._group = group
        self._strategy = strategy
        self._folder = folder
        self._stack = stack
        self._logs: list[Path] = []
        self._producer = Producer({"bootstrap.servers": self._brokers})
        self._reader = stack.enter_context(ClusterReader(self._brokers))
        self._committed = [0] * PARTITIONS
        self._acknowledged: Counter[int] = Counter()
        """Messages that Kafka had as processed, each with how often it was so by then."""
        self.uncommitted: set[int] = set()
        """Messages that killed members had processed, and Kafka did not know of."""
        self.produced = 0
        create_topic(kafka, group, PARTITIONS)

    def join(self) -> subprocess.Popen[bytes]:
        """Return a member that is ready for signals; its log says so."""
        log = self._folder / f"member-{len(self._logs)}"
        arguments = [self._brokers, self._group, self._strategy, str(log), self.kind]
        process = subprocess.Popen([sys.executable, str(MEMBER), *arguments])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        until(log.exists)
        self._logs.append(log)
        return process

    def produce(self, count: int, text: Callable[[int], str] = str) -> None:
        """Produce message n to partition n % 4, so that its offset is n // 4."""
        for number in range(self.produced, self.produced + count):
            self._producer.produce(self._group, text(number), partition=number % PARTITIONS)
        self.produced += count
        assert self._producer.flush(WAIT_S) == 0

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` messages are processed; judge the commits meanwhile."""
        until(lambda: len(self.judged()) >= count, poll_s=0.1)

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        member.kill()
        member.wait()
        known = self.acknowledged()
        self.uncommitted |= self.processed().keys() - known

    def judged(self) -> set[int]:
        """Return the processed messages; what is committed has to be among them."""
        known = self.acknowledged()
        done = self.processed()
        assert known <= done.keys()
        for number in known:
            self._acknowledged.setdefault(number, done[number])
        return set(done)

    def processed(self) -> Counter[int]:
        """Return how often each message was processed."""
        texts = [log.read_text() for log in self._logs]
        # A member that is writing may have written half a line.
        return Counter(int(line) for text in texts for line in text[: text.rfind("\n") + 1].split())

    def repeated(self) -> set[int]:
        return {number for number, count in self.processed().items() if count > 1}

    def check_repeated(self) -> None:
        """With acks only messages are repeated that a killed member had not committed."""
        done = self.processed()
        if self.kind == "acks":
            assert not [n for n, count in self._acknowledged.items() if done[n] > count]
            assert self.repeated() <= self.uncommitted

    def acknowledged(self) -> set[int]:
        """Return the messages below the committed offsets, and in the metadata of the commits."""
        answer = self._reader.committed([self._group])[self._group]
        assert isinstance(answer, dict), answer
        found: set[int] = set()
        for where, (offset, metadata, _) in answer.items():
            if where.topic != self._group:  # a retry topic
                continue
            assert offset >= self._committed[where.partition]
            self._committed[where.partition] = offset
            ranges = [(0, offset), *decode_acks(offset, metadata)]
            for low, high in ranges:
                found.update(each * PARTITIONS + where.partition for each in range(low, high))
        return found


def turmoil(members: Members, portion: int) -> None:
    """One is killed, one leaves; with marks one stands still for longer than the session."""
    killed, leaving = members.join(), members.join()
    members.produce(portion)
    members.wait_for(members.produced - portion // 2)
    members.kill(killed)
    third = members.join()
    members.produce(portion)
    members.wait_for(members.produced - portion // 2)
    leaving.send_signal(signal.SIGTERM)
    fourth = members.join()
    assert leaving.wait(WAIT_S) in IN_ORDER
    if members.kind == "marks":
        third.send_signal(signal.SIGSTOP)
    members.produce(portion)
    members.wait_for(members.produced)
    third.send_signal(signal.SIGCONT)
    members.produce(portion)
    members.wait_for(members.produced)
    for each in (third, fourth):
        each.send_signal(signal.SIGTERM)
        assert each.wait(WAIT_S) in IN_ORDER
    everything = set(range(members.produced))
    assert members.judged() == everything == members.acknowledged()


@pytest.mark.parametrize("kind", ["marks", "acks"])
def test_members_that_are_killed_pass_over_no_message(
    kafka: DevKafka, group: str, tmp_path: Path, kind: str
) -> None:
    """With acks, only what a killed member had processed but not committed is repeated."""
    with ExitStack() as stack:
        members = Members(kafka, group, "cooperative-sticky", kind, tmp_path, stack)
        turmoil(members, 300)
        members.check_repeated()


def test_a_killed_member_with_retries_loses_no_message(
    kafka: DevKafka, group: str, tmp_path: Path
) -> None:
    """Every tenth message fails none to three times; the soak kills often."""
    count = 800
    fails = {n: n // 10 % 4 for n in range(0, count, 10)}
    dead = {n for n, failures in fails.items() if failures > 2}
    config: dict[str, object] = {"bootstrap.servers": kafka.bootstrap_servers}
    with ExitStack() as stack:
        members = Members(kafka, group, "range", "retries", tmp_path, stack)
        killed = members.join()
        members.produce(count, lambda n: f"{n} {fails.get(n, 0)}")
        until(lambda: len(members.processed()) >= 240)
        killed.kill()
        killed.wait()
        members.join()
        until(lambda: len(members.processed()) >= count - len(dead))
        until(lambda: len(read_letters(config, f"{group}.dlq", WAIT_S)) >= len(dead), poll_s=0.5)
        found = {each.value for each in read_letters(config, f"{group}.dlq", WAIT_S)}
        assert found == {f"{n} 3".encode() for n in dead}
        done = members.processed()
        assert done.keys() == set(range(count)) - dead
        # Repeated is at most what was pending when it was killed, and acked since the last commit.
        assert done.total() - len(done) <= 600
        assert members.acknowledged() <= done.keys() | fails.keys()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["marks", "acks"])
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_fifteen_thousand_messages(
    kafka: DevKafka, group: str, tmp_path: Path, strategy: str, kind: str
) -> None:
    with ExitStack() as stack:
        members = Members(kafka, group, strategy, kind, tmp_path, stack)
        for _ in range(5):
            turmoil(members, 752)
        assert members.produced > 15_000
        members.check_repeated()
        sys.stdout.write(f"{strategy}, {kind}: {len(members.repeated())} repeated\n")
