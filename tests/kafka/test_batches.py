"""Commits that are larger than one batch of the broker's ``__consumer_offsets``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.types import MAX_METADATA_CHARS, OffsetAndMetadata, TopicPartition
from tests.faults.support import WAIT_S
from tests.kafka.conftest import WIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.devkafka import DevKafka


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
