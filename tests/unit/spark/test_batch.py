"""A batch's range and its commit, against the real service around a Kafka in memory."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import (
    InvalidValueError,
    ManagerExistsError,
    OffsetCommitError,
    OffsetConflictError,
)
from offsetmgr.spark import OffsetRange, kafka_batch
from offsetmgr.spark.starting import bounded
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running
from tests.unit.spark.broker import managers, recreate
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "orders-daily"
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture(scope="module")
def serving() -> Iterator[Running]:
    with running() as here:
        yield here


@pytest.fixture
def service(serving: Running) -> Running:
    """Partition 0 holds 10 to 30, partition 1 holds 0 to 5, with a record each second."""
    broker = serving.coordinator.broker
    broker.forget(GROUP)
    broker.create_topic("orders", 2)
    broker.set_log(ZERO, 10, 30, {offset: offset * 1_000 for offset in range(10, 30)})
    broker.set_log(ONE, 0, 5, {offset: offset * 1_000 for offset in range(5)})
    return serving


@pytest.fixture
def client(service: Running) -> Iterator[OffsetClient]:
    with OffsetClient(service.address, "daily") as made:
        yield made


def committed(service: Running) -> dict[TopicPartition, int]:
    found = service.coordinator.broker.committed(GROUP)
    return {where: entry.offset for where, entry in found.items()}


def commit(service: Running, offsets: dict[TopicPartition, int]) -> None:
    """Commit as somebody else does."""
    entries = {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}
    service.coordinator.broker.commit_externally(GROUP, entries)


def test_the_range_is_committed_by_a_clean_end(service: Running, client: OffsetClient) -> None:
    """From where the group stands to the pinned end, whatever comes meanwhile; then all is free."""
    commit(service, {ZERO: 12})
    with kafka_batch(client, GROUP, ["orders"]) as batch:
        assert batch.ranges == {ZERO: (12, 30), ONE: (0, 5)}
        assert batch.records == 23
        assert not batch.is_empty
        assert {name: json.loads(text) for name, text in batch.options.items()} == {
            "assign": {"orders": [0, 1]},
            "startingOffsets": {"orders": {"0": 12, "1": 0}},
            "endingOffsets": {"orders": {"0": 30, "1": 5}},
        }
        service.coordinator.broker.set_log(ZERO, 10, 99)
        assert committed(service) == {ZERO: 12}
    assert committed(service) == {ZERO: 30, ONE: 5}
    assert managers(service) == 0


@pytest.mark.parametrize("before", [{}, {ZERO: 12, ONE: 3}])
@pytest.mark.parametrize("end", [7, 30, 99])
def test_a_topic_recreated_during_a_batch_gets_none_of_its_offsets(
    service: Running, client: OffsetClient, before: dict[TopicPartition, int], end: int
) -> None:
    """A shorter, equal or longer new log is read from its start by the next batch."""
    commit(service, before)
    error = pytest.raises(OffsetConflictError, match="was deleted and recreated")
    with error, kafka_batch(client, GROUP, ["orders"]):
        recreate(service.coordinator.broker, "orders", end, 2)
    assert committed(service) == {}
    with kafka_batch(client, GROUP, ["orders"]) as batch:
        assert batch.ranges == {ZERO: (0, end), ONE: (0, 0)}


def test_a_log_that_is_cut_during_a_batch_gets_no_offset_beyond_its_end(
    service: Running, client: OffsetClient
) -> None:
    """As by an unclean election: later records of it would never be read."""
    commit(service, {ZERO: 12, ONE: 5})
    error = pytest.raises(OffsetConflictError, match=r"orders-0 was read, .* its log was cut")
    with error, kafka_batch(client, GROUP, ["orders"]):
        service.coordinator.broker.set_log(ZERO, 10, 20)
    assert committed(service) == {ZERO: 12, ONE: 5}
    with kafka_batch(client, GROUP, ["orders"]) as batch:
        assert batch.ranges == {ZERO: (12, 20), ONE: (5, 5)}


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failed_block_commits_nothing(
    service: Running, client: OffsetClient, failure: type[BaseException]
) -> None:
    """However it fails, its exception is the caller's, and the next batch reads the same."""
    commit(service, {ZERO: 12})
    with pytest.raises(failure), kafka_batch(client, GROUP, ["orders"]) as batch:
        raise failure
    assert committed(service) == {ZERO: 12}
    assert managers(service) == 0
    with kafka_batch(client, GROUP, ["orders"]) as again:
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
    service: Running,
    client: OffsetClient,
    before: dict[TopicPartition, int],
    until: Any,
    expected: dict[TopicPartition, tuple[int, int]],
) -> None:
    commit(service, before)
    with kafka_batch(client, GROUP, ["orders"], until=until) as batch:
        assert batch.ranges == expected
    assert committed(service) == {each: end for each, (_, end) in expected.items()}


