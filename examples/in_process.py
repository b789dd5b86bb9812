"""Commit offsets from one process, without the service."""

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.manager import Factory

with KafkaCoordinator("localhost:9092") as kafka, Factory(kafka) as factory:
    manager = factory.spawn("orders-etl", "orders", 0)
    start = manager.initial_offset(timeout=10)  # None where nothing is committed
    offset = start.offset if start else 0
    manager.submit(offset + 42)  # the next offset to read; never blocks
    print(manager.committed_offsets().get(timeout=10))
