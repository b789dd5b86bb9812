# pip install 'offsetmgr[kafka]'
"""Commit offsets from one process, without the service.

Run it again: it continues at the offset that the first run has committed.
"""

from __future__ import annotations

import argparse

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.manager import Factory

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--topic", default="orders")
parser.add_argument("--group", default="orders-in-process")
given = parser.parse_args()

with KafkaCoordinator(given.bootstrap_servers) as kafka, Factory(kafka) as factory:
    manager = factory.spawn(given.group, given.topic, 0)
    start = manager.initial_offset(timeout=10)  # None where nothing is committed
    offset = start.offset if start else 0
    print(f"{given.group} begins at offset {offset} of {given.topic}/0")
    manager.submit(offset + 42)  # the next offset to read; never blocks
    print(f"committed: {manager.committed_offsets().get(timeout=10)}")
