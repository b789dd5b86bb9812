"""What the steps of the demo share: names, places, and clients of Kafka and of the sidecar."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.demo.errors import DemoError

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.client import OffsetClient
    from offsetmgr.demo.orders import Sales
    from offsetmgr.demo.screen import Screen

_REQUEST_S: Final = 15.0
_ANSWER_S: Final = 5.0
_POLL_S: Final = 0.1


class Names(NamedTuple):
    """What the demo calls its things in Kafka."""

    topic: str
    group: str
    """The group that mirrors the Spark job."""
    busy_group: str
    """The group that has a live member."""

    @classmethod
    def plain(cls) -> Names:
        """For a Kafka of the demo's own."""
        return cls("orders", "orders-etl", "orders-app")

    @classmethod
    def unique(cls) -> Names:
        """For somebody's Kafka, where they must not meet anything."""
        suffix = f"offsetmgr-demo-{uuid.uuid4().hex[:8]}"
        return cls(*(f"{name}-{suffix}" for name in cls.plain()))


@dataclass(frozen=True)
class Stage:
    """Everything a step needs."""

    screen: Screen
    folder: Path
    """Logs, checkpoints and what the Spark job writes."""
    brokers: str
    names: Names
    orders: int
    partitions: int
    service_url: str
    client: OffsetClient
    """Reads the groups, through the sidecar."""
    sales: Sales
    """What the orders add up to."""

    def committed(self, group: str) -> dict[int, int]:
        """What the group has committed, partition → offset, straight from its coordinator."""
        found = self.client.committed(group)
        return {
            place.partition: entry.offset
            for place, entry in found.items()
            if place.topic == self.names.topic
        }

    def ends(self) -> dict[int, int]:
        """Where the topic ends, partition → high watermark."""
        ranges = self.client.topics([self.names.topic])[self.names.topic]
        return {partition: each.high_watermark for partition, each in ranges.items()}


def check_kafka(brokers: str) -> None:
    """Raise DemoError where no Kafka answers."""
    try:
        _admin(brokers).list_topics(timeout=_ANSWER_S)
    except KafkaException as error:
        message = f"no Kafka answers on {brokers} ({_reason(error)}): check the address"
        raise DemoError(message) from error


def create_topic(brokers: str, topic: str, partitions: int) -> None:
    """Create a topic and wait until all of it can be written to.  Raises DemoError."""
    admin = _admin(brokers)
    try:
        made = NewTopic(topic, num_partitions=partitions)
        admin.create_topics([made], request_timeout=_REQUEST_S)[topic].result(_REQUEST_S)
        deadline = time.monotonic() + _REQUEST_S
        while time.monotonic() < deadline:
            seen = admin.list_topics(topic, timeout=_REQUEST_S).topics[topic].partitions
            if len(seen) == partitions and all(each.leader >= 0 for each in seen.values()):
                return
            time.sleep(_POLL_S)
    except (KafkaException, TimeoutError) as error:
        message = (
            f"topic {topic} could not be created on {brokers}: {_reason(error)}; check that Kafka "
            "answers there and lets this user create topics"
        )
        raise DemoError(message) from error
    message = f"topic {topic} has no leader for every partition after {_REQUEST_S:.0f} s"
    raise DemoError(message)


def delete_from(brokers: str, names: Names) -> list[str]:
    """Delete the demo's topic and groups; return what is left and why, in words."""
    admin = _admin(brokers)
    asked = {
        f"topic {names.topic}": admin.delete_topics([names.topic])[names.topic],
        **{
            f"group {group}": answer
            for group, answer in admin.delete_consumer_groups(
                [names.group, names.busy_group], request_timeout=_REQUEST_S
            ).items()
        },
    }
    left = []
    for what, answer in asked.items():
        try:
            answer.result(_REQUEST_S)
        except (KafkaException, TimeoutError) as error:
            if not _is_missing(error):
                left.append(f"{what}: {_reason(error)}")
    return left


def _admin(brokers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": brokers, "log_level": 0})


def _reason(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"


def _is_missing(error: Exception) -> bool:
    return isinstance(error, KafkaException) and error.args[0].name() in {
        "GROUP_ID_NOT_FOUND",
        "UNKNOWN_TOPIC_OR_PART",
    }
