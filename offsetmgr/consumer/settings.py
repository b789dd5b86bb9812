"""Settings and figures of consumers, and what they make of librdkafka's settings."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_args

from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.config import guarded_callbacks
from offsetmgr.logs import SafeLogger
from offsetmgr.types import MAX_METADATA_CHARS, check_choice, check_timeout

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.types import TopicPartition

Kind = Literal["start", "ok", "error"]
Strategy = Literal["range", "roundrobin", "cooperative-sticky"]

UNREAD: Final = 100
"""Notifications and errors kept until they are read; the oldest are dropped."""

MOST_METADATA_CHARS: Final = MAX_METADATA_CHARS - 1
"""Longest metadata of a commit: confluent-kafka's consumer adds a NUL."""

REFRESH_S: Final = 30.0
"""Interval at which the topics are looked up.  librdkafka's own is 5 minutes, in which it does not
see added partitions, nor that a topic or its cluster has come back."""

_DEFAULTS: Final = {
    "topic.metadata.refresh.interval.ms": int(REFRESH_S * 1_000),
    # In its default of 1 s a fast consumer of small messages reads the whole queue and waits.
    "fetch.queue.backoff.ms": 50,
    # Else a batch that changed on a disk is handed out, or read again and again in silence.
    "check.crcs": True,
    # Errors are reported by the consumer; librdkafka would write each attempt to stderr.
    "log_level": 0,
}
"""Settings of librdkafka that the application's may replace."""

log = SafeLogger("offsetmgr.consumer")

_T = TypeVar("_T")


@dataclass(frozen=True)
class ConsumerSettings:
    """Settings of a group consumer.  All times are seconds."""

    strategy: Strategy = "cooperative-sticky"
    """Assignment of partitions to members; the same in all members of the group."""

    missing: Literal["earliest", "latest"] = "earliest"
    """First message of a partition where nothing is committed.  ``latest`` is where the logs end
    when the consumer is made; partitions that are added later, and retry topics, are read from
    their beginning."""

    commit_interval_s: float = 1.0
    """Marks and acks are committed this often, in one request."""

    recommit_interval_s: float = 86_400.0
    """Without membership, unchanged offsets are committed again this often: Kafka deletes those
    older than ``offsets.retention.minutes``."""

    dwell_s: float = 5.0
    """Time that the application has to process what it got of a partition that is released."""

    away_s: float = 0.5
    """After this time without a poll of the application the partitions are paused."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first bad setting."""
        check_choice(self.strategy, "strategy", get_args(Strategy))
        check_choice(self.missing, "missing", ("earliest", "latest"))
        for field in fields(self):
            if field.name.endswith("_s"):
                check_timeout(getattr(self, field.name), field.name)


class Notification(NamedTuple):
    """A step of a rebalance; partitions are lists by topic."""

    kind: Kind
    """``start`` before partitions are released, ``ok`` after partitions were claimed or released,
    ``error`` after partitions were lost without a release."""
    claimed: Mapping[str, Sequence[int]]
    released: Mapping[str, Sequence[int]]
    current: Mapping[str, Sequence[int]]


def drain(unread: deque[_T]) -> list[_T]:
    """Take all that is in ``unread``, while others add to it or take of it."""
    found: list[_T] = []
    count = len(unread)
    with suppress(IndexError):
        while len(found) < count:
            found.append(unread.popleft())
    return found


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


@dataclass
class ConsumerStats:
    """Figures of a consumer since it was made."""

    messages: int = 0
    """Messages read from Kafka."""
    bytes: int = 0
    """Size of their values."""
    skipped: int = 0
    """Records that were deleted, by retention or with their topic, before they were read."""
    rebalances: int = 0
    """Rebalances in which partitions were claimed, released or lost."""
    errors: int = 0
    """Errors that were reported, each cause once in 30 s."""


def kafka_settings(
    kafka: Mapping[str, Any], group: str, settings: ConsumerSettings
) -> dict[str, Any]:
    """Return the settings of a member's client.  Raises InvalidValueError."""
    ours = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Its position then includes markers of transactions and gaps behind the last message.
        "enable.partition.eof": True,
        "partition.assignment.strategy": settings.strategy,
        # What is out of range is reported here, and decided by us.
        "auto.offset.reset": "error",
        "group.protocol": "classic",
    }
    for name in sorted(each for each in ours if kafka.get(each, ours[each]) != ours[each]):
        hint = "leave it out: the group's name and ConsumerSettings say it"
        raise InvalidValueError("kafka", name, "is set by the consumer itself", hint)
    return {**_DEFAULTS, **kafka, **guarded_callbacks(kafka), **ours}
