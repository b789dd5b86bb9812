"""Runs a group's graph as a query of Spark Structured Streaming.

One query reads inputs, loop, joined tables and, for recovery, the group's own table.  The rows of
a bucket of keys are processed in one Python call (``buckets``), and all that they write goes to
one Kafka sink.  State is exactly-once; what is written to Kafka is at-least-once, as a batch that
failed after it had written is written again.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException

from offsetmgr.errors import InvalidValueError, OffsetTimeoutError
from offsetmgr.logs import SafeLogger
from offsetmgr.spark import commit_offsets, starting_offsets
from offsetmgr.spark.checkpoint import open_checkpoint
from offsetmgr.streams import buckets
from offsetmgr.streams.engine import Engine, NilHandling
from offsetmgr.streams.errors import ProcessorError, TopicsError
from offsetmgr.streams.layout import TABLES, LayoutFiles, Start
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.messages import MAX_BYTES
from offsetmgr.streams.progress import ProcessorStats, State, state_of, stats_of
from offsetmgr.streams.query import Query, restore_table
from offsetmgr.streams.spark_options import spark_options
from offsetmgr.streams.topics import TopicManager, TopicSettings, prepare_topics
from offsetmgr.streams.visits import request_visit
from offsetmgr.types import TopicPartition, check_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.answers import TopicLog
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark import OffsetCommits
    from offsetmgr.spark.checkpoint import Checkpoint
    from offsetmgr.spark.starting import Missing
    from offsetmgr.streams.graph import GroupGraph
    from offsetmgr.streams.layout import Layout
    from offsetmgr.streams.view import View

_log = SafeLogger("offsetmgr.streams")

STALLED_S: Final = 120.0
"""A batch that takes longer is reported as stalled."""

_POLL_S: Final = 0.2
_LOOK_S: Final = 30.0
_STOP_S: Final = 10.0
_OURS: Final = re.compile(r"^offsetmgr\.[\w.]*Error: (.+)$", re.MULTILINE)


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
        timed = isinstance(self.missing, datetime) and self.missing.tzinfo is not None
        if not timed and self.missing not in ("earliest", "latest", "error"):
            fix = "give 'earliest', 'latest', 'error' or a datetime with a time zone"
            raise InvalidValueError("missing", self.missing, "is unknown", fix)
        if self.dead_letters is not None:
            check_topic(self.dead_letters, "dead_letters")


class Processor:
    """A group's processor in a Spark session, which has the Kafka connector.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings, of which Spark's
    clients get those for TLS and SASL.  ``checkpoint`` is the checkpointLocation of its query.
    With ``offsets`` (an OffsetClient, or LocalOffsets) the group's offsets are committed, so that
    lag tools see it, and a new checkpoint starts from them.

    Raises GraphError, InvalidValueError.
    """

    def __init__(
        self,
        spark: SparkSession,
        graph: GroupGraph,
        kafka: str | Mapping[str, Any],
        *,
        checkpoint: str,
        offsets: Offsets | None = None,
        settings: ProcessorSettings | None = None,
    ) -> None:
        self.graph = graph
        self.settings = settings or ProcessorSettings()
        self._engine = Engine(
            graph,
            nil_handling=self.settings.nil_handling,
            default_headers=self.settings.default_headers,
        )
        for table in self.settings.lookup_views:
            if table not in graph.lookups:
                fix = "add lookup() with it to the group"
                raise InvalidValueError("lookup_views", table, "is not a lookup table", fix)
        if not hasattr(spark, "_jvm"):
            fix = "give a session of the driver's own Spark"
            raise InvalidValueError("spark", spark, "is a session of Spark Connect", fix)
        self._kafka = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        self._options = spark_options(self._kafka, self.settings.kafka_options)
        self._checkpoint = checkpoint
        self._offsets = offsets
        # Settings of its own: other queries of the session keep theirs.
        self._spark = spark.newSession()
        self._layout: Layout | None = None
        self._query: StreamingQuery | None = None
        self._commits: OffsetCommits | None = None

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's query; None before `start`."""
        return self._query

    def start(self, *, available_now: bool = False) -> Self:
        """Check and create topics, and start the query.

        With ``available_now`` it ends once it has processed what its topics hold now; what it
        sends to its own loop meanwhile waits for the next start.

        Raises TopicsError; ProcessorError if the checkpoint cannot be used with this graph; and
        what `starting_offsets` raises.
        """
        if self._query is not None and self._query.isActive:
            return self
        with TopicManager(self._kafka, self.settings.topics) as topics:
            query = self._planned(topics)
        self._layout = query.layout
        writer = query.frame().writeStream.format("kafka").options(**self._options)
        writer = writer.queryName(self.graph.group).option("checkpointLocation", self._checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif self.settings.trigger_interval_s:
            writer = writer.trigger(processingTime=f"{self.settings.trigger_interval_s} seconds")
        if self._offsets is not None and self._commits is None:
            groups = dict.fromkeys(self._streams(), self.graph.group)
            self._commits = commit_offsets(
                self._spark, self._offsets, groups=groups, query_name=self.graph.group
            )
        self._query = writer.start()
        _log.info(
            "processor %s started: %d buckets, %d rows of its table to recover",
            self.graph.group, query.layout.buckets, sum(query.layout.recovery.values()),
        )  # fmt: skip
        return self

    def run(self, *, available_now: bool = False) -> None:
        """Start, and wait until another thread stops it.

        Raises ProcessorError where the query fails; the message says what failed and for which
        message.  Nothing of the failed batch is committed.
        """
        self.start(available_now=available_now)
        self.await_end()

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait for the query's end; return False if it still runs after ``timeout`` seconds.

        Raises ProcessorError where it failed.
        """
        query = self._running()
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
                wait_s: Any = max(0.001, min(left_s, _LOOK_S))  # PySpark takes a float, untyped
                if query.awaitTermination(wait_s):
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                if self.state == "stalled":
                    _log.error("%s", self._stalled())
        except StreamingQueryException as error:
            raise self._failure(error) from error

    def stop(self, timeout: float = _STOP_S) -> None:
        """Stop the query, and commit the group's offsets; harmless when repeated.

        A batch under way is ended, and processed again by the next start.
        """
        query, commits = self._query, self._commits
        if query is not None:
            query.stop()
        if commits is not None:
            self._commits = None
            if query is not None:
                commits.flush(query, timeout)
            commits.detach(timeout)

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Wait until the table is recovered and new messages are processed as they come.

        Raises ProcessorError where the query fails, OffsetTimeoutError.
        """
        deadline = time.monotonic() + timeout
        while self.state != "running":
            if self._failed() is not None or not self._running().isActive:
                self.await_end()
                return
            if time.monotonic() > deadline:
                text = f"processor {self.graph.group} was not ready within {timeout} s"
                raise OffsetTimeoutError(f"{text}: it is {self.state}")
            time.sleep(_POLL_S)

    def visit(self, name: str, meta: Any = None) -> None:
        """Ask for a call of the visitor ``name`` for each row, with ``meta`` as its value.

        ``meta`` is anything that JSON can hold.  Returns once Kafka has the request; the rows are
        visited by one of the next batches.  Raises InvalidValueError; ProcessorError if the
        processor does not run, or Kafka does not take the request: then no row is visited.
        """
        self._engine.check_visitor(name)
        if self._layout is None or not self._running().isActive:
            text = f"processor {self.graph.group} does not run: visit while it does, after start()"
            raise ProcessorError(text)
        topic, buckets = self.graph.loop_topic, self._layout.buckets
        request_visit(self._kafka, self.graph.group, topic, name, meta, buckets)

    def view(self, path: str | Path | None = None) -> View:
        """Return a view of the group's table in this process, not started: rows, ranges, stats.

        ``path`` is the folder of its store; without one it keeps the rows in memory.  Raises
        ProcessorError for a stateless group.
        """
        from offsetmgr.streams.view import View  # noqa: PLC0415 -- only where asked for

        table = self.graph.group_table
        if table is None:
            text = f"group {self.graph.group} is stateless and has no rows: add persist() to it"
            raise ProcessorError(text)
        storage = MemoryStorage() if path is None else None
        return View(self._kafka, table.topic, table.codec, path, storage=storage)

    @property
    def recovered(self) -> bool:
        """True if the table holds all that its topic held when the checkpoint was new."""
        files = self._files()
        if self._query is None or not self._reads_tables:
            return self._query is not None
        return files.last_begun() is not None and files.last_finished() is not None

    @property
    def state(self) -> State:
        """The processor's state now."""
        return state_of(self._query, self._files(), STALLED_S, recovering=self._reads_tables)

    def stats(self) -> ProcessorStats:
        """Return rates, lag and sizes after the last batch.

        Spark measures a batch as a whole; for each partition of the table, see `view`.
        """
        return stats_of(self._query, self.state, self._streams())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _reads_tables(self) -> bool:
        return self._layout is not None and TABLES in self._layout.topics

    def _planned(self, topics: TopicManager) -> Query:
        """Check and create topics, adapt the checkpoint, and return what makes the query."""
        graph, settings, files = self.graph, self.settings, self._files()
        partitions = self._prepared(topics)
        streams = self._streams()
        joins = [edge.topic for edge in graph.joint_tables]
        logs = topics.logs([*streams, *joins, *([graph.table_topic] if graph.group_table else [])])

        def positions(added: Collection[str]) -> dict[TopicPartition, int]:
            return self._starts(topics, added, logs)

        def restore() -> None:
            table = graph.table_topic
            number = partitions[table]
            restore_table(self._spark, self._checkpoint, self._options, table, number)

        start = Start(
            graph,
            streams,
            logs,
            settings.buckets,
            positions,
            restore,
            loss_is_accepted=self._options.get("failOnDataLoss", "").lower() == "false",
        )
        layout = LayoutFiles(files).prepare(start)
        # Spark takes them from its checkpoint if that has any.
        starts: dict[str, dict[int, int]] = {}
        for (topic, number), offset in ({} if files.has_offsets() else positions(streams)).items():
            starts.setdefault(topic, {})[number] = offset
        self._engine.limits = self._limits(topics)
        roles = {topic: buckets.Source("join", topic) for topic in joins}
        tables = layout.topics.get(TABLES, [])
        plan = buckets.Plan(
            engine=self._engine,
            buckets=layout.buckets,
            sources=[
                *(roles.get(topic, buckets.Source("table", topic)) for topic in tables),
                *(buckets.Source("stream", topic) for topic in streams),
            ],
            joins={topic: layout.join_name(topic) for topic in joins},
            targets=self._targets(),
            partitions=partitions,
            lookup_kafka=self._kafka,
            lookup_views=settings.lookup_views,
            dead_letters=settings.dead_letters,
            record_ids=settings.record_ids,
            bucket_bytes=settings.bucket_bytes,
            defer_timeout_s=settings.defer_timeout_s,
        )
        return Query(
            self._spark,
            layout,
            plan,
            self._options,
            json.dumps(starts) if starts else "earliest",
            settings.max_offsets_per_trigger,
            settings.parallelism or self._spark.sparkContext.defaultParallelism,
        )

    def _streams(self) -> list[str]:
        """Return the topics that the group consumes."""
        streams = [edge.topic for edge in self.graph.input_streams]
        if self.graph.loop_stream or self.graph.visitors:
            streams.append(self.graph.loop_topic)
        return streams

    def _targets(self) -> list[str]:
        """Return the topics that the processor writes."""
        graph = self.graph
        targets = [edge.topic for edge in graph.output_streams]
        targets += [graph.table_topic] if graph.group_table else []
        targets += [graph.loop_topic] if graph.loop_stream else []
        targets += [self.settings.dead_letters] if self.settings.dead_letters else []
        return targets

    def _prepared(self, topics: TopicManager) -> dict[str, int]:
        """Check and create topics; return the number of partitions of each."""
        graph = self.graph
        counts = prepare_topics(topics, graph)
        if graph.visitors and graph.loop_topic not in counts:
            number = max(counts[edge.topic] for edge in graph.copartitioned)
            counts[graph.loop_topic] = topics.ensure_stream(graph.loop_topic, number)
        missing = [topic for topic in self._targets() if topic not in counts]
        found = topics.partitions(missing)
        for topic in missing:
            if topic not in found:
                text = f"group {graph.group} cannot start: topic {topic} does not exist"
                raise TopicsError(f"{text}: create it, as the partition of a key depends on it")
            counts[topic] = len(found[topic])
        return counts

    def _limits(self, topics: TopicManager) -> dict[str, int]:
        """Return the largest record of each topic that the processor writes, in bytes."""
        request = int(self._options.get("kafka.max.request.size", MAX_BYTES))
        limits = dict.fromkeys(self._targets(), request)
        if self._options.get("kafka.compression.type", "none") == "none":
            # Brokers measure what is compressed.
            for topic, most in topics.max_bytes(limits).items():
                limits[topic] = min(request, most)
        reserved = buckets.ID_BYTES if self.settings.record_ids else 0
        return {topic: most - reserved for topic, most in limits.items()}

    def _starts(
        self, topics: TopicManager, streams: Collection[str], logs: Mapping[str, TopicLog]
    ) -> dict[TopicPartition, int]:
        """Return where to begin: with the loop at its beginning, with inputs as the settings say.

        The ends are those of now, so that nothing is missed that comes after `start`.
        """
        missing = self.settings.missing
        inputs = [topic for topic in streams if topic != self.graph.loop_topic]
        known: dict[TopicPartition, int] = {}
        if inputs and self._offsets is not None:
            text = starting_offsets(self._offsets, self.graph.group, inputs, missing)
            for topic, offsets in json.loads(text).items():
                known |= {TopicPartition(topic, int(n)): at for n, at in offsets.items() if at >= 0}
        elif inputs and missing == "error":
            fix = "give offsets=, from which the group begins, or 'earliest' or 'latest'"
            raise InvalidValueError("missing", missing, "leaves no place to begin", fix)
        elif inputs and isinstance(missing, datetime):
            known = topics.offsets_at(inputs, missing)
        starts: dict[TopicPartition, int] = {}
        for topic in streams:
            for number, log in logs[topic].partitions.items():
                early = topic == self.graph.loop_topic or missing == "earliest"
                end = log.last_stable_offset or 0
                partition = TopicPartition(topic, number)
                starts[partition] = log.log_start_offset if early else known.get(partition, end)
        return starts | known

    def _files(self) -> Checkpoint:
        return open_checkpoint(self._checkpoint, self._spark)

    def _running(self) -> StreamingQuery:
        if self._query is None:
            raise ProcessorError(f"processor {self.graph.group} is not started: call start()")
        return self._query

    def _stalled(self) -> str:
        return (
            f"processor {self.graph.group} has been at one batch for over {STALLED_S:.0f} s: look "
            "for a callback that waits (Spark's page shows the task), or lower "
            f"max_offsets_per_trigger={self.settings.max_offsets_per_trigger}"
        )

    def _failed(self) -> StreamingQueryException | None:
        return None if self._query is None else self._query.exception()

    def _failure(self, error: StreamingQueryException) -> ProcessorError:
        """Return the cause in one sentence where it is known, not Spark's pages of Java."""
        found = _OURS.findall(str(error))
        if found:
            return ProcessorError(found[-1])
        if "failOnDataLoss" in str(error):
            return ProcessorError(
                f"group {self.graph.group}: Kafka has no longer messages that come next, as a "
                "topic was deleted, recreated or cut: start the processor again, which reports "
                "what is missing"
            )
        return ProcessorError(str(error))
