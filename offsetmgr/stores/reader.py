"""Consumer groups of Kafka as an offset store, and groups in a store as those of a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import (
    KafkaRequestError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
)
from offsetmgr.kafka.cluster import ClusterReader, GroupDescription, GroupListing
from offsetmgr.kafka.errors import tried
from offsetmgr.stores import open_store
from offsetmgr.stores.base import OffsetStore
from offsetmgr.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.types import OffsetAndMetadata, TopicPartition


_CLOSE_S: Final = 5.0
_MARGIN_S: Final = 5.0


class BrokerOffsetStore(OffsetStore):
    """Commits to Kafka without joining the group, which must have no live members.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings; each request has
    ``timeout_s`` seconds.
    """

    def __init__(self, kafka: str | Mapping[str, object], *, timeout_s: float = 10.0) -> None:
        self._kafka = kafka
        self._timeout_s = check_timeout(timeout_s, "timeout_s")
        self._coordinator = KafkaCoordinator(kafka, clients=1)

    @property
    def url(self) -> str:
        servers = self._kafka if isinstance(self._kafka, str) else self._kafka["bootstrap.servers"]
        return f"kafka://{servers}"

    def groups(self) -> list[str]:
        with ClusterReader(self._kafka, timeout_s=self._timeout_s) as reader:
            return [each.name for each in reader.groups()]

    def close(self) -> None:
        self._coordinator.close(_CLOSE_S)

    def try_commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetCommitError]:
        if not offsets:
            return {}
        sent = self._coordinator.commit(group, offsets, self._timeout_s)
        failures = sent.get(timeout=self._timeout_s + _MARGIN_S).failures
        return {
            where: OffsetCommitError(group, *where, offsets[where].offset, *failure)
            for where, failure in failures.items()
        }

    def _fetch(
        self, group: str, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if partitions == []:
            return {}
        sent = self._coordinator.fetch(group, partitions, self._timeout_s)
        answer = sent.get(timeout=self._timeout_s + _MARGIN_S)
        if answer.group_failure is not None:
            raise KafkaRequestError(f"committed offsets of group {group}", *answer.group_failure)
        for where, failure in answer.failures.items():
            raise OffsetFetchError(group, *where, None, *failure)
        return dict(answer.offsets)


class StoreReader(ClusterReader):
    """A ClusterReader with the groups of ``store`` in the place of Kafka's; closes both.

    Members are those that Kafka knows.  Without any the state of a group is Empty, or Dead if
    nothing is committed.
    """

    def __init__(
        self, store: OffsetStore, kafka: str | Mapping[str, object], *, timeout_s: float = 10.0
    ) -> None:
        super().__init__(kafka, timeout_s=timeout_s)
        self._store = store

    def groups(self) -> list[GroupListing]:
        in_kafka = {each.name: each for each in super().groups()}
        return [
            in_kafka.get(name, GroupListing(name, "Empty", "store"))
            for name in self._store.groups()
        ]

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        known = self._store.groups()
        found = super().describe(groups)
        for group, each in found.items():
            if not isinstance(each, OffsetManagerError):
                empty = each.state == "Dead" and group in known
                found[group] = each._replace(
                    coordinator=self._store.url, state="Empty" if empty else each.state
                )
        return found

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        def fetch(group: str) -> dict[TopicPartition, OffsetAndMetadata]:
            offsets = self._store.fetch_offsets(group)
            return {where: each for where, each in offsets.items() if each is not None}

        return {group: tried(fetch, group) for group in groups}

    def close(self) -> None:
        self._store.close()
        super().close()


def open_reader(
    kafka: str | Mapping[str, object], store: str | None, *, timeout_s: float
) -> ClusterReader:
    """Return the reader of the groups at the URL ``store``, of Kafka's own groups if None."""
    if store is None:
        return ClusterReader(kafka, timeout_s=timeout_s)
    return StoreReader(open_store(store), kafka, timeout_s=timeout_s)
