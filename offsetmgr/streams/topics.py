"""The topics of a group before its processor starts: inputs are checked, loop and table created."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from confluent_kafka.admin import NewTopic

from offsetmgr.codes import UNKNOWN_TOPIC
from offsetmgr.errors import InvalidValueError, KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import known
from offsetmgr.kafka.topics import create_topics
from offsetmgr.streams.errors import TopicsError
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from offsetmgr.streams.graph import GroupGraph
    from offsetmgr.types import PartitionRange

_PAUSE_S: Final = 0.1

log = logging.getLogger("offsetmgr.streams")


@dataclass(frozen=True)
class TopicSettings:
    """Settings of the loop and the group table, and the reaction where they exist otherwise."""

    create: bool = True
    mismatch: Literal["ignore", "warn", "fail"] = "warn"
    replication: int | None = None
    """None is the brokers' ``default.replication.factor``."""
    table: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    """Settings of tables, by Kafka's names."""
    stream: Mapping[str, str] = field(
        default_factory=lambda: {"cleanup.policy": "delete", "retention.ms": "3600000"}
    )
    """Settings of the loop."""

    def __post_init__(self) -> None:
        if self.mismatch not in {"ignore", "warn", "fail"}:
            fix = "give 'ignore', 'warn' or 'fail'"
            raise InvalidValueError("mismatch", self.mismatch, "is unknown", fix)


class Topics(Protocol):
    """The part of a cluster that ``prepare_topics`` needs."""

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partition numbers of those that exist."""

    def ensure_table(self, topic: str, partitions: int) -> int:
        """Create a table unless it exists; return the number of its partitions."""

    def ensure_stream(self, topic: str, partitions: int) -> int:
        """Create a stream unless it exists; return the number of its partitions."""


def prepare_topics(topics: Topics, graph: GroupGraph) -> dict[str, int]:
    """Check the topics that ``graph`` reads, create its loop and table, and count partitions.

    Returns the number of partitions of every topic of the graph, but of outputs that do not exist.
    Raises TopicsError with all that is wrong; KafkaRequestError.
    """
    names = {
        edge.topic for edge in graph.copartitioned + graph.lookup_tables + graph.output_streams
    }
    found = topics.partitions(sorted(names))
    counts = {topic: len(numbers) for topic, numbers in found.items()}
    copartitioned = sorted({edge.topic for edge in graph.copartitioned})
    problems = []
    for edge in (*graph.copartitioned, *graph.lookup_tables):
        if edge.topic not in found:
            problems.append(f"topic {edge.topic} ({edge.kind}) does not exist: create it")
        elif found[edge.topic] != list(range(counts[edge.topic])):
            problems.append(f"topic {edge.topic} has a gap: its partitions are {found[edge.topic]}")
    if len({counts[topic] for topic in copartitioned if topic in counts}) > 1:
        several = ", ".join(
            f"{topic} has {counts[topic]}" for topic in copartitioned if topic in counts
        )
        problems.append(
            f"inputs and joins are not co-partitioned: {several}; give them one number of "
            "partitions, by copying those of another number into new topics"
        )
    if problems:
        raise TopicsError(f"group {graph.group} cannot start: " + "; ".join(problems))
    partitions = counts[copartitioned[0]]
    if graph.loop_stream is not None:
        counts[graph.loop_topic] = topics.ensure_stream(graph.loop_topic, partitions)
    if graph.group_table is not None:
        counts[graph.table_topic] = topics.ensure_table(graph.table_topic, partitions)
    return counts


class TopicManager:
    """Creates and checks topics of a cluster.  Thread-safe; every method waits for Kafka.

    All raise KafkaRequestError where Kafka refuses or does not answer.
    """

    def __init__(
        self,
        config: str | Mapping[str, object],
        settings: TopicSettings | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """``config`` is the bootstrap servers, or librdkafka's settings."""
        self.settings = settings or TopicSettings()
        self._reader = ClusterReader(config, timeout_s=timeout_s)

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partition numbers of those topics that exist, sorted."""
        found: dict[str, list[int]] = {}
        for topic, answer in self._reader.partitions_of(topics).items():
            if isinstance(answer, list):
                found[topic] = answer
            elif not (isinstance(answer, KafkaRequestError) and answer.info.code == UNKNOWN_TOPIC):
                raise answer
        return found

    def ensure_table(self, topic: str, partitions: int) -> int:
        """Create a compacted topic unless it exists; return the number of its partitions.

        Raises TopicsError where ``settings`` forbid to create it, or demand what it is not.
        """
        return self.ensure_topic(topic, partitions, self.settings.table)

    def ensure_stream(self, topic: str, partitions: int) -> int:
        """Create a topic with retention unless it exists; as ``ensure_table``."""
        return self.ensure_topic(topic, partitions, self.settings.stream)

    def ensure_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        """Create a topic with settings ``config`` unless it exists; as ``ensure_table``."""
        existing = self.partitions([topic])
        if topic not in existing:
            if not self.settings.create:
                raise TopicsError(
                    f"topic {topic} does not exist, and the settings say create=False: create it "
                    f"with {partitions} partitions and {_shown(config)}"
                )
            self._create(topic, partitions, config)
            return partitions
        actual = len(existing[topic])
        problems = [] if actual == partitions else [f"{actual} partitions, not {partitions}"]
        held = known(self._reader.topic_settings([topic])[topic])
        problems += [
            f"{name}={held.get(name)}, not {value}"
            for name, value in config.items()
            if held.get(name) != value
        ]
        if problems:
            self._mismatch(f"topic {topic} has {'; '.join(problems)}: alter or delete the topic")
        return actual

    def log_ranges(self, topic: str) -> dict[int, PartitionRange]:
        """Return the range of each partition's log; none where the topic does not exist."""
        numbers = self.partitions([topic]).get(topic, [])
        ranges = {}
        asked = (TopicPartition(topic, number) for number in numbers)
        for where, found in self._reader.log_ranges(asked).items():
            if isinstance(found, OffsetManagerError):
                raise found
            ranges[where.partition] = found
        return ranges

    def close(self) -> None:
        """End the connections."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        timeout_s = self._reader.timeout_s
        new = NewTopic(topic, partitions, self.settings.replication or -1, config=dict(config))
        create_topics(self._reader.admin, [new], timeout_s)
        deadline = time.monotonic() + timeout_s
        while topic not in self.partitions([topic]):
            if time.monotonic() > deadline:
                raise TopicsError(
                    f"topic {topic} was created but is not listed after {timeout_s:g} s: "
                    "check the brokers and start again"
                )
            time.sleep(_PAUSE_S)

    def _mismatch(self, text: str) -> None:
        if self.settings.mismatch == "fail":
            raise TopicsError(f"{text}, or set mismatch='warn'")
        if self.settings.mismatch == "warn":
            log.warning(text)


def _shown(config: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
