"""The coordinator port over a database: what committers may rely on, with the failures of one."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from actors import Strand
from offsetmgr import OffsetClient
from offsetmgr.answers import FenceCounts
from offsetmgr.codes import STORE_FAILED, STORE_REFUSED
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import (
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
    Verdict,
    error_info,
)
from offsetmgr.service.run import EXIT_UNCOMMITTED
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.stores.coordinator import StoreCoordinator
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import serve_process
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tests.postgres import Postgres

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def coordinator_of(database: str) -> StoreCoordinator:
    kafka = MemoryCoordinator()
    kafka.broker.create_topic("orders", 2)
    return StoreCoordinator(SqlOffsetStore(database, patience_s=0.0), kafka)


@pytest.fixture
def coordinator(database: str) -> Iterator[StoreCoordinator]:
    with SqlOffsetStore(database) as store:
        store.create_tables()
    made = coordinator_of(database)
    yield made
    made.close(WAIT_S)


def commit(
    coordinator: StoreCoordinator, offset: int, partitions: list[TopicPartition] = PARTITIONS
) -> dict[TopicPartition, str]:
    """Commit an offset of all ``partitions``; return the codes of failures."""
    offsets = dict.fromkeys(partitions, OffsetAndMetadata(offset))
    failures = coordinator.commit("etl", offsets, WAIT_S).get(timeout=WAIT_S).failures
    return {where: failure.info.name for where, failure in failures.items()}


def committed(
    coordinator: StoreCoordinator, partitions: list[TopicPartition] | None = None
) -> dict[TopicPartition, int | None]:
    answer = coordinator.fetch("etl", partitions, WAIT_S).get(timeout=WAIT_S)
    assert (answer.failures, answer.group_failure) == ({}, None)
    return {where: each.offset if each else None for where, each in answer.offsets.items()}


@pytest.mark.fault(7, 8)
def test_an_older_service_is_fenced(coordinator: StoreCoordinator, database: str) -> None:
    """Once a newer one has committed; for the partitions that the newer one has."""
    assert commit(coordinator, 5) == {}
    newer = coordinator_of(database)
    assert commit(newer, 6, PARTITIONS[:1]) == {}
    assert commit(coordinator, 7) == {PARTITIONS[0]: "GENERATION_FENCED"}
    assert committed(newer, PARTITIONS) == {PARTITIONS[0]: 6, PARTITIONS[1]: 7}
    assert (coordinator.fence, newer.fence) == (FenceCounts(0, 1), FenceCounts(1, 0))
    newer.close(WAIT_S)


def test_a_database_that_is_away_is_a_failure_of_the_request() -> None:
    """Each partition is told that the outcome is unknown; the check says so, too."""
    lost = coordinator_of("postgresql://me@127.0.0.1:1/none")
    assert commit(lost, 5) == dict.fromkeys(PARTITIONS, "STORE_FAILED")
    fetched = lost.fetch("etl", PARTITIONS, WAIT_S).get(timeout=WAIT_S)
    assert {each.info.verdict for each in fetched.failures.values()} == {Verdict.UNKNOWN}
    whole = lost.fetch("etl", None, WAIT_S).get(timeout=WAIT_S)
    assert whole.group_failure is not None
    problem = lost.check(WAIT_S).get(timeout=WAIT_S)
    assert problem is not None
    assert problem.info.retriable
    lost.close(WAIT_S)
    assert commit(lost, 5) == dict.fromkeys(PARTITIONS, "CLOSED")


def test_a_database_that_hangs_is_answered_by_the_deadline(
    coordinator: StoreCoordinator, postgres: Postgres, database: str
) -> None:
    """Another session holds the row; the caller is freed, and what lands late is read back."""
    assert commit(coordinator, 5) == {}
    with postgres.connect(database.rpartition("/")[2]) as other, other.transaction():
        other.execute("LOCK TABLE offsetmgr_offsets")
        offsets = {PARTITIONS[0]: OffsetAndMetadata(6)}
        answer = coordinator.commit("etl", offsets, 0.2).get(timeout=WAIT_S)
        assert answer.failures[PARTITIONS[0]].info.verdict is Verdict.UNKNOWN
    assert committed(coordinator, PARTITIONS[1:]) == {PARTITIONS[1]: 5}


ODD = TopicPartition("orders", 9)


class OddStore(MemoryOffsetStore):
    """A user's store that cannot claim, commit or fetch some partitions, and hangs for a group."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if TopicPartition("orders", 3) in partitions:
            raise KeyError("no row")
        return self.fetch(group, partitions)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found = super().fetch(group, partitions)
        return {**found, ODD: OffsetAndMetadata(-1)} if ODD in found else found

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        assert group != "locked" or self.answers.wait(WAIT_S)
        if TopicPartition("orders", 1) in offsets and group != "locked":
            raise RuntimeError("no such column")
        super().commit(group, offsets)