@pytest.mark.parametrize("until", [{("orders", 0): 31}, {("orders", 2): 1}, {("bills", 0): 1}])
def test_until_refuses_missing_offsets(
    service: Running, client: OffsetClient, until: dict[tuple[str, int], int]
) -> None:
    """It is refused at entry with its name, and the group is free again."""
    for _ in range(2):
        with (
            pytest.raises(InvalidValueError, match="until"),
            kafka_batch(client, GROUP, ["orders"], until=until),
        ):
            pytest.fail("the block was entered")
    assert managers(service) == 0


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
    service: Running,
    client: OffsetClient,
    start: int | None,
    missing: Any,
    expected: tuple[int, int],
) -> None:
    """With read_committed the log ends where it begins, and Spark is told to read so."""
    times_ms = {offset: offset * 1_000 for offset in range(10, 30)}
    service.coordinator.broker.set_log(ZERO, 10, 30, times_ms, last_stable_offset=20)
    commit(service, {ONE: 2} if start is None else {ZERO: start, ONE: 2})
    given: dict[str, Any] = {"missing": missing, "read_committed": True}
    with kafka_batch(client, GROUP, ["orders"], **given) as batch:
        assert batch.ranges == {ZERO: expected, ONE: (2, 5)}
        assert batch.options["kafka.isolation.level"] == "read_committed"
    assert committed(service) == {ZERO: expected[1], ONE: 5}


def test_a_batch_of_claimed_partitions_is_refused(service: Running, client: OffsetClient) -> None:
    """The error names the client that commits for one of them, which goes on as before."""
    with OffsetClient(service.address, "elsewhere") as other:
        other.claim(GROUP, [("orders", 1)])
        with (
            pytest.raises(ManagerExistsError, match="elsewhere"),
            kafka_batch(client, GROUP, ["orders"], timeout=60),
        ):
            pytest.fail("the block was entered")
        eventually(lambda: managers(service), 1)
    with (
        kafka_batch(client, GROUP, ["orders"]),
        pytest.raises(ManagerExistsError, match="daily"),
        kafka_batch(client, GROUP, ["orders"]),
    ):
        pytest.fail("the block was entered")
    assert committed(service) == {ZERO: 30, ONE: 5}
    with kafka_batch(client, GROUP, ["orders"]) as batch:
        assert batch.is_empty


def test_a_reset_meanwhile_stays(service: Running, client: OffsetClient) -> None:
    """An operator's commit while the batch runs is reported, and not undone."""
    refused = pytest.raises(OffsetConflictError, match="orders-1")
    with refused, kafka_batch(client, GROUP, ["orders"]):
        commit(service, {ONE: 0})
    assert committed(service) == {ONE: 0}
    assert managers(service) == 0


def test_a_refused_commit_is_raised(service: Running, client: OffsetClient) -> None:
    """The block's end says that its work is not committed, and why."""
    service.coordinator.broker.create_topic("secret")
    service.coordinator.inject("commit", *[Refuse(30)] * 20, group="secret")
    with pytest.raises(OffsetCommitError, match="READ"), kafka_batch(client, "secret", ["secret"]):
        pass
    assert service.coordinator.broker.committed("secret") == {}


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
def test_wrong_arguments_are_named(
    client: OffsetClient, field: str, arguments: dict[str, Any]
) -> None:
    """A wrong argument is refused by its name, before anybody is asked."""
    given: dict[str, Any] = {"client": client, "group": GROUP, "topics": ["orders"]}
    with pytest.raises(InvalidValueError) as caught, kafka_batch(**given | arguments):
        pytest.fail("the block was entered")
    assert caught.value.field == field
