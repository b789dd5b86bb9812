"""Managers of this process over a Kafka that goes wrong, and what Kafka has in the end."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from actors import Future
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import OffsetCommitError
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import TopicPartition
from tests.unit.core.core import Listener
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from offsetmgr.coordinator.base import Failure


TOPIC: Final = "t"

QUICK: Final = CommitSettings(
    commit_interval_s=0.01,
    request_timeout_s=15.0,
    retry_backoff_s=0.01,
    retry_backoff_max_s=0.05,
)
"""No test waits for an interval or a pause."""

HASTY: Final = replace(QUICK, request_timeout_s=0.5)
"""Settings for requests that never get an answer."""


class Committing(NamedTuple):
    factory: Factory
    kafka: KafkaCoordinator
    told: Listener
    """Events that the managers have reported."""

    def spawn(self, group: str, partition: int = 0, topic: str = TOPIC) -> ManagerHandle:
        """Start a manager, and wait for its initial offset."""
        handle = self.factory.spawn(group, topic, partition)
        handle.initial_offset(timeout=WAIT_S)
        return handle

    def flush(self, handle: ManagerHandle, timeout_s: float = WAIT_S) -> int | None:
        """Commit what is newest; return the offset that is left, which None says is none."""
        waiting = self.factory.flush([handle.key], timeout_s)
        result = waiting.get(timeout=WAIT_S)[handle.key]
        return None if result.uncommitted is None else result.uncommitted.offset

    def in_kafka(self, group: str, partition: int = 0, topic: str = TOPIC) -> int | None:
        where = TopicPartition(topic, partition)
        found = self.kafka.fetch(group, [where], WAIT_S).get(timeout=WAIT_S)
        assert not found.failures
        committed = found.offsets[where]
        return None if committed is None else committed.offset

    def commit_error(self, handle: ManagerHandle, offset: int) -> OffsetCommitError:
        """Wait to be told that a commit of ``offset`` failed; on a slow machine more may have."""
        error = handle.errors().get(timeout=WAIT_S)
        while not isinstance(error, OffsetCommitError) or error.offset != offset:
            error = handle.errors().get(timeout=WAIT_S)
        return error

    def error(self, handle: ManagerHandle, code: str) -> str:
        """Wait until an error of that code is told; return its text."""
        while (error := handle.errors().get(timeout=WAIT_S)).code != code:
            continue
        return str(error)

    def codes(self) -> list[str]:
        """Every failure that was told, by Kafka's name of it."""
        return [error.code for _, error in self.told.failures]


class OfMockCluster(KafkaCoordinator):
    """Takes topics for unchanged, as the mock brokers name no controller to ask for their ids."""

    def topic_ids(
        self, topics: Sequence[str], timeout_s: float
    ) -> Future[Mapping[str, str | Failure]]:
        del timeout_s
        answer: Future[Mapping[str, str | Failure]] = Future()
        answer.set(dict.fromkeys(topics, ""))
        return answer


@contextmanager
def committing(
    kafka_at: str | Mapping[str, object],
    settings: CommitSettings = QUICK,
    coordinator: type[KafkaCoordinator] = KafkaCoordinator,
) -> Iterator[Committing]:
    """Managers over a Kafka, by its address or all settings; they end without waiting for it."""
    config = {"bootstrap.servers": kafka_at} if isinstance(kafka_at, str) else kafka_at
    kafka = coordinator(config, clients=1)
    told = Listener()
    factory = Factory(kafka, settings, observer=told)
    try:
        yield Committing(factory, kafka, told)
    finally:
        factory.stop(0.0)
        kafka.close(0.0)


def committing_to_mock(
    address: str, settings: CommitSettings = QUICK
) -> AbstractContextManager[Committing]:
    return committing(address, settings, OfMockCluster)
