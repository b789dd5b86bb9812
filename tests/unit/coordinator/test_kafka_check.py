"""True if Kafka is there, asked of a broker that is and of one that says nobody is."""

from __future__ import annotations

import subprocess
import sys

GUARD_S = 60.0
"""Against what never comes, not a measure."""

CHECKED = """
from offsetmgr.coordinator.kafka import KafkaCoordinator
from tests.unit.coordinator.fenced_broker import FencedBroker

with FencedBroker() as broker:
    kafka = KafkaCoordinator({"bootstrap.servers": broker.bootstrap_servers}, clients=1)
    print(kafka.check(30.0).get(timeout=30.0))
    broker.fence()
    print(kafka.check(30.0).get(timeout=30.0).info.name)
    kafka.close(5.0)
"""


def test_a_cluster_without_brokers_does_not_end_the_process() -> None:
    """A broker may have heard of none yet: that is a failure to tell, and no more."""
    done = subprocess.run(  # for an assertion of librdkafka's ends the process
        [sys.executable, "-c", CHECKED],
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None", "_PARTIAL"]
