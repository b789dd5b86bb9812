"""The start of a query, with the real service around a Kafka in memory."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import (
    InvalidValueError,
    OffsetManagerError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.spark import starting_offsets
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def test_offsets_that_the_log_no_longer_holds_are_clamped(
    service: Running, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Below the log's start and beyond its end the nearest is taken, and both figures are told."""
    places = [TopicPartition("cut", number) for number in range(2)]
    service.coordinator.broker.create_topic("cut", 2)
    for place, offset in zip(places, (2, 77), strict=True):
        service.coordinator.broker.set_log(place, 6, 10)
        service.coordinator.broker.commit_externally("cut", {place: OffsetAndMetadata(offset)})
    assert json.loads(starting_offsets(client, "cut", ["cut"])) == {"cut": {"0": 6, "1": 10}}
    below, beyond = [each for each in caplog.messages if "topic cut" in each]
    assert "offset 2 committed for topic cut partition 0, below" in below
    assert "starting at 6" in below
    assert "offset 77 committed for topic cut partition 1, beyond" in beyond
    assert "starting at 10" in beyond


def test_gaps_may_be_an_error(client: OffsetClient) -> None:
    """The partitions are named; where there are none, all is well."""
    with pytest.raises(InvalidValueError, match="nothing committed for orders-eu-0;"):
        starting_offsets(client, GROUP, ["orders-eu"], missing="error")
    client.submit(GROUP, {("orders-eu", 0): 1}, sync=True)
    start = json.loads(starting_offsets(client, GROUP, ["orders-eu"], missing="error"))
    assert start == {"orders-eu": {"0": 1, "1": 3}}


@pytest.fixture
def away() -> Iterator[OffsetClient]:
    """A client whose service does not run."""
    with OffsetClient("http://127.0.0.1:1", "etl") as made:
        yield made


@pytest.mark.parametrize("url", ["{}", "file:{}"])
def test_a_checkpoint_with_offsets_needs_no_service(
    away: OffsetClient, tmp_path: Path, url: str
) -> None:
    """Spark goes on from it and ignores the value, which is valid for any topics."""
    WrittenCheckpoint(tmp_path).batch(0, orders(5), finished=False)
    location = url.format(tmp_path)
    assert starting_offsets(away, GROUP, ["orders-eu"], checkpoint=location) == "earliest"
    assert starting_offsets(away, GROUP, pattern=PATTERN, checkpoint=location) == "earliest"


def test_a_checkpoint_without_offsets_is_none(client: OffsetClient, tmp_path: Path) -> None:
    """The group is asked where the query has begun no batch, or there is no such folder."""
    expected = starting_offsets(client, GROUP, ["orders-eu"])
    for name in ("absent", "made"):
        location = str(tmp_path / name)
        assert starting_offsets(client, GROUP, ["orders-eu"], checkpoint=location) == expected
        # What Spark leaves where a driver dies before its first batch.
        WrittenCheckpoint(tmp_path / "made").write("offsets/.0.1f2e.tmp", "v1")


@pytest.mark.parametrize("where", ["earliest", "latest"])
def test_a_start_without_the_service(
    away: OffsetClient, caplog: pytest.LogCaptureFixture, where: Any
) -> None:
    """It is an error, or what the caller said, with a warning that tells why."""
    with pytest.raises(ServiceUnavailableError):
        starting_offsets(away, GROUP, ["orders-eu"], timeout=0.1)
    asked: dict[str, Any] = {"unavailable": where, "timeout": 0.1}
    assert starting_offsets(away, GROUP, ["orders-eu"], **asked) == where
    assert starting_offsets(away, GROUP, pattern=PATTERN, **asked) == where
    warnings = [each.getMessage() for each in caplog.records if each.name == "offsetmgr.spark"]
    assert len(warnings) == 2
    for text in warnings:
        assert "group orders-etl could not be read (" in text
        assert "127.0.0.1:1" in text
        assert f"every partition starts at {where}" in text


@pytest.mark.parametrize("operation", ["topic_logs", "fetch"])
@pytest.mark.parametrize(("code", "passes"), [(-195, True), (-187, True), (30, False)])
def test_a_start_without_kafka(
    service: Running, client: OffsetClient, operation: Any, code: int, *, passes: bool
) -> None:
    """It is as without the service; what Kafka refuses stays an error, as a missing topic does."""
    asked: dict[str, Any] = {"unavailable": "earliest", "timeout": 20}
    service.coordinator.inject(operation, Refuse(code))
    if passes:
        assert starting_offsets(client, GROUP, ["orders-eu"], **asked) == "earliest"
    else:
        with pytest.raises(OffsetManagerError):
            starting_offsets(client, GROUP, ["orders-eu"], **asked)
    with pytest.raises(ServiceError, match="no-such-topic"):
        starting_offsets(client, GROUP, ["no-such-topic"], **asked)


@pytest.mark.parametrize(
    ("group", "missing", "said"),
    [
        ("new", "earliest", "group new has no offsets; starting at earliest"),
        ("new", datetime.fromtimestamp(6, timezone.utc), "starting at 1970-01-01 00:00:06+00:00"),
        ("partly", "earliest", "group partly has no offsets for 1 of 2 partitions; starting at"),
        ("wholly", "earliest", None),
    ],
)
def test_what_has_no_offset_is_logged(
    service: Running,
    client: OffsetClient,
    caplog: pytest.LogCaptureFixture,
    group: str,
    missing: Any,
    said: str | None,
) -> None:
    """One line says so, and where the partitions start."""
    entry = OffsetAndMetadata(3)
    for count, name in ((1, "partly"), (2, "wholly")):
        given = {TopicPartition("orders-us", number): entry for number in range(count)}
        service.coordinator.broker.commit_externally(name, given)
    with caplog.at_level(logging.INFO, "offsetmgr.spark"):
        starting_offsets(client, group, ["orders-us"], missing=missing)
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    found = [text for text in logged if "has no offsets" in text]
    assert len(found) == (0 if said is None else 1)
    assert not said or said in found[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"topics": ["orders-eu"], "unavailable": "newest"}, "unavailable 'newest' is unknown"),
        ({"topics": ["orders-eu"], "unavailable": datetime.now(timezone.utc)}, "a time needs Ka"),
        ({"topics": ["orders-eu"], "checkpoint": ""}, "checkpoint '' is no path"),
        ({"topics": ["orders-eu"], "checkpoint": "s3a://b/c"}, "lies on s3a:; .* spark= with"),
        ({"pattern": "bills-.*"}, "matches no topic"),
        ({"pattern": "orders-("}, "cannot be read"),
        ({"pattern": 7}, "cannot be read"),
        ({"pattern": PATTERN, "topics": ["orders-eu"]}, "beside topics"),
        ({}, "topics None is not a list"),
        ({"topics": "orders-eu"}, "topics 'orders-eu' is not a list"),
        ({"topics": []}, "topics .* is empty"),
        ({"topics": ["orders-eu", "no topic"]}, r"topics\[1\]"),
        ({"topics": ["orders-eu"], "missing": "newest"}, "missing 'newest' is unknown"),
    ],
)
def test_patterns_that_spark_would_not_start_with(
    client: OffsetClient, arguments: dict[str, Any], problem: str
) -> None:
    """They are refused here, in words, before a query is started with them."""
    with pytest.raises(InvalidValueError, match=problem):
        starting_offsets(client, GROUP, **arguments)
