"""Consumers that commit what the program has marked or acknowledged."""

from offsetmgr.extras import naming_extra

with naming_extra(__name__):
    from offsetmgr.consumer.ack_work import AckMessage, AckSettings, PartitionProgress
    from offsetmgr.consumer.acks import AckConsumer
    from offsetmgr.consumer.group import (
        GroupConsumer,
        OffsetStash,
        PartitionedConsumer,
        PartitionStream,
    )
    from offsetmgr.consumer.retry import RetryPolicy
    from offsetmgr.consumer.settings import ConsumerSettings, ConsumerStats, Notification

__all__ = [
    "AckConsumer",
    "AckMessage",
    "AckSettings",
    "ConsumerSettings",
    "ConsumerStats",
    "GroupConsumer",
    "Notification",
    "OffsetStash",
    "PartitionProgress",
    "PartitionStream",
    "PartitionedConsumer",
    "RetryPolicy",
]
