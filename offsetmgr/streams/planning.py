"""Plans the query of a processor: its topics, the layout of its checkpoint, its first offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import starting_offsets
from offsetmgr.spark.starting import check_missing, spark_json
from offsetmgr.streams import buckets
from offsetmgr.streams.errors import ProcessorError, TopicsError
from offsetmgr.streams.layout import TABLES, LayoutFiles, Start
from offsetmgr.streams.messages import MAX_BYTES
from offsetmgr.streams.query import Query, restore_table
from offsetmgr.streams.topics import TopicSettings, prepare_topics
from offsetmgr.types import TopicPartition, check_timeout, check_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import SparkSession

    from offsetmgr.answers import TopicLog
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.checkpoint import Checkpoint
    from offsetmgr.spark.starting import Missing
    from offsetmgr.streams.engine import Engine, NilHandling
    from offsetmgr.streams.topics import TopicManager


TRANSACTION_S: Final = 60.0
"""Longest wait for open transactions: Kafka's default of ``transaction.timeout.ms``."""


@dataclass(frozen=True)
class ProcessorSettings:
    """Settings of a processor; a new checkpoint is needed to change those that say so."""

    buckets: int | None = None
    """Buckets of the table's keys; None takes one for each 5,000 rows that its topic holds, 128 to
    4,096.  More make small batches dearer, fewer make a touched bucket dearer.  New checkpoint."""

    bucket_bytes: int = 64 * 1024 * 1024
    """Largest packed bucket; beyond it the processor fails and keeps nothing of the batch."""

    parallelism: int | None = None
    """Tasks of a batch; None takes the cluster's default parallelism.  New checkpoint."""

    max_offsets_per_trigger: int = 500_000
    """Messages of inputs and loop in a batch.  Tables are read whole in the first one."""

    trigger_interval_s: float = 0.0
    """Least time between the starts of two batches; 0 starts one as soon as there is data."""

    missing: Missing = "latest"
    """Start of an input where the group has committed nothing: an end of its log or a time;
    ``error`` refuses to start.  An input that is added later begins there too."""

    nil_handling: NilHandling = "ignore"
    default_headers: Mapping[str, bytes | None] = field(default_factory=dict)
    """Headers of every emit and loopback."""

    dead_letters: str | None = None
    """Topic for messages whose callback or codec fails; None stops the processor instead."""

    record_ids: bool = False
    """Add the header ``offsetmgr-id`` to emits: origin and number, the same when written again."""

    defer_timeout_s: float = 60.0
    """Longest wait of a batch for its deferred commits."""

    lookup_views: Mapping[str, str] = field(default_factory=dict)
    """Folders of views on the executors' hosts, by lookup table.  Where none runs, each Python
    worker reads the table into its memory."""

    topics: TopicSettings = field(default_factory=TopicSettings)
    """Settings of the loop and the table when they are created."""

    kafka_options: Mapping[str, str] = field(default_factory=dict)
    """More options of Spark's Kafka source and sink.  Brokers and security come from ``kafka``, and
    ``kafka.isolation.level`` is ``read_committed`` unless it is given here."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for what makes no sense."""
        for name in ("buckets", "parallelism", "bucket_bytes", "max_offsets_per_trigger"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidValueError(name, value, "is not possible", "give a number from 1 on")
        for name in ("trigger_interval_s", "defer_timeout_s"):
            check_timeout(getattr(self, name), name)
        check_missing(self.missing)
        if self.dead_letters is not None:
            check_topic(self.dead_letters, "dead_letters")


class QueryPlanner(NamedTuple):
    """Plans the queries of a processor."""

    spark: SparkSession
    engine: Engine
    settings: ProcessorSettings
    topics: TopicManager
    kafka: Mapping[str, Any]
    """librdkafka's settings."""
    options: Mapping[str, str]
    """Options of Spark's Kafka source and sink."""
    checkpoint: Checkpoint
    offsets: Offsets | None
    """The committed offsets of the group."""

    def query(self) -> Query:
        """Check and create topics, adapt the checkpoint, and return what makes the query.

        Raises TopicsError, ProcessorError, and what `starting_offsets` raises.
        """
        graph, settings = self.engine.graph, self.settings
        partitions = self._prepared()
        streams = graph.consumed
        logs = self.topics.logs({*streams, *graph.joins, graph.table} - {""})

        def positions(added: Collection[str]) -> dict[TopicPartition, int]:
            return self._starts(added, logs)

        def restore() -> None:
            number = partitions[graph.table]
            restore_table(self.spark, self.checkpoint.location, self.options, graph.table, number)

        accepts_loss = self.options.get("failOnDataLoss", "").lower() == "false"
        start = Start(graph, logs, settings.buckets, positions, restore, accepts_loss)
        files = LayoutFiles(self.checkpoint)
        isolated = self.options.get("kafka.isolation.level") != "read_uncommitted"
        if files.is_new and graph.table and isolated:
            self._await_transactions(logs[graph.table])
        layout = files.prepare(start)
        self.engine.limits = self._limits()
        plan = buckets.Plan(
            engine=self.engine,
            buckets=layout.buckets,
            sources=[
                *(
                    buckets.Source("join" if topic in graph.joins else "table", topic)
                    for topic in layout.topics.get(TABLES, ())
                ),
                *(buckets.Source("stream", topic) for topic in streams),
            ],
            joins={topic: layout.join_name(topic) for topic in graph.joins},
            targets=self._targets(),
            partitions=partitions,
            # They travel with each task, passwords and callbacks included.
            lookup_kafka=self.kafka if graph.lookup_tables else {},
            lookup_views=settings.lookup_views,
            dead_letters=settings.dead_letters,
            record_ids=settings.record_ids,
            bucket_bytes=settings.bucket_bytes,
            defer_timeout_s=settings.defer_timeout_s,
        )
        return Query(
            self.spark,
            layout,
            plan,
            self.options,
            # Spark takes them from its checkpoint if that has any.
            "earliest" if self.checkpoint.has_offsets() else spark_json(positions(streams)),
            settings.max_offsets_per_trigger,
            settings.parallelism or self.spark.sparkContext.defaultParallelism,
        )

    def _await_transactions(self, log: TopicLog) -> None:
        """Wait until no transaction hides rows of the table that is recovered up to its ends.

        Raises ProcessorError.
        """
        graph = self.engine.graph
        for _ in Deadline(TRANSACTION_S).polls():
            now = self.topics.logs([graph.table])[graph.table].partitions
            hidden = {
                number: stable
                for number, ends in log.partitions.items()
                if (stable := now[number].last_stable_offset or 0) < ends.high_watermark
            }
            if not hidden:
                return
        number, stable = min(hidden.items())
        raise ProcessorError(
            f"group {graph.group} cannot start: an open transaction hides the rows of "
            f"{graph.table}/{number} from offset {stable} on; abort it (kafka-transactions.sh), or "
            "start again once it has ended"
        )

    def _targets(self) -> list[str]:
        """Return the topics that the processor writes."""
        graph = self.engine.graph
        loop = graph.loop_topic if graph.loop_stream else ""
        written = [*graph.outputs, graph.table, loop, self.settings.dead_letters]
        return list(filter(None, written))

    def _prepared(self) -> dict[str, int]:
        """Check and create topics; return the number of partitions of each."""
        graph = self.engine.graph
        counts = prepare_topics(self.topics, graph)
        missing = [topic for topic in self._targets() if topic not in counts]
        found = self.topics.partitions(missing)
        for topic in missing:
            if topic not in found:
                text = f"group {graph.group} cannot start: topic {topic} does not exist"
                raise TopicsError(f"{text}: create it, as the partition of a key depends on it")
            counts[topic] = len(found[topic])
        return counts

    def _limits(self) -> dict[str, int]:
        """Return the largest record of each topic that the processor writes, in bytes."""
        request = int(self.options.get("kafka.max.request.size", MAX_BYTES))
        limits = dict.fromkeys(self._targets(), request)
        if self.options.get("kafka.compression.type", "none") == "none":
            # Brokers measure compressed records.
            for topic, most in self.topics.max_bytes(limits).items():
                limits[topic] = min(request, most)
        reserved = buckets.ID_BYTES if self.settings.record_ids else 0
        return {topic: most - reserved for topic, most in limits.items()}

    def _starts(
        self, streams: Collection[str], logs: Mapping[str, TopicLog]
    ) -> dict[TopicPartition, int]:
        """Return the offsets to begin with: the group's, else those that the settings choose.

        The loop is read from its beginning where the group has none.  The ends are those of now, so
        that later messages are not missed.
        """
        missing, loop = self.settings.missing, self.engine.graph.loop_topic
        inputs = [topic for topic in streams if topic != loop]
        known: dict[TopicPartition, int] = {}
        if self.offsets is not None:
            loops = [topic for topic in streams if topic == loop]
            known = self._committed(inputs, missing) | self._committed(loops, "earliest")
        elif inputs and missing == "error":
            fix = "give offsets=, from which the group begins, or 'earliest' or 'latest'"
            raise InvalidValueError("missing", missing, "leaves no place to begin", fix)
        elif inputs and isinstance(missing, datetime):
            known = self.topics.offsets_at(inputs, missing)
        starts: dict[TopicPartition, int] = {}
        for topic in streams:
            early = topic == loop or missing == "earliest"
            for number, log in logs[topic].partitions.items():
                end = log.last_stable_offset or 0
                starts[TopicPartition(topic, number)] = log.log_start_offset if early else end
        return starts | known

    def _committed(self, topics: list[str], missing: Missing) -> dict[TopicPartition, int]:
        """Return the committed offsets of topics, or those of the time ``missing``."""
        if not topics or self.offsets is None:
            return {}
        text = starting_offsets(self.offsets, self.engine.graph.group, topics, missing)
        return {
            TopicPartition(topic, int(number)): offset
            for topic, offsets in json.loads(text).items()
            for number, offset in offsets.items()
            if offset >= 0
        }
