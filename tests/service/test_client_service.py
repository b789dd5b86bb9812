"""The client against the real service."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import (
    ClientFencedError,
    ManagerExistsError,
    OffsetCommitError,
    OffsetRegressionError,
    OffsetTimeoutError,
    ServiceError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition
from tests.service.support import Running, memory_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = ManagerKey("g", "orders", 3)
WHERE = KEY.topic_partition


@pytest.fixture
def client(service: Running) -> Iterator[OffsetClient]:
    """A client named `etl`."""
    with OffsetClient(service.address, "etl") as made:
        yield made


def test_submit_and_flush(service: Running, client: OffsetClient) -> None:
    """A submitted offset is in Kafka after a flush, with metadata and leader epoch."""
    manager = client.spawn("g", "orders", 3)
    for offset in range(100):
        manager.submit(offset, metadata=f"run {offset}", leader_epoch=5)
    value = OffsetAndMetadata(99, "run 99", 5)
    assert client.flush() == ({KEY: value}, {})
    assert service.coordinator.broker.committed("g") == {WHERE: value}
    assert client.committed("g") == {WHERE: value}


def test_many(service: Running, client: OffsetClient) -> None:
    """Thousands of partitions are flushed, and stopped, with one call each."""
    offsets = {("orders", number): number for number in range(12_000)}
    client.submit("g", offsets)
    assert len(client.flush(timeout=60).committed) == 12_000
    assert len(service.coordinator.broker.committed("g")) == 12_000
    named = client.stop_managers(timeout=60, group="g", partitions=list(offsets)[:11_000])
    assert len(named.committed) == 11_000
    assert len(client.stop_managers(timeout=60).committed) == 1_000


def test_sync(service: Running, client: OffsetClient) -> None:
    """A sync submit returns when Kafka has it, all of thousands."""
    client.submit("g", {("orders", n): n for n in range(2_500)}, sync=True, timeout=60)
    assert len(service.coordinator.broker.committed("g")) == 2_500


def test_kafka_stands_still(service: Running, client: OffsetClient) -> None:
    """While Kafka does not answer, waits end in time and say so; then everything is committed."""
    service.coordinator.pause()
    manager = client.spawn("g", "orders", 3)
    with pytest.raises(OffsetTimeoutError, match="g/orders/3"):
        manager.initial_offset(timeout=0.2)
    with pytest.raises(OffsetTimeoutError, match="orders-3"):
        client.submit("g", {("orders", 3): 5}, sync=True, timeout=0.2)
    assert list(client.flush(timeout=0.2).uncommitted) == [KEY]
    service.coordinator.resume()
    assert client.flush(timeout=60) == ({KEY: OffsetAndMetadata(5)}, {})
    assert manager.initial_offset(timeout=60) is None


def test_rewind_and_regression(service: Running, client: OffsetClient) -> None:
    """Below what the group has is refused and told; a rewind goes there all the same."""
    service.coordinator.broker.commit_externally("g", {WHERE: OffsetAndMetadata(100)})
    manager = client.spawn("g", "orders", 3)
    errors = manager.errors()
    manager.submit(40)
    result = client.flush(timeout=60)
    assert isinstance(result.uncommitted[KEY].error, OffsetRegressionError)
    assert isinstance(errors.get(timeout=60), OffsetRegressionError)
    with pytest.raises(OffsetRegressionError):
        client.submit("g", {("orders", 3): 41}, sync=True, timeout=60)
    manager.rewind(40)
    manager.submit(41)
    assert client.flush(timeout=60) == ({KEY: OffsetAndMetadata(41)}, {})
    assert service.coordinator.broker.committed("g") == {WHERE: OffsetAndMetadata(41)}


def test_kafkas_refusal(service: Running, client: OffsetClient) -> None:
    """Kafka's refusal of a commit reaches the handle, the flush and the sync submit."""
    denied = Refuse(30, detail="grant READ on group g")
    manager = client.spawn("g", "orders", 3)
    errors = manager.errors()
    manager.initial_offset(timeout=60)
    service.coordinator.inject("commit", *[denied] * 20)
    with pytest.raises(OffsetCommitError, match="grant READ on group g"):
        client.submit("g", {("orders", 3): 5}, sync=True, timeout=600)
    told = errors.get(timeout=60)
    assert isinstance(told, OffsetCommitError)
    assert (told.code, told.offset, told.retriable) == ("GROUP_AUTHORIZATION_FAILED", 5, False)
    left = client.flush(timeout=600).uncommitted[KEY]
    assert left.offset == OffsetAndMetadata(5)
    assert "grant READ" in str(left.error)


def test_a_failure_before_anybody_listened_is_told(service: Running, client: OffsetClient) -> None:
    """Errors since the spawn reach a handle whose user asks for them late."""
    manager = client.spawn("g", "orders", 3)
    manager.initial_offset(timeout=60)
    service.coordinator.inject("commit", *[Refuse(30)] * 20)
    with pytest.raises(OffsetCommitError):
        client.submit("g", {("orders", 3): 5}, sync=True, timeout=60)
    told = manager.errors().get(timeout=60)
    assert isinstance(told, OffsetCommitError)
    assert told.offset == 5


