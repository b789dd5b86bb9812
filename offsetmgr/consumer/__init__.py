"""Group consumers whose marks and acks survive a restart."""

from offsetmgr.consumer.group import GroupConsumer, Notification
from offsetmgr.consumer.marks import OffsetStash
from offsetmgr.consumer.membership import ConsumerSettings
from offsetmgr.consumer.partitions import PartitionedConsumer, PartitionStream

__all__ = [
    "ConsumerSettings",
    "GroupConsumer",
    "Notification",
    "OffsetStash",
    "PartitionStream",
    "PartitionedConsumer",
]
