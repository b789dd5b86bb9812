"""The topics of groups: inputs are checked, loops and tables created, tables copied."""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as NotAnsweredError
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka.admin import NewTopic

from offsetmgr.answers import Failure
from offsetmgr.codes import TIMED_OUT, error_info
from offsetmgr.deadlines import POLL_S, Deadline
from offsetmgr.errors import InvalidValueError, KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.clients import Closing
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import check_names
from offsetmgr.kafka.errors import does_not_exist, known, request_error
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.kafka.messages import headers_of
from offsetmgr.kafka.producer import MessageProducer
from offsetmgr.kafka.topics import create_topics, topic_logs
from offsetmgr.logs import SafeLogger
from offsetmgr.streams.errors import TopicsError
from offsetmgr.streams.graph import group_table
from offsetmgr.streams.messages import PARTITIONER
from offsetmgr.text import listed
from offsetmgr.types import (
    PartitionRange,
    TopicPartition,
    check_choice,
    check_count,
    check_instance,
    check_list,
    check_mapping,
    check_moment,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from confluent_kafka import Message

    from offsetmgr.answers import TopicLog, Written
    from offsetmgr.streams.graph import GroupGraph

Mismatch = Literal["ignore", "warn", "fail"]

_READ_KBYTES: Final = 64 * 1024
"""Most that a copy reads ahead, over all partitions."""
_SENT: Final = 10_000
"""Most messages of a copy that are on their way at once."""

log = SafeLogger("offsetmgr.streams")


@dataclass(frozen=True)
class TopicSettings:
    """Settings of the loop and the group table, and the reaction where they exist otherwise."""

    mismatch: Mismatch = "warn"
    replication: int | None = None
    """None is the brokers' ``default.replication.factor``."""
    table: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    """Settings of tables, by Kafka's names."""
    stream: Mapping[str, str] = field(
        default_factory=lambda: {"cleanup.policy": "delete", "retention.ms": "3600000"}
    )
    """Settings of the loop."""

    def __post_init__(self) -> None:
        check_choice(self.mismatch, "mismatch", get_args(Mismatch))
        if self.replication is not None:
            check_count(self.replication, "replication")
        check_mapping(self.table, "table")
        check_mapping(self.stream, "stream")


def prepare_topics(
    topics: TopicManager, graph: GroupGraph, dead_letters: str | None = None
) -> dict[str, int]:
    """Check the topics of ``graph``, create its loop and table, and count the partitions of all.

    Raises TopicsError with all that is wrong; KafkaRequestError.
    """
    written = {*graph.outputs, dead_letters or ""} - {""}
    names = {*graph.consumed, graph.table, *graph.joins, *graph.lookups, *written} - {""}
    found = topics.partitions(sorted(names))
    counts = {topic: len(numbers) for topic, numbers in found.items()}
    problems = []
    for edge in (*graph.copartitioned, *graph.lookup_tables):
        if edge.topic not in found:
            problems.append(f"topic {edge.topic} ({edge.kind}) does not exist: create it")
        elif found[edge.topic] != list(range(counts[edge.topic])):
            problems.append(f"topic {edge.topic} has a gap: its partitions are {found[edge.topic]}")
    # Brokers that create them would choose the number, on which the partition of a key depends.
    problems += [
        f"topic {topic}, which it writes, does not exist: create it"
        for topic in sorted(written - {*found})
    ]
    if problems:
        raise TopicsError(f"group {graph.group} cannot start: " + "; ".join(problems))
    # Only for new ones: a key's state is found by its hash, whatever these numbers are.
    most = max(counts[edge.topic] for edge in graph.copartitioned)
    if graph.loop_topic in graph.consumed:
        loop = graph.loop_topic
        counts[loop] = topics.ensure_stream(loop, counts.get(loop, most))
    if graph.table:
        counts[graph.table] = topics.ensure_table(graph.table, counts.get(graph.table, most))
    return counts


class TopicManager(Closing):
    """Creates and checks topics; thread-safe.  All methods wait, and raise KafkaRequestError."""

    def __init__(
        self,
        config: str | Mapping[str, object],
        settings: TopicSettings | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """``config`` is the bootstrap servers, or librdkafka's settings."""
        self.settings = TopicSettings() if settings is None else settings
        check_instance(self.settings, TopicSettings, "settings")
        self._reader = ClusterReader(config, timeout_s=timeout_s)

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partition numbers of those topics that exist, sorted."""
        answers = self._reader.partitions_of(topics)
        return {
            topic: known(found) for topic, found in answers.items() if not does_not_exist(found)
        }

    def ensure_table(self, topic: str, partitions: int) -> int:
        """Create a compacted topic unless it exists; count its partitions.  Raises TopicsError."""
        return self.ensure_topic(topic, partitions, self.settings.table)

    def ensure_stream(self, topic: str, partitions: int) -> int:
        """Create a topic with retention unless it exists; as ``ensure_table``."""
        return self.ensure_topic(topic, partitions, self.settings.stream)

    def ensure_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        """Create a topic with settings ``config`` unless it exists; as ``ensure_table``."""
        check_topic(topic)
        check_count(partitions, "partitions")
        check_names(check_mapping(config, "config"), "config")
        replicas = self._reader.replicas_of([topic])[topic]
        if does_not_exist(replicas):
            self._create(topic, partitions, config)
            return partitions
        held = self._reader.topic_settings([topic])[topic]
        counts = known(replicas).values()
        problems = []
        if len(counts) != partitions:
            problems.append(f"{len(counts)} partitions, not {partitions}")
        found, wanted = sorted({*counts}), self.settings.replication
        if wanted is not None and found != [wanted]:
            problems.append(f"replication {' and '.join(map(str, found))}, not {wanted}")
        if isinstance(held, OffsetManagerError):  # they take a right of their own
            problems.append(f"settings that cannot be compared ({held})")
        else:
            problems += [
                f"{name}={held.get(name)}, not {value}"
                for name, value in config.items()
                if held.get(name) != setting_text(value)
            ]
        if problems and self.settings.mismatch != "ignore":
            fix = "alter or delete the topic"
            if config.get("cleanup.policy") == "compact":
                fix = "alter it, or copy its rows into a new topic (offsetmgr streams copy-table)"
            text = f"topic {topic} has {'; '.join(problems)}: {fix}"
            if self.settings.mismatch == "fail":
                raise TopicsError(f"{text}, or set mismatch='warn'")
            log.warning(text)
        return len(counts)

    def logs(self, topics: Iterable[str]) -> dict[str, TopicLog]:
        """Return the ids, the ends and the last stable offsets of topics' logs."""
        # librdkafka ends the process for a name that is not UTF-8.
        names = sorted({check_topic(name) for name in check_list(topics, "topics", '["orders"]')})
        deadline = Deadline(self._reader.timeout_s)
        failed: dict[str, Failure] = {}
        for _ in deadline.polls():
            found = logs_of(self._reader, names, max(deadline.left_s, POLL_S))
            failed = {
                topic: failure
                for topic, log in found.items()
                for failure in (log.failure, *(ends.failure for ends in log.partitions.values()))
                if failure is not None
            }
            if not failed:
                return found
            if not all(failure.info.retriable for failure in failed.values()):
                break
        topic, failure = next(iter(failed.items()))
        raise request_error(f"log of {topic}", failure, topic=topic)

    def offsets_at(self, topics: Iterable[str], at: datetime) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time in each partition that has one."""
        at_ms = check_moment(at, "at")
        partitions = [
            TopicPartition(topic, number)
            for topic, numbers in self.partitions(topics).items()
            for number in numbers
        ]
        answers = self._reader.offsets_at(dict.fromkeys(partitions, at_ms))
        return {
            partition: offset
            for partition, answer in answers.items()
            if (offset := known(answer)) is not None
        }

    def max_bytes(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the largest batch that the brokers take of each topic, where they say so."""
        return {
            topic: int(settings["max.message.bytes"])
            for topic, settings in self._reader.topic_settings(topics).items()
            if not isinstance(settings, OffsetManagerError)
        }

    def close(self) -> None:
        self._reader.close()

    def _create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        timeout_s = self._reader.timeout_s
        texts = {name: setting_text(value) for name, value in config.items()}
        new = NewTopic(topic, partitions, self.settings.replication or -1, config=texts)
        try:
            create_topics(self._reader.admin, [new], timeout_s)
        except (ValueError, OverflowError) as error:  # confluent-kafka's, of a number
            fix = "correct its replication or the number of its partitions"
            raise InvalidValueError("topic", topic, f"cannot be created ({error})", fix) from None
        if not any(topic in self.partitions([topic]) for _ in Deadline(timeout_s).polls()):
            text = f"topic {topic} was created but is not listed after {timeout_s:g} s"
            raise TopicsError(f"{text}: check the brokers and start again")


class TableCopy(NamedTuple):
    """A copy that is planned or done."""

    source: str
    target: str
    source_partitions: int
    target_partitions: int
    messages: int
    """Offsets of the source before the copy, afterwards the messages that were copied."""


def plan_copy(
    kafka: Mapping[str, object], source: str, target: str, partitions: int | None
) -> TableCopy:
    """Return what a copy would do.  Raises TopicsError, InvalidValueError, KafkaRequestError."""
    with TopicManager(kafka) as topics:
        found = topics.partitions([source, target])
        if source not in found or source == target:
            raise TopicsError(f"topic {source} cannot be copied: name one that exists, and another")
        logs = {topic: log.partitions.values() for topic, log in topics.logs(found).items()}
    sizes = {
        topic: sum(ends.high_watermark - ends.log_start_offset for ends in log)
        for topic, log in logs.items()
    }
    if sizes.get(target):
        raise TopicsError(f"topic {target} has {sizes[target]} messages: name one that has none")
    for place, ends in enumerate(logs[source]):
        if (ends.last_stable_offset or 0) < ends.high_watermark:
            raise TopicsError(
                f"an open transaction hides the messages of {source}/{place} from offset "
                f"{ends.last_stable_offset} on: stop what writes the table, or abort it"
            )
    number = len(found[target]) if target in found else partitions
    if number is None:
        hint = "give the number of the target, which does not exist"
        raise InvalidValueError("partitions", None, "is missing", hint)
    return TableCopy(source, target, len(found[source]), number, sizes[source])


def copy_table(kafka: Mapping[str, object], plan: TableCopy, timeout_s: float) -> TableCopy:
    """Copy all messages, tombstones included, each to the partition of its key.

    Where a key is in two partitions, the copy has its messages in the order of their timestamps.
    A new target takes messages as large as the source does.
    Nothing else may write the source meanwhile.  Raises TopicsError, KafkaRequestError; then the
    target has a part of the messages: delete it.
    """
    with TopicManager(kafka, TopicSettings(mismatch="fail")) as topics:
        limits = topics.max_bytes([plan.source, plan.target])
        settings, limit = topics.settings.table, limits.get(plan.target, limits.get(plan.source))
        if limit is not None and plan.target not in limits:
            settings = {**settings, "max.message.bytes": str(limit)}
        topics.ensure_topic(plan.target, plan.target_partitions, settings)
    failures: list[KafkaRequestError] = []

    def delivered(answer: Written | KafkaRequestError) -> None:
        if isinstance(answer, KafkaRequestError):
            failures.append(answer)

    parts = [TopicPartition(plan.source, number) for number in range(plan.source_partitions)]
    reading = {"queued.max.messages.kbytes": max(1, _READ_KBYTES // len(parts)), **kafka}
    logs = [read_to_end(reading, {part: OFFSET_BEGINNING}, timeout_s) for part in parts]
    copying = {"queue.buffering.max.messages": _SENT, **kafka, "partitioner": PARTITIONER}
    producer = MessageProducer(copying, max_message_bytes=limit, name="copy-table")
    copied = 0
    try:
        for message in merge(*logs, key=_timestamp_ms):
            # The target's broker may refuse times of the future, whatever the source's did.
            at_ms = min(max(0, _timestamp_ms(message)), int(time.time() * 1_000))
            producer.send(
                plan.target, message.value(), message.key() or b"", delivered,
                headers=headers_of(message), timestamp_ms=at_ms, wait=True,
            )  # fmt: skip
            copied += 1
            if failures:
                break
    finally:
        producer.close()
    if failures:
        raise failures[0]
    return plan._replace(messages=copied)


def _timestamp_ms(message: Message) -> int:
    return message.timestamp()[1]


def setting_text(value: object) -> str:
    """Return a topic's setting as Kafka has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def logs_of(reader: ClusterReader, topics: list[str], wait_s: float) -> dict[str, TopicLog]:
    """Return ids, ends and last stable offsets, or failures.  Raises KafkaRequestError if late."""
    try:
        return topic_logs(reader.admin, topics, wait_s, reader.timeout_s, stable=True)
    except NotAnsweredError:
        raise request_error(f"logs of {listed(topics)}", Failure(error_info(TIMED_OUT))) from None


def tables_of(
    reader: ClusterReader, groups: Iterable[str], known: Mapping[str, dict[str, Any]] = {}
) -> dict[str, dict[str, Any]]:
    """Return the table of each of ``groups`` that has one: its topic, and messages by partition.

    One whose topic cannot be read now is as in ``known``, the tables of before.
    """
    topics = {group: group_table(group) for group in groups}
    found = reader.partitions_of(topics.values())
    tables = {topic: numbers for topic, numbers in found.items() if isinstance(numbers, list)}
    messages: dict[str, dict[int, int]] = {topic: {} for topic in tables}
    asked = [TopicPartition(topic, number) for topic in tables for number in tables[topic]]
    for (topic, number), log in reader.log_ranges(asked).items():
        if isinstance(log, PartitionRange):
            messages[topic][number] = log.high_watermark - log.log_start_offset
    unread = {
        topic
        for topic, error in found.items()
        if isinstance(error, OffsetManagerError) and not does_not_exist(error)
    }
    kept = {g: known[g] for g, topic in topics.items() if g in known and topic in unread}
    return kept | {
        group: {"topic": topic, "messages": messages[topic]}
        for group, topic in topics.items()
        if topic in tables
    }
