"""Places where a consumer's offsets are kept: its own group in Kafka, managers, or a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.errors import OffsetManagerError, OverloadedError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import FORCED
from offsetmgr.kafka.errors import request_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import Consumer

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

REQUEST_S: Final = 10.0
"""Time that Kafka or a service has to answer."""


class OffsetKeeper(Protocol):
    """Keeps the offsets of a consumer; its methods are called by one thread at a time."""

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Take over ``partitions`` and return what is committed for each.

        Raises OffsetManagerError; then none is taken over.
        """

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit ``offsets`` of claimed partitions; some may be lower than what is committed.

        Raises OffsetManagerError where one of them is not committed.
        """

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Give back claimed partitions.  Raises OffsetManagerError."""


class MemberOffsets:
    """The offsets of a consumer's own group in Kafka."""

    def __init__(self, consumer: Consumer, kafka: Mapping[str, object]) -> None:
        self._consumer = consumer
        self._kafka = {
            name: value
            for name, value in kafka.items()
            if name not in FORCED and not callable(value)
        }

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        if not partitions:
            return {}
        # confluent-kafka's own `committed` reads beyond metadata that has no NUL at its end, and
        # what follows it may look like acks.
        try:
            with ClusterReader(self._kafka, timeout_s=REQUEST_S) as reader:
                known = reader.stable_offsets(group, partitions)
        except RuntimeError as error:  # no thread is to be had; it is tried again
            raise OverloadedError(str(error)) from error
        return {where: known.get(where) for where in partitions}

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

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Nothing is taken over: Kafka itself gives the partitions to the next member."""


class ManagedOffsets:
    """Offsets that managers commit, of this process (LocalOffsets) or a service (OffsetClient)."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        self._offsets.claim(group, partitions, timeout=REQUEST_S)
        try:
            committed = self._offsets.committed(group, timeout=REQUEST_S)
        except OffsetManagerError:
            self.release(group, partitions)
            raise
        return {where: committed.get(where) for where in partitions}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        values: dict[tuple[str, int], int | OffsetAndMetadata] = {
            (where.topic, where.partition): each for where, each in offsets.items()
        }
        # Only a reset is lower than what the consumer committed before.
        self._offsets.submit(group, values, rewind=True, sync=True, timeout=REQUEST_S)

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self._offsets.stop_managers(timeout=REQUEST_S, group=group, partitions=partitions)