def test_topics(service: Running, client: OffsetClient) -> None:
    """Partitions come with the ends of their logs; a missing topic is named."""
    service.coordinator.broker.create_topic("orders", 2)
    service.coordinator.broker.set_log(TopicPartition("orders", 1), 10, 25)
    assert client.topics(["orders"]) == {"orders": {0: (0, 0), 1: (10, 25)}}
    with pytest.raises(ServiceError, match="missing"):
        client.topics(["orders", "missing"])


def test_offsets_at_a_time(service: Running, client: OffsetClient) -> None:
    """The first record of that time or later, the log's end where there is none."""
    broker = service.coordinator.broker
    broker.create_topic("orders", 2)
    broker.set_log(TopicPartition("orders", 0), 2, 8, {2: 5_000, 3: 6_000})
    broker.set_log(TopicPartition("orders", 1), 0, 4)
    assert client.offsets_at(["orders"], 5_001) == {("orders", 0): 3, ("orders", 1): 4}
    assert client.topic_names() == ["orders"]
    with pytest.raises(ServiceError, match="missing"):
        client.offsets_at(["missing"], 0)


def test_a_claim_has_all_or_nothing(service: Running, client: OffsetClient) -> None:
    """If another client holds one, that is an error at once, and the others are given back."""
    wheres = [("orders", number) for number in range(3)]
    client.claim("g", wheres)
    with pytest.raises(ManagerExistsError, match="etl"):
        client.claim("g", wheres[2:])
    with OffsetClient(service.address, "other") as other:
        with pytest.raises(ManagerExistsError, match="etl"):
            other.claim("g", [("bills", 0), *wheres], timeout=600)
        client.stop_managers(group="g")
        other.claim("g", [("bills", 0), *wheres], timeout=60)
        other.submit("g", {("orders", 1): 7}, sync=True)


def test_a_claim_without_a_service_ends_in_time(tmp_path: Path) -> None:
    """It says why, and nothing of it is left to be sent later."""
    with OffsetClient(f"unix://{tmp_path}/none.sock", "etl") as client:
        with pytest.raises(OffsetTimeoutError, match=r"none\.sock"):
            client.claim("g", [("orders", 0)], timeout=0.2)
        with pytest.raises(OffsetTimeoutError):
            client.claim("g", [("orders", 0)], timeout=0.2)


def test_a_restarted_driver_takes_over(service: Running, client: OffsetClient) -> None:
    """A second client of the name has the managers at once; the first is fenced and says so."""
    manager = client.spawn("g", "orders", 3)
    manager.submit(5)
    client.flush()
    with OffsetClient(service.address, "etl") as successor:
        taken = successor.spawn("g", "orders", 3)
        assert taken.initial_offset(timeout=60) is None
        taken.submit(50)
        assert not successor.flush().uncommitted
        manager.submit(6)
        assert isinstance(client.flush(timeout=600).uncommitted[KEY].error, ClientFencedError)
        assert isinstance(manager.errors().get(timeout=60), ClientFencedError)
    assert service.coordinator.broker.committed("g") == {WHERE: OffsetAndMetadata(50)}


def test_another_client_holds_it(service: Running, client: OffsetClient) -> None:
    """Another client's manager names its owner, and can be had when that one is closed."""
    with OffsetClient(service.address, "größe 100%") as rival:
        rival.submit("g", {("orders", 3): 5}, sync=True)
        with pytest.raises(ManagerExistsError, match="größe 100%"):
            client.submit("g", {("orders", 3): 6}, sync=True, timeout=600)
    client.submit("g", {("orders", 3): 7}, sync=True, timeout=60)
    assert service.coordinator.broker.committed("g") == {WHERE: OffsetAndMetadata(7)}


def test_killed_and_started_again(tmp_path: Path) -> None:
    """After kill -9 a successor is given all that the client holds, over a Unix socket."""
    listen = f"listen=unix://{tmp_path}/s"
    with memory_process(listen) as first:
        client = OffsetClient(first.address, "etl")
        manager = client.spawn("g", "orders", 3)
        manager.submit(5)
        client.flush(timeout=60)
        first.process.kill()
        first.wait()
    manager.submit(6)
    with memory_process(listen) as second:
        assert second.address == client.url
        assert client.flush(timeout=60) == ({KEY: OffsetAndMetadata(6)}, {})
        assert client.committed("g") == {WHERE: OffsetAndMetadata(6)}
        assert not client.close().uncommitted
        assert second.stop() == 0


def test_drained_and_started_again(tmp_path: Path) -> None:
    """A service that is stopped in an orderly way is followed by its successor just as well."""
    listen = f"listen=unix://{tmp_path}/s"
    with memory_process(listen) as first:
        client = OffsetClient(first.address, "etl")
        errors = client.spawn("g", "orders", 3).errors()
        client.submit("g", {("orders", 3): 5}, sync=True, timeout=60)
        assert first.stop([signal.SIGTERM]) == 0
    client.submit("g", {("orders", 3): 6})
    with memory_process(listen) as second:
        client.submit("g", {("orders", 3): 7}, sync=True, timeout=60)
        assert client.close().committed == {KEY: OffsetAndMetadata(7)}
        assert second.stop() == 0
    assert list(errors) == []
