"""What can be scripted to happen to a request to the in-memory coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult, TopicLog, TopicNames
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

Operation = Literal["fetch", "commit", "topic_logs", "topic_names", "check"]
"""A request of the port, by its method's name."""

Reply: TypeAlias = (
    "FetchResult | CommitResult | Mapping[str, TopicLog] | TopicNames | Failure | None"
)
"""What a request of the port is answered with."""

TIMED_OUT: Final = -185
"""librdkafka's code of a request whose deadline passed before an answer came."""


@dataclass(frozen=True)
class Answer:
    """Answered properly, after ``latency_s`` seconds of its own (0: as the coordinator usually is).

    Where that is beyond the deadline the caller is told TIMED_OUT, and a commit lands late.
    """

    latency_s: float = 0.0


@dataclass(frozen=True)
class Refuse:
    """Answered with Kafka's ``code``: no effect on ``partitions`` (all where None).

    The partitions that are not named are dealt with properly, as Kafka does.
    """

    code: int
    partitions: Collection[TopicPartition] | None = None
    detail: str = ""


@dataclass(frozen=True)
class Unknown:
    """No clear answer: a commit did, did not, or will yet take effect.

    ``code`` is what the caller gets: TIMED_OUT at its deadline, any other after the usual
    latency.  ``lands_after_s`` is when a commit takes effect, in seconds after the broker had
    it; None for never.  A commit half applied names the ``partitions`` that take effect.
    """

    code: int = TIMED_OUT
    lands_after_s: float | None = 0.0
    partitions: Collection[TopicPartition] | None = None


Incident = Answer | Refuse | Unknown
"""What happens to one request."""


class Request(NamedTuple):
    """One request as the coordinator saw it."""

    number: int
    """1 for the first request of this coordinator."""
    operation: Operation
    group: str
    """Empty for requests that speak of no group."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    """What a commit carried; empty for other requests."""
    partitions: Collection[TopicPartition] | None
    """What a fetch or a commit named; None for all of the group's, and for other requests."""
    started_s: float
    ended_s: float | None
    """When it was answered, by the coordinator's clock; None while it is in flight."""
    answer: Reply
    """What it was answered with; None while it is in flight, and for a good check."""
