"""Consumer groups of Kafka as an offset store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import KafkaRequestError, OffsetCommitError, OffsetFetchError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.stores.base import OffsetStore, raise_for
from offsetmgr.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
            found, errors = reader.groups()
        if errors:  # whose groups are missing
            raise errors[0]
        return [each.name for each in found if each.has_offsets]

    def close(self) -> None:
        self._coordinator.close(_CLOSE_S)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if partitions is not None and not partitions:
            return {}
        asked = None if partitions is None else list(partitions)
        sent = self._coordinator.fetch(group, asked, self._timeout_s)
        answer = sent.get(timeout=self._timeout_s + _MARGIN_S)
        if answer.group_failure is not None:
            raise KafkaRequestError(f"committed offsets of group {group}", *answer.group_failure)
        for topic_partition, failure in answer.failures.items():
            raise OffsetFetchError(group, *topic_partition, None, *failure)
        return dict(answer.offsets)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if not offsets:
            return
        sent = self._coordinator.commit(group, offsets, self._timeout_s)
        failures = sent.get(timeout=self._timeout_s + _MARGIN_S).failures
        raise_for(
            group,
            {
                each: OffsetCommitError(group, *each, offsets[each].offset, *failure)
                for each, failure in failures.items()
            },
        )
