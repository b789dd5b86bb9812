"""Consumers that commit what the program has marked or acknowledged."""

from offsetmgr.consumer.acks import AckConsumer, AckSettings
from offsetmgr.consumer.base import ConsumerSettings
from offsetmgr.consumer.deliveries import AckMessage, PartitionProgress
from offsetmgr.consumer.group import (
    GroupConsumer,
    Notification,
    OffsetStash,
    PartitionedConsumer,
    PartitionStream,
)
from offsetmgr.consumer.retry import RetryPolicy

__all__ = [
    "AckConsumer",
    "AckMessage",
    "AckSettings",
    "ConsumerSettings",
    "GroupConsumer",
    "Notification",
    "OffsetStash",
    "PartitionProgress",
    "PartitionStream",
    "PartitionedConsumer",
    "RetryPolicy",
]
