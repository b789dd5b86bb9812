"""The start of a query and the range of a batch, with the real service around a Kafka in memory."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import (
    InvalidValueError,
    ManagerExistsError,
    OffsetCommitError,
    OffsetConflictError,
    OffsetManagerError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.spark import OffsetRange, kafka_batch, starting_offsets
from offsetmgr.spark.starting import bounded
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running
from tests.unit.spark.broker import managers, recreate
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders
from tests.waiting import eventually

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


@pytest.fixture
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
    """Spark goes on from it, or from a noted start; it ignores the value, valid for any topics."""
    checkpoint, location = WrittenCheckpoint(tmp_path), url.format(tmp_path)
    checkpoint.began(1, {"orders-eu": {"0": 5}})
    assert starting_offsets(away, GROUP, ["orders-eu"], checkpoint=location) == "earliest"
    assert starting_offsets(away, GROUP, pattern=PATTERN, checkpoint=location) == "earliest"
    checkpoint.files.remove("sources/1/0")
    checkpoint.batch(0, orders(5), finished=False)
    assert starting_offsets(away, GROUP, ["orders-eu"], checkpoint=location) == "earliest"


def test_a_checkpoint_without_offsets_is_none(client: OffsetClient, tmp_path: Path) -> None:
    """The group is asked where the query has begun no batch, or there is no such folder."""
    expected = starting_offsets(client, GROUP, ["orders-eu"])
    for name in ("absent", "made"):
        location = str(tmp_path / name)
        assert starting_offsets(client, GROUP, ["orders-eu"], checkpoint=location) == expected
        # What Spark leaves where a driver dies before its first batch; sources of other topics.
        made = WrittenCheckpoint(tmp_path / "made")
        made.write("offsets/.0.1f2e.tmp", "v1")
        made.began(0, orders(5))
        made.write("sources/1/0", 'v1\n{"path":"file:///orders-eu","timestamp":1,"batchId":0}')


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
        ({"pattern": PATTERN, "spark": SimpleNamespace(is_stopped=True)}, "spark .* is stopped"),
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


DAILY = "orders-daily"
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def daily(service: Running) -> Running:
    """Partition 0 holds 10 to 30, partition 1 holds 0 to 5, with a record each second."""
    broker = service.coordinator.broker
    broker.forget(DAILY)
    broker.create_topic("orders", 2)
    broker.set_log(ZERO, 10, 30, {offset: offset * 1_000 for offset in range(10, 30)})
    broker.set_log(ONE, 0, 5, {offset: offset * 1_000 for offset in range(5)})
    return service


def committed(daily: Running) -> dict[TopicPartition, int]:
    found = daily.coordinator.broker.committed(DAILY)
    return {where: entry.offset for where, entry in found.items()}


def commit(daily: Running, offsets: dict[TopicPartition, int]) -> None:
    """Commit as somebody else does."""
    entries = {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}
    daily.coordinator.broker.commit_externally(DAILY, entries)


def test_the_range_is_committed_by_a_clean_end(daily: Running, client: OffsetClient) -> None:
    """From where the group stands to the pinned end, whatever comes meanwhile; then all is free."""
    commit(daily, {ZERO: 12})
    with kafka_batch(client, DAILY, ["orders"]) as batch:
        assert batch.ranges == {ZERO: (12, 30), ONE: (0, 5)}
        assert batch.records == 23
        assert not batch.is_empty
        assert {name: json.loads(text) for name, text in batch.options.items()} == {
            "assign": {"orders": [0, 1]},
            "startingOffsets": {"orders": {"0": 12, "1": 0}},
            "endingOffsets": {"orders": {"0": 30, "1": 5}},
        }
        daily.coordinator.broker.set_log(ZERO, 10, 99)
        assert committed(daily) == {ZERO: 12}
    assert committed(daily) == {ZERO: 30, ONE: 5}
    assert managers(daily) == 0


@pytest.mark.parametrize("before", [{}, {ZERO: 12, ONE: 3}])
@pytest.mark.parametrize("end", [7, 30, 99])
def test_a_topic_recreated_during_a_batch_gets_none_of_its_offsets(
    daily: Running, client: OffsetClient, before: dict[TopicPartition, int], end: int
) -> None:
    """A shorter, equal or longer new log is read from its start by the next batch."""
    commit(daily, before)
    error = pytest.raises(OffsetConflictError, match="was deleted and recreated")
    with error, kafka_batch(client, DAILY, ["orders"]):
        recreate(daily.coordinator.broker, "orders", end, 2)
    assert committed(daily) == {}
    with kafka_batch(client, DAILY, ["orders"]) as batch:
        assert batch.ranges == {ZERO: (0, end), ONE: (0, 0)}


def test_a_log_that_is_cut_during_a_batch_gets_no_offset_beyond_its_end(
    daily: Running, client: OffsetClient
) -> None:
    """As by an unclean election: later records of it would never be read."""
    commit(daily, {ZERO: 12, ONE: 5})
    error = pytest.raises(OffsetConflictError, match=r"orders-0 was read, .* its log was cut")
    with error, kafka_batch(client, DAILY, ["orders"]):
        daily.coordinator.broker.set_log(ZERO, 10, 20)
    assert committed(daily) == {ZERO: 12, ONE: 5}
    with kafka_batch(client, DAILY, ["orders"]) as batch:
        assert batch.ranges == {ZERO: (12, 20), ONE: (5, 5)}


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failed_block_commits_nothing(
    daily: Running, client: OffsetClient, failure: type[BaseException]
) -> None:
    """However it fails, its exception is the caller's, and the next batch reads the same."""
    commit(daily, {ZERO: 12})
    with pytest.raises(failure), kafka_batch(client, DAILY, ["orders"]) as batch:
        raise failure
    assert committed(daily) == {ZERO: 12}
    assert managers(daily) == 0
    with kafka_batch(client, DAILY, ["orders"]) as again:
        assert again.ranges == batch.ranges


