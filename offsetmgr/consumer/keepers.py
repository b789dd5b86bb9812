"""The offsets of a consumer's own group in Kafka, which it commits as a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.errors import OffsetsUncommittedError
from offsetmgr.kafka.errors import known, request_error
from offsetmgr.stores.base import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import Consumer

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class MemberStore(OffsetStore):
    """Commits as the member that ``consumer`` is; ``reader`` reads the same cluster."""

    def __init__(self, consumer: Consumer, reader: ClusterReader) -> None:
        self._consumer = consumer
        self._reader = reader

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        # confluent-kafka's own `committed` reads beyond metadata that has no NUL at its end, and
        # what follows it may look like acks.
        if partitions is None:
            return known(self._reader.committed([group])[group])
        return self._reader.stable_offsets(group, partitions) if partitions else {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        sent = [KafkaPartition(*key, each.offset, each.metadata) for key, each in offsets.items()]
        what = f"commit of group {group}"
        try:
            answers = self._consumer.commit(offsets=sent, asynchronous=False)
        except KafkaException as error:
            raise request_error(what, error, right="READ") from error
        refused = {}
        for each in answers or ():
            if each.error is not None:
                refused[each.topic, each.partition] = request_error(
                    f"{what} for {each.topic}-{each.partition}",
                    each.error,
                    right="READ",
                    topic=each.topic,
                    partition=each.partition,
                    offset=each.offset,
                )
        if refused:
            raise OffsetsUncommittedError.one_of(refused)
