"""Consumers whose offsets are not kept by membership: managers commit them, or a store has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr import LocalOffsets, ManagerExistsError, OffsetAndMetadata
from offsetmgr.consumer import (
    AckConsumer,
    AckSettings,
    GroupConsumer,
    PartitionedConsumer,
    RetryPolicy,
)
from offsetmgr.errors import InvalidValueError, OffsetTimeoutError
from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
from offsetmgr.types import TopicPartition
from tests.kafka.messages import WAIT_S, filled

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.devkafka import DevKafka

COUNT = 100


def two_partitions(kafka: DevKafka, topic: str) -> list[tuple[str, int]]:
    """Make ``topic`` with 100 messages in each of two partitions; return these."""
    filled(kafka, topic, 2 * COUNT, partitions=2)
    return [(topic, 0), (topic, 1)]


def test_managers_commit_the_marks_of_partitions(kafka: DevKafka, group: str) -> None:
    """There is no member; a partition has one consumer at a time; a reset goes back."""
    partitions = two_partitions(kafka, group)
    with LocalOffsets(kafka.bootstrap_servers) as offsets:
        for expected, last in ((0, 59), (60, 99)):
            with GroupConsumer(
                kafka.bootstrap_servers, group, partitions=partitions, offsets=offsets
            ) as consumer:
                assert consumer.subscriptions() == {group: [0, 1]}
                with pytest.raises(ManagerExistsError):
                    GroupConsumer(
                        kafka.bootstrap_servers, group, partitions=partitions[:1], offsets=offsets
                    )
                read: dict[int, list[int]] = {0: [], 1: []}
                while sum(map(len, read.values())) < 2 * (COUNT - expected):
                    message = consumer.poll(timeout=WAIT_S)
                    assert message is not None
                    read[message.partition() or 0].append(message.offset() or 0)
                assert read == {each: list(range(expected, COUNT)) for each in range(2)}
                consumer.mark_partition_offset(group, 0, last, "so far")
                consumer.mark_partition_offset(group, 1, last)
                consumer.commit_offsets()
                assert offsets.committed(group)[TopicPartition(group, 0)][:2] == (
                    last + 1,
                    "so far",
                )
                with ClusterReader(kafka.bootstrap_servers) as reader:
                    described = reader.describe([group])[group]
                assert isinstance(described, GroupDescription)
                assert described.members == ()
        with PartitionedConsumer(
            kafka.bootstrap_servers, group, partitions=partitions, offsets=offsets
        ) as streams:
            found = streams.partitions()
            assert {next(found).partition, next(found).partition} == {0, 1}
            streams.reset_partition_offset(group, 0, 9)
        assert offsets.committed(group)[TopicPartition(group, 0)].offset == 10


@pytest.mark.parametrize("managed", [True, False])
def test_acks_of_partitions_survive_a_restart(kafka: DevKafka, group: str, managed: bool) -> None:  # noqa: FBT001
    """Of managers, or committed by the consumer itself to a group without members."""
    partitions = two_partitions(kafka, group)[:1]
    with LocalOffsets(kafka.bootstrap_servers) as local:
        offsets = local if managed else None
        settings = AckSettings(dwell_s=0)
        for left in (set(range(7, COUNT, 10)), set[int]()):
            with AckConsumer(
                kafka.bootstrap_servers,
                group,
                partitions=partitions,
                offsets=offsets,
                settings=settings,
            ) as consumer:
                known = local.committed(group).get(TopicPartition(group, 0))
                expected = set(range(COUNT)) if known is None else set(range(7, COUNT, 10))
                seen: set[int] = set()
                while seen != expected:
                    message = consumer.poll(timeout=WAIT_S)
                    assert message is not None
                    seen.add(message.offset)
                    if message.offset not in left:
                        message.ack()
                (progress,) = consumer.progress().values()
                assert progress.offset == min(left, default=COUNT)
                assert progress.pending == len(left)
                assert (progress.seconds > 0) == bool(left)
                assert (progress.metadata_chars > 0) == bool(left)
        assert local.committed(group)[TopicPartition(group, 0)][:2] == (COUNT, "")


class Shelf:
    """A store of offsets that fails its first claim."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.claimed: set[TopicPartition] = set()
        self.fails = True

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        if self.fails and partitions:
            self.fails = False
            raise OffsetTimeoutError(f"the store of {group} is away")
        self.claimed |= set(partitions)
        return {where: self.offsets.get(where) for where in partitions}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        assert group
        assert self.claimed.issuperset(offsets)
        self.offsets.update(offsets)

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        assert group
        self.claimed -= set(partitions)


def test_a_store_has_the_offsets_of_a_member(kafka: DevKafka, group: str) -> None:
    """If it does not answer, the request is repeated; Kafka itself has none of the offsets."""
    two_partitions(kafka, group)
    shelf = Shelf()
    for offset in (0, 40):
        with GroupConsumer(kafka.bootstrap_servers, group, [group], offsets=shelf) as consumer:
            message = consumer.poll(timeout=WAIT_S)
            assert message is not None
            assert message.offset() == offset
            assert [type(each) for each in consumer.errors()] == (
                [] if offset else [OffsetTimeoutError]
            )
            for partition in range(2):
                consumer.mark_partition_offset(group, partition, 39)
        assert shelf.claimed == set()
        assert {each.offset for each in shelf.offsets.values()} == {40}
    with ClusterReader(kafka.bootstrap_servers) as reader:
        assert reader.committed([group])[group] == {}


def test_what_does_not_go_together_is_refused(kafka: DevKafka, group: str) -> None:
    brokers = kafka.bootstrap_servers
    with LocalOffsets(brokers) as offsets:
        with pytest.raises(InvalidValueError, match=r"offsets .* only to groups without members"):
            GroupConsumer(brokers, group, [group], offsets=offsets)
        with pytest.raises(InvalidValueError, match=r"partitions .* are given with topics"):
            GroupConsumer(brokers, group, [group], partitions=[(group, 0)])
        with pytest.raises(InvalidValueError, match=r"partitions .* nor topics"):
            GroupConsumer(brokers, group)
        with pytest.raises(InvalidValueError, match=r"partitions .* retry topics"):
            AckConsumer(
                brokers,
                group,
                partitions=[(group, 0)],
                settings=AckSettings(retry=RetryPolicy()),
            )
