"""Fetches of committed offsets through librdkafka's C interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

ASK_A_COORDINATOR_THAT_ANSWERS = """
import sys
from actors import MonotonicClock
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.kafka.librdkafka import CONSUMER, GroupClient
from tests.kafka.mock_cluster import MockCluster

OFFSET_FETCH = 9
for code in sys.argv[1:]:
    with MockCluster() as cluster:
        config = {"bootstrap.servers": cluster.bootstrap_servers}
        fetcher = GroupClient(config, CONSUMER, ConnectionReports(MonotonicClock()))
        cluster.push_errors(OFFSET_FETCH, int(code))
        print(fetcher.fetch("g", [("t", 0)], 10).result(30).info.code)
        fetcher.close(10)
"""


def test_a_moved_coordinator_does_not_end_the_process() -> None:
    """On an admin client's handle, librdkafka ends the process with SIGSEGV at 15 and 16."""
    codes = ["14", "15", "16", "27"]
    done = subprocess.run(
        [sys.executable, "-c", ASK_A_COORDINATOR_THAT_ANSWERS, *codes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == codes