@pytest.mark.parametrize(
    ("before", "until", "expected"),
    [
        # It ends before the first record of that time; an older log is read to its end.
        ({}, datetime.fromtimestamp(20, timezone.utc), {ZERO: (10, 20), ONE: (0, 5)}),
        # Unnamed partitions are read to their end, one that is past its own already is not read.
        ({ZERO: 25}, {("orders", 0): 20}, {ZERO: (25, 25), ONE: (0, 5)}),
    ],
    ids=["time", "offsets"],
)
def test_until_ends_the_ranges(
    daily: Running,
    client: OffsetClient,
    before: dict[TopicPartition, int],
    until: Any,
    expected: dict[TopicPartition, tuple[int, int]],
) -> None:
    commit(daily, before)
    with kafka_batch(client, DAILY, ["orders"], until=until) as batch:
        assert batch.ranges == expected
    assert committed(daily) == {each: end for each, (_, end) in expected.items()}


@pytest.mark.parametrize("until", [{("orders", 0): 31}, {("orders", 2): 1}, {("bills", 0): 1}])
def test_until_refuses_missing_offsets(
    daily: Running, client: OffsetClient, until: dict[tuple[str, int], int]
) -> None:
    """It is refused at entry with its name, and the group is free again."""
    for _ in range(2):
        with (
            pytest.raises(InvalidValueError, match="until"),
            kafka_batch(client, DAILY, ["orders"], until=until),
        ):
            pytest.fail("the block was entered")
    assert managers(daily) == 0


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [0, 0, 1]), (3, [1, 1, 1]), (20, [2, 9, 9]), (200, [2, 30, 100])]
)
def test_a_bound_is_kept(most: int, sizes: list[int]) -> None:
    """Exactly as much as is allowed is read, and each partition has its share."""
    ranges = {
        TopicPartition("t", number): OffsetRange(5, 5 + size)
        for number, size in enumerate((2, 30, 100))
    }
    cut = bounded(ranges, most)
    assert list(cut.values()) == [OffsetRange(5, 5 + size) for size in sizes]


