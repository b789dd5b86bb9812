"""Fetches of committed offsets through librdkafka's C interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors import Future
from offsetmgr.coordinator.librdkafka import CONSUMER, GroupAnswer, GroupClient

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0

ASK_A_COORDINATOR_THAT_ANSWERS = """
import sys, threading
from offsetmgr.coordinator.librdkafka import CONSUMER, GroupClient
from tests.kafka.mock_cluster import MockCluster

OFFSET_FETCH = 9
with MockCluster() as cluster:
    fetcher = GroupClient({"bootstrap.servers": cluster.bootstrap_servers}, CONSUMER)
    cluster.push_errors(OFFSET_FETCH, int(sys.argv[1]))
    answers, done = [], threading.Event()
    fetcher.fetch("g", [("t", 0)], 10, lambda answer: (answers.append(answer), done.set()))
    assert done.wait(30)
    print(answers[0].error)
    fetcher.close(10)
"""


@pytest.mark.parametrize("code", [14, 15, 16, 27])
def test_a_coordinator_that_moved_does_not_end_the_process(code: int) -> None:
    """On an admin client's handle, librdkafka ends the process with SIGSEGV at 15 and 16."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_A_COORDINATOR_THAT_ANSWERS, str(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(code)]


def ask(fetcher: GroupClient, group: str, timeout_s: float) -> GroupAnswer:
    """Ask for one partition and wait."""
    answer: Future[GroupAnswer] = Future()
    fetcher.fetch(group, [("no-such-topic", 0)], timeout_s, answer.set)
    return answer.get(timeout=WAIT_S)


def test_without_a_broker_it_answers_by_its_time_out() -> None:
    """Nobody waits for ever for a Kafka that is not there."""
    fetcher = GroupClient({"bootstrap.servers": "127.0.0.1:1"}, CONSUMER)
    answer = ask(fetcher, "g", 0.5)
    fetcher.close(WAIT_S)
    assert answer.error == -185
