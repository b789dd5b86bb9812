"""Processes that are killed, and brokers that are restarted, while offsets rise."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from offsetmgr.types import TopicPartition
from tests.faults.support import WAIT_S, committing
from tests.service.support import ROOT, ServeProcess, serve_process

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.faults.support import Committing

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SUBMITTER = Path(__file__).with_name("submitter.py")
LIVES = 8
ANSWER_S = 2.0
"""For a look at what is committed while nobody may be there to tell."""


def beside(kafka: DevKafka) -> ServeProcess:
    """A service with quick commits."""
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", kafka.bootstrap_servers)
    return serve_process(*options, env={"OFFSETMGR_COMMIT__COMMIT_INTERVAL_S": "0.02"})


def looked_up(reader: Committing, group: str, where: TopicPartition) -> list[int]:
    """What is committed; nothing where nobody can say, as between two coordinators."""
    answer = reader.kafka.fetch(group, [where], ANSWER_S).get(timeout=WAIT_S)
    found = answer.offsets.get(where)
    return [] if found is None else [found.offset]


@pytest.mark.fault(5)
def test_kill_9_at_random_points_loses_nothing_that_was_acknowledged(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """Service and client die together, again and again: Kafka has all that a sync submit told."""
    topic = new_topic()
    committed = 0
    for _ in range(LIVES):
        with beside(kafka) as service:
            command = [sys.executable, str(SUBMITTER), service.address, group, topic]
            job = subprocess.Popen(
                [*command, str(committed + 1)], cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            with job:
                assert job.stdout is not None
                told = [int(job.stdout.readline()) for _ in range(random.randint(1, 30))]  # noqa: S311
                service.process.kill()
                job.kill()
                told += map(int, job.stdout.read().split())
        with committing(kafka.bootstrap_servers) as reader:
            found = reader.in_kafka(group, topic=topic) or 0
        # What was under way may have landed; nothing beyond it was ever submitted.
        assert told[-1] <= found <= told[-1] + 1
        committed = found


@pytest.mark.fault(9)
def test_a_rolling_restart_of_three_brokers_is_survived_and_order_is_kept(
    kafka3: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """One broker after the other goes and comes back: committed never falls, and arrives."""
    topic = new_topic(on=kafka3)
    where = TopicPartition(topic, 0)
    seen: list[int] = []
    offset = 0
    with (
        committing(kafka3.bootstrap_servers) as reader,
        beside(kafka3) as service,
        OffsetClient(service.address, name=group) as client,
    ):
        for node in (1, 2, 3):
            kafka3.broker(node).stop()
            for _ in range(30):
                offset += 1
                client.submit(group, {(topic, 0): offset})
                seen += looked_up(reader, group, where)
            kafka3.broker(node).start(WAIT_S)
            client.submit(group, {(topic, 0): offset}, sync=True, timeout=WAIT_S)
            while not (found := looked_up(reader, group, where)):
                continue
            assert found == [offset]
            seen += found
        assert seen == sorted(seen)
        assert client.flush(timeout=WAIT_S).uncommitted == {}
