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
from offsetmgr.spark import kafka_batch, starting_offsets
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
    with OffsetClient(service.address, "etl") as made:
        yield made


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        (PATTERN, ["old-orders-eu", "orders-eu", "orders-us"]),
        (r"^orders-\w+", ["orders-eu", "orders-us"]),
        (r"orders-us|nothing", ["orders-us"]),
        ("(?i)ORDERS-EU$", ["old-orders-eu", "orders-eu"]),
    ],
)
def test_a_pattern_names_every_topic_that_spark_reads(
    client: OffsetClient, pattern: str, topics: list[str]
) -> None:
    """Spark takes each topic whose name contains a match; every partition of them is named."""
    start = json.loads(starting_offsets(client, GROUP, pattern=pattern))
    assert sorted(start) == topics
    if "orders-eu" in topics:
        assert start["orders-eu"] == {"0": -2, "1": 3}


@pytest.fixture
def cut(service: Running, unique_name: str) -> str:
    """A topic whose log begins above one committed offset and ends below another; the group."""
    service.coordinator.broker.create_topic(unique_name, 3)
    for number, offset in enumerate((2, 77, 8)):
        place = TopicPartition(unique_name, number)
        service.coordinator.broker.set_log(place, 6, 10, {9: 5_000})
        service.coordinator.broker.commit_externally(
            unique_name, {place: OffsetAndMetadata(offset)}
        )
    return unique_name


@pytest.mark.parametrize(
    ("missing", "start", "told"),
    [
        ("earliest", -2, "earliest"),
        ("latest", -1, "latest"),
        (datetime.fromtimestamp(5, timezone.utc), 9, "1970"),
    ],
)
def test_an_offset_of_a_former_log_starts_where_none_is_committed(
    client: OffsetClient,
    cut: str,
    caplog: pytest.LogCaptureFixture,
    missing: Any,
    start: int,
    told: str,
) -> None:
    """Never at the end of the new log, whose records would be skipped; the warning counts them."""
    found = json.loads(starting_offsets(client, cut, [cut], missing=missing))
    assert found == {cut: {"0": 6, "1": start, "2": 8}}
    expired, beyond = [each for each in caplog.messages if cut in each]
    assert f"offset 2 committed for {cut}-0; 4 records have expired unread" in expired
    assert f"{cut}-1 (committed 77; the log holds 4 records, 6 to 10)" in beyond
    assert f"starting at {told}" in beyond


def test_an_offset_committed_between_two_questions_is_not_of_a_former_log(
    service: Running, client: OffsetClient, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a former run that still ends: the whole log would be read again."""
    broker, place = service.coordinator.broker, TopicPartition(unique_name, 0)
    broker.create_topic(unique_name)

    def commit(offset: int, end: int) -> None:
        broker.set_log(place, 0, end)
        broker.commit_externally(unique_name, {place: OffsetAndMetadata(offset)})

    def asked(*args: Any, **options: Any) -> Any:
        patched.undo()
        answer = getattr(client, question)(*args, **options)
        commit(15, 20)
        return answer

    for question in ("logs", "committed"):
        commit(10, 10)
        with monkeypatch.context() as patched:
            patched.setattr(client, question, asked)
            assert starting_offsets(client, unique_name, [unique_name], "error")
    commit(10, 10)
    question = "logs"
    with monkeypatch.context() as patched:
        patched.setattr(client, question, asked)
        with kafka_batch(client, unique_name, [unique_name]) as batch:
            assert batch.ranges == {place: (15, 20)}


def test_gaps_may_be_an_error(client: OffsetClient, cut: str) -> None:
    """The partitions are named, those of a former log too; where there are none, all is well."""
    with pytest.raises(InvalidValueError, match=f"beyond the end of the log: {cut}-1"):
        starting_offsets(client, cut, [cut], missing="error")
    with pytest.raises(InvalidValueError, match="nothing committed for orders-eu-0;"):
        starting_offsets(client, GROUP, ["orders-eu"], missing="error")
    client.submit(GROUP, {("orders-eu", 0): 1}, sync=True)
    start = json.loads(starting_offsets(client, GROUP, ["orders-eu"], missing="error"))
    assert start == {"orders-eu": {"0": 1, "1": 3}}


@pytest.fixture
def away() -> Iterator[OffsetClient]:
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
    ("commits", "missing", "said"),
    [
        (0, "earliest", "has no offsets for 2 of 2 partitions; starting at earliest"),
        (0, datetime.fromtimestamp(6, timezone.utc), "starting at 1970-01-01 00:00:06+00:00"),
        (1, "earliest", "has no offsets for 1 of 2 partitions; starting at"),
        (2, "earliest", ""),
    ],
)
def test_partitions_without_an_offset_are_logged(
    service: Running,
    client: OffsetClient,
    group: str,
    caplog: pytest.LogCaptureFixture,
    commits: int,
    missing: Any,
    said: str,
) -> None:
    """One line says so, and where the partitions start."""
    entries = {TopicPartition("orders-us", n): OffsetAndMetadata(3) for n in range(commits)}
    service.coordinator.broker.commit_externally(group, entries)
    with caplog.at_level(logging.INFO, "offsetmgr.spark"):
        starting_offsets(client, group, ["orders-us"], missing=missing)
    logged = [each for each in caplog.messages if f"group {group} has no offsets" in each]
    assert len(logged) == bool(said)
    assert said in "".join(logged)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"client": "http://127.0.0.1:8741"}, "is not a client"),
        ({"topics": ["orders-eu"], "unavailable": "newest"}, "unavailable 'newest' is unknown"),
        ({"topics": ["orders-eu"], "unavailable": datetime.now(timezone.utc)}, "a time needs Ka"),
        ({"topics": ["orders-eu"], "checkpoint": ""}, "checkpoint '' is not a path"),
        (
            {"topics": ["orders-eu"], "checkpoint": "unknown://b/c"},
            "cannot be opened .* spark= with",
        ),
        ({"pattern": "bills-.*"}, "matches no topic"),
        ({"pattern": "orders-("}, "cannot be read"),
        ({"pattern": 7}, "cannot be read"),
        ({"pattern": "a{99999999999999999999}"}, "cannot be read"),
        ({"pattern": "(" * 9_000 + ")" * 9_000}, "cannot be read"),
        ({"pattern": PATTERN, "topics": ["orders-eu"]}, "is given with topics"),
        ({}, "topics None is not a list"),
        ({"topics": "orders-eu"}, "topics 'orders-eu' is not a list"),
        ({"topics": []}, "topics .* is empty"),
        ({"topics": ["orders-eu", "no topic"]}, r"topics\[1\]"),
        ({"topics": ["orders-eu"], "missing": "newest"}, "missing 'newest' is unknown"),
    ],
)
def test_arguments_that_spark_would_not_start_with(
    client: OffsetClient, arguments: dict[str, Any], problem: str
) -> None:
    """They are refused here, in words, before a query is started with them."""
    given: dict[str, Any] = {"client": client, "group": GROUP, **arguments}
    with pytest.raises(InvalidValueError, match=problem):
        starting_offsets(**given)