def test_a_bad_partition_or_group_of_a_store_delays_no_other() -> None:
    """More requests of a group hang than there are threads."""
    store = OddStore()
    coordinator = StoreCoordinator(store, MemoryCoordinator())
    partitions = [TopicPartition("orders", number) for number in range(5)]
    offsets = {partitions[0]: OffsetAndMetadata(7)}
    hanging = [coordinator.commit("locked", offsets, 0.01) for _ in range(20)]
    assert {each.get(timeout=WAIT_S).failures[partitions[0]].info.code for each in hanging} == {
        -185
    }
    bad = [partitions[1], partitions[3]]
    assert commit(coordinator, 5, partitions) == dict.fromkeys(bad, "STORE_FAILED")
    assert committed(coordinator) == {where: 5 for where in partitions if where not in bad}
    fetched = coordinator.fetch("etl", [*partitions, ODD], WAIT_S).get(timeout=WAIT_S)
    assert set(fetched.offsets) == set(partitions)
    assert set(fetched.failures) == {ODD}
    store.answers.set()
    late = coordinator.commit("locked", {partitions[1]: OffsetAndMetadata(8)}, WAIT_S)
    assert late.get(timeout=WAIT_S).failures == {}
    coordinator.close(WAIT_S)


def test_a_group_that_is_only_read_takes_no_memory() -> None:
    """The kind: a service whose memory grows with the names that it is asked about."""

    def strands() -> int:
        return sum(isinstance(each, Strand) for each in gc.get_objects())

    before, coordinator = strands(), StoreCoordinator(MemoryOffsetStore(), MemoryCoordinator())
    for number in range(100):
        coordinator.fetch(f"group-{number}", None, WAIT_S).get(timeout=WAIT_S)
    assert strands() - before < 20
    coordinator.close(WAIT_S)


def test_the_end_of_one_user_of_a_store_blinds_no_other() -> None:
    """The kind: a shared store that no longer asks for topic ids, as its first user has closed."""
    store = MemoryOffsetStore()
    kafka = MemoryCoordinator()
    kafka.broker.create_topic("orders", 1)
    first, second = StoreCoordinator(store, kafka), StoreCoordinator(store, kafka)
    first.close(WAIT_S)
    ask = store.topic_ids
    assert ask is not None
    second.close(WAIT_S)
    second.close(WAIT_S)
    assert store.topic_ids is None
    assert ask(["orders"]) == {}  # a transaction may be about to


@pytest.mark.parametrize(
    "error",
    [
        OffsetCommitError("etl", "payments", 0, 5, error_info(STORE_REFUSED)),
        OffsetFetchError("etl", *PARTITIONS[0], None, error_info(STORE_FAILED)),
    ],
)
def test_an_error_of_a_store_that_names_no_sent_offset_refuses_all(
    error: OffsetManagerError,
) -> None:
    """The kind: offsets that count as committed, as an error says nothing about them."""
    store = Mock(wraps=MemoryOffsetStore(), spec=MemoryOffsetStore, commit=Mock(side_effect=error))
    coordinator = StoreCoordinator(store, MemoryCoordinator())
    assert commit(coordinator, 5).keys() == set(PARTITIONS)
    coordinator.close(WAIT_S)


@pytest.mark.fault(31)
def test_a_service_ends_in_time_although_the_database_hangs(
    postgres: Postgres, database: str
) -> None:
    """With the exit status of offsets that are not committed; it needs no Kafka for commits."""
    with SqlOffsetStore(database) as store:
        store.create_tables()
    env = {"OFFSETMGR_STORE": database, "OFFSETMGR_STOP_TIMEOUT_S": "5"}
    options = ["--listen", "127.0.0.1:0", "--bootstrap-servers", "127.0.0.1:1"]
    with serve_process(*options, env=env) as service:
        with OffsetClient(service.address, name="etl") as client:
            client.submit("etl", {("orders", 0): 4}, sync=True, timeout=WAIT_S)
            with postgres.connect(database.rpartition("/")[2]) as other, other.transaction():
                other.execute("LOCK TABLE offsetmgr_offsets")
                client.submit("etl", {("orders", 0): 5})
                assert client.flush(timeout=1).uncommitted
                assert service.stop() == EXIT_UNCOMMITTED
        assert service.wait_for("uncommitted")["offset"] == 5
