"""Where a query starts, against the real service around a Kafka in memory."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import starting_offsets
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "orders-etl"
PATTERN = r"orders-\w+"


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    """Two topics that the pattern matches, and one whose name only holds it; 3 is committed."""
    with running() as here:
        broker = here.coordinator.broker
        for topic in ("orders-eu", "orders-us", "old-orders-eu"):
            broker.create_topic(topic, 2)
            for number in range(2):
                times_ms = {offset: 1_000 * offset for offset in range(10)}
                broker.set_log(TopicPartition(topic, number), 0, 10, times_ms)
        three = {TopicPartition("orders-eu", 1): OffsetAndMetadata(3)}
        broker.commit_externally(GROUP, three)
        yield here


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[OffsetClient]:
    """A client of that service."""
    with OffsetClient(service.address, "etl") as made:
        yield made


def test_a_pattern_names_every_topic_it_matches(client: OffsetClient) -> None:
    """As Spark does, by the whole name; every partition of them and no other."""
    start = json.loads(starting_offsets(client, GROUP, pattern=PATTERN))
    assert start == {"orders-eu": {"0": -2, "1": 3}, "orders-us": {"0": -2, "1": -2}}


def test_gaps_may_start_at_a_time(client: OffsetClient) -> None:
    """What has no offset starts at the first record of that time, what has one stays there."""
    moment = datetime.fromtimestamp(6.5, timezone.utc)
    start = json.loads(starting_offsets(client, GROUP, ["orders-eu"], missing=moment))
    assert start == {"orders-eu": {"0": 7, "1": 3}}


def test_gaps_may_be_an_error(client: OffsetClient) -> None:
    """The partitions are named; where there are none, all is well."""
    with pytest.raises(InvalidValueError, match="nothing committed for orders-eu-0;"):
        starting_offsets(client, GROUP, ["orders-eu"], missing="error")
    client.submit(GROUP, {("orders-eu", 0): 1}, sync=True)
    start = json.loads(starting_offsets(client, GROUP, ["orders-eu"], missing="error"))
    assert start == {"orders-eu": {"0": 1, "1": 3}}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"pattern": "bills-.*"}, "matches no topic"),
        ({"pattern": "orders-("}, "cannot be read"),
        ({"pattern": 7}, "is not text"),
        ({"pattern": PATTERN, "topics": ["orders-eu"]}, "beside topics"),
        ({}, "no list of topics"),
    ],
)
def test_patterns_that_spark_would_not_start_with(
    client: OffsetClient, arguments: dict[str, Any], problem: str
) -> None:
    """They are refused here, in words, before a query is started with them."""
    with pytest.raises(InvalidValueError, match=problem):
        starting_offsets(client, GROUP, **arguments)