@pytest.mark.parametrize(
    ("start", "missing", "expected"),
    [
        (12, "earliest", (12, 20)),
        # Somebody has read the open transaction already: nothing is read again.
        (25, "earliest", (25, 25)),
        (None, "earliest", (10, 20)),
        (None, "latest", (20, 20)),
        (None, datetime.fromtimestamp(15, timezone.utc), (15, 20)),
        # Nothing of that time is stable yet, and nothing older is wanted.
        (None, datetime.fromtimestamp(25, timezone.utc), (25, 25)),
    ],
)
def test_an_open_transaction_is_left_alone(
    daily: Running,
    client: OffsetClient,
    start: int | None,
    missing: Any,
    expected: tuple[int, int],
) -> None:
    """With read_committed the log ends where it begins, and Spark is told to read so."""
    times_ms = {offset: offset * 1_000 for offset in range(10, 30)}
    daily.coordinator.broker.set_log(ZERO, 10, 30, times_ms, last_stable_offset=20)
    commit(daily, {ONE: 2} if start is None else {ZERO: start, ONE: 2})
    given: dict[str, Any] = {"missing": missing, "read_committed": True}
    with kafka_batch(client, DAILY, ["orders"], **given) as batch:
        assert batch.ranges == {ZERO: expected, ONE: (2, 5)}
        assert batch.options["kafka.isolation.level"] == "read_committed"
    assert committed(daily) == {ZERO: expected[1], ONE: 5}


def test_a_batch_of_claimed_partitions_is_refused(daily: Running, client: OffsetClient) -> None:
    """The error names the client that commits for one of them, which goes on as before."""
    with OffsetClient(daily.address, "elsewhere") as other:
        other.claim(DAILY, [("orders", 1)])
        with (
            pytest.raises(ManagerExistsError, match="elsewhere"),
            kafka_batch(client, DAILY, ["orders"], timeout=60),
        ):
            pytest.fail("the block was entered")
        eventually(lambda: managers(daily), 1)
    with (
        kafka_batch(client, DAILY, ["orders"]),
        pytest.raises(ManagerExistsError, match="etl"),
        kafka_batch(client, DAILY, ["orders"]),
    ):
        pytest.fail("the block was entered")
    assert committed(daily) == {ZERO: 30, ONE: 5}
    with kafka_batch(client, DAILY, ["orders"]) as batch:
        assert batch.is_empty


def test_a_reset_meanwhile_stays(daily: Running, client: OffsetClient) -> None:
    """An operator's commit while the batch runs is reported, and not undone."""
    refused = pytest.raises(OffsetConflictError, match="orders-1")
    with refused, kafka_batch(client, DAILY, ["orders"]):
        commit(daily, {ONE: 0})
    assert committed(daily) == {ONE: 0}
    assert managers(daily) == 0


def test_a_refused_commit_is_raised(daily: Running, client: OffsetClient) -> None:
    """The block's end says that its work is not committed, and why."""
    daily.coordinator.broker.create_topic("secret")
    daily.coordinator.inject("commit", *[Refuse(30)] * 20, group="secret")
    with pytest.raises(OffsetCommitError, match="READ"), kafka_batch(client, "secret", ["secret"]):
        pass
    assert daily.coordinator.broker.committed("secret") == {}


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("client", {"client": "http://127.0.0.1:8741"}),
        ("group", {"group": ""}),
        ("topics", {"topics": "orders"}),
        ("topics", {"topics": []}),
        ("topics[1]", {"topics": ["orders", "a b"]}),
        ("until", {"until": datetime(2024, 1, 1)}),  # noqa: DTZ001 -- what is to be refused
        ("until", {"until": 1_700_000_000}),
        ("until", {"until": {"orders-0": 1}}),
        ("until of orders-0", {"until": {("orders", 0): -1}}),
        ("max_records", {"max_records": 0}),
        ("max_records", {"max_records": True}),
        ("missing", {"missing": "newest"}),
        ("read_committed", {"read_committed": "false"}),
        ("missing", {"missing": datetime(1969, 1, 1, tzinfo=timezone.utc)}),
    ],
)
def test_wrong_arguments_of_a_batch_are_named(
    client: OffsetClient, field: str, arguments: dict[str, Any]
) -> None:
    """A wrong argument is refused by its name, before anybody is asked."""
    given: dict[str, Any] = {"client": client, "group": DAILY, "topics": ["orders"]}
    with pytest.raises(InvalidValueError) as caught, kafka_batch(**given | arguments):
        pytest.fail("the block was entered")
    assert caught.value.field == field
