"""Commits that are larger than one batch of the broker's ``__consumer_offsets``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.types import MAX_METADATA_CHARS, OffsetAndMetadata, TopicPartition
from tests.faults.support import WAIT_S, until
from tests.kafka.conftest import WIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


@contextmanager
def coordinator(kafka: DevKafka, *, fenced: bool) -> Iterator[Coordinator]:
    """A coordinator, closed at the end."""
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    pool = KafkaCoordinator(config, clients=1)
    opened: Coordinator = FencedCoordinator(config, pool) if fenced else pool
    try:
        yield opened
    finally:
        opened.close(WAIT_S)


@contextmanager
def largest_batch(kafka: DevKafka, most_bytes: int) -> Iterator[None]:
    """Let the broker take no larger batches of commits meanwhile."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("max.message.bytes", str(most_bytes), incremental_operation=operation)
        where = ConfigResource(
            ResourceType.TOPIC, "__consumer_offsets", incremental_configs=[entry]
        )
        admin.incremental_alter_configs([where])[where].result(WAIT_S)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("metadata", ["m" * 4_000, "é" * MAX_METADATA_CHARS])
def test_any_number_of_bytes_is_committed(
    kafka: DevKafka, wide_topic: str, metadata: str, group: str, *, fenced: bool
) -> None:
    """In as many requests as it takes, none of which the broker finds too large."""
    where = [TopicPartition(wide_topic, number) for number in range(WIDE)]
    offsets = dict.fromkeys(where, OffsetAndMetadata(7, metadata))
    with coordinator(kafka, fenced=fenced) as opened:
        assert opened.commit(group, offsets, WAIT_S).get(timeout=WAIT_S).failures == {}
        assert opened.fetch(group, where, WAIT_S).get(timeout=WAIT_S).offsets == offsets


@pytest.mark.parametrize("fenced", [False, True])
def test_a_broker_that_takes_less_gets_smaller_batches(
    breakable_kafka: DevKafka, new_topic: TopicFactory, group: str, *, fenced: bool
) -> None:
    """They are halved until they fit, and everything is committed."""
    topic = new_topic(100, on=breakable_kafka)
    offsets = {
        TopicPartition(topic, number): OffsetAndMetadata(number + 1, "m" * 10 * number)
        for number in range(100)
    }
    too_large = {TopicPartition(topic, 0): OffsetAndMetadata(1, "m" * 4_000)}
    with coordinator(breakable_kafka, fenced=fenced) as opened:

        def is_refused() -> bool:
            answer = opened.commit(f"{group}-probe", too_large, WAIT_S)
            return bool(answer.get(timeout=WAIT_S).failures)

        with largest_batch(breakable_kafka, 3_000):
            until("the broker has heard of its limit", is_refused)
            assert opened.commit(group, offsets, WAIT_S).get(timeout=WAIT_S).failures == {}
            fetched = opened.fetch(group, list(offsets), WAIT_S).get(timeout=WAIT_S)
            assert fetched.offsets == offsets
