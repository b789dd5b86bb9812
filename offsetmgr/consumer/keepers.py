"""The offsets of a consumer's own group in Kafka, which it commits as a member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.errors import OverloadedError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import asking_config
from offsetmgr.kafka.errors import known, request_error
from offsetmgr.stores.base import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import Consumer

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

REQUEST_S: Final = 10.0
"""Time that Kafka has to answer."""


class MemberStore(OffsetStore):
    """Commits as the member that ``consumer`` is; ``kafka`` are its settings."""

    def __init__(self, consumer: Consumer, kafka: Mapping[str, object]) -> None:
        self._consumer = consumer
        self._kafka = asking_config(kafka)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        # confluent-kafka's own `committed` reads beyond metadata that has no NUL at its end, and
        # what follows it may look like acks.
        try:
            with ClusterReader(self._kafka, timeout_s=REQUEST_S) as reader:
                if partitions is None:
                    return known(reader.committed([group])[group])
                return reader.stable_offsets(group, partitions) if partitions else {}
        except RuntimeError as error:  # no thread can be started; it is tried again
            raise OverloadedError(str(error)) from error

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        sent = [
            KafkaPartition(*where, each.offset, each.metadata) for where, each in offsets.items()
        ]
        try:
            answers = self._consumer.commit(offsets=sent, asynchronous=False)
        except KafkaException as error:
            raise request_error(f"commit of group {group}", error.args[0]) from error
        for answer in answers or ():
            if answer.error is not None:
                what = f"commit of {answer.topic}-{answer.partition} for group {group}"
                raise request_error(what, answer.error)
