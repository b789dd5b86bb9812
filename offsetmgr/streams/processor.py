"""Runs a group's graph as a query of Spark Structured Streaming.

One query reads inputs, loop, joined tables and, for recovery, the group's own table.  The rows of
a bucket of keys are processed in one Python call (``buckets``), and all that they write goes to
one Kafka sink.  State is exactly-once; what is written to Kafka is at-least-once, as a batch that
failed after it had written is written again.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.errors import InvalidValueError, KafkaRequestError, OffsetTimeoutError
from offsetmgr.kafka.producer import MessageProducer
from offsetmgr.spark import commit_offsets, starting_offsets
from offsetmgr.spark.checkpoint import open_checkpoint
from offsetmgr.spark.progress import read_offsets
from offsetmgr.streams import buckets
from offsetmgr.streams.engine import Engine, NilHandling
from offsetmgr.streams.errors import ProcessorError, TopicsError
from offsetmgr.streams.topics import TopicManager, TopicSettings, prepare_topics
from offsetmgr.types import TopicPartition, check_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.state import GroupState
    from typing_extensions import Self

    from offsetmgr.answers import Written
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark import OffsetCommits
    from offsetmgr.spark.starting import Missing
    from offsetmgr.streams.graph import GroupGraph
    from offsetmgr.types import PartitionRange

_log = logging.getLogger("offsetmgr.streams")

State = Literal["stopped", "initializing", "recovering", "running", "stalled", "failed"]

STALLED_S: Final = 120.0
"""A batch that takes longer is reported as stalled."""

KEYS_PER_BUCKET: Final = 5_000
MIN_BUCKETS: Final = 128
MAX_BUCKETS: Final = 4_096

_LAYOUT: Final = "offsetmgr"
"""Folder in the checkpoint that holds the ``_Layout``."""

_POLL_S: Final = 0.2
_LOOK_S: Final = 30.0
_STOP_S: Final = 10.0
_REQUEST_S: Final = 30.0
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
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
    """Start of an input where the group has committed nothing: an end of its log or a time."""

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
    """Options of Spark's Kafka source and sink, such as ``kafka.security.protocol``."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for what makes no sense."""
        for name in ("buckets", "parallelism", "bucket_bytes", "max_offsets_per_trigger"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidValueError(name, value, "is not possible", "give a number from 1 on")
        if self.dead_letters is not None:
            check_topic(self.dead_letters, "dead_letters")


class ProcessorStats(NamedTuple):
    """The state of a processor after its last batch."""

    state: State
    batch_id: int | None
    """None before the first batch."""
    rows: int
    """Messages of the last batch."""
    rows_per_s: float
    batch_s: float
    """Time that the last batch took."""
    read: Mapping[TopicPartition, int]
    """The next offset to read of each partition of inputs and loop."""
    lag: Mapping[TopicPartition, int]
    """Messages of inputs and loop that were not read when the batch began, per partition."""
    buckets: int
    """Buckets that hold rows."""
    state_bytes: int
    """Memory of Spark's state stores."""


class _Layout(NamedTuple):
    """Choices that stay the same as long as a checkpoint is used."""

    buckets: int
    recovery: Mapping[int, int]
    """Ends of the group table's partitions when the checkpoint was new; empty for an empty one."""


class Processor:
    """A group's processor in a Spark session, which has the Kafka connector.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings; Spark's own go into
    ``settings.kafka_options``.  ``checkpoint`` is the checkpointLocation of its query.  With
    ``offsets`` (an OffsetClient, or LocalOffsets) the group's offsets are committed, so that lag
    tools see it, and a new checkpoint starts from them.

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
            if table not in {edge.topic for edge in graph.lookup_tables}:
                fix = "add lookup() with it to the group"
                raise InvalidValueError("lookup_views", table, "is no lookup table", fix)
        self._kafka = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        self._checkpoint = checkpoint
        self._offsets = offsets
        # Settings of its own: other queries of the session keep theirs.
        self._spark = spark.newSession()
        self._layout: _Layout | None = None
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

        Raises TopicsError, and what `starting_offsets` raises.
        """
        if self._query is not None and self._query.isActive:
            return self
        with TopicManager(self._kafka, self.settings.topics) as topics:
            stored = topics.log_ranges(self.graph.table_topic) if self.graph.group_table else {}
            partitions = self._prepared(topics)
        layout = self._layout = self._layout_of(stored)
        frame = self._written(layout, partitions)
        writer = frame.writeStream.format("kafka").options(**self._spark_kafka())
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
            self.graph.group, layout.buckets, sum(layout.recovery.values()),
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
        visited by one of the next batches.  Raises InvalidValueError, ProcessorError.
        """
        if name not in {each.topic for each in self.graph.visitors}:
            fix = "add visitor() with it to the group"
            raise InvalidValueError("visitor", name, "is not defined", fix)
        if self._layout is None:
            raise ProcessorError(f"processor {self.graph.group} is not started: call start()")
        value = msgspec.json.encode(meta)
        headers = [(buckets.VISIT_HEADER, name.encode())]
        answers: list[Written | KafkaRequestError] = []
        producer = MessageProducer(self._kafka, name="visit")
        for bucket in range(self._layout.buckets):
            topic = self.graph.loop_topic
            producer.send(topic, value, str(bucket), answers.append, headers=headers, wait=True)
        producer.close(_REQUEST_S)
        failed = [answer for answer in answers if isinstance(answer, KafkaRequestError)]
        if failed or len(answers) < self._layout.buckets:
            why = failed[0] if failed else f"Kafka did not answer within {_REQUEST_S} s"
            raise ProcessorError(f"not every bucket is visited by {name}: {why}; visit again")

    @property
    def recovered(self) -> bool:
        """True if the table holds all that its topic held when the checkpoint was new."""
        if self._query is None or self._layout is None:
            return False
        if not self._layout.recovery and not self.graph.joint_tables:
            return True
        files = open_checkpoint(self._checkpoint, self._spark)
        return files.read("metadata") is not None and files.last_finished() is not None

    @property
    def state(self) -> State:
        """The processor's state now."""
        query = self._query
        if query is None:
            return "stopped"
        if not query.isActive:
            return "stopped" if self._failed() is None else "failed"
        status = query.status
        if status["message"].startswith("Initializing"):
            return "initializing"
        files = open_checkpoint(self._checkpoint, self._spark)
        begun = files.last_begun()
        finished = None if begun is None else files.last_finished()
        if begun is not None and begun.at_s is not None:
            late = time.time() - begun.at_s > STALLED_S
            if late and (finished is None or finished.batch_id < begun.batch_id):
                return "stalled"
        return "running" if self.recovered else "recovering"

    def stats(self) -> ProcessorStats:
        """Return rates, lag and sizes after the last batch."""
        progress = None if self._query is None else self._query.lastProgress
        if progress is None:
            return ProcessorStats(self.state, None, 0, 0.0, 0.0, {}, {}, 0, 0)
        report = json.loads(progress.json)
        read: dict[TopicPartition, int] = {}
        lag: dict[TopicPartition, int] = {}
        streams = self._streams()
        for source in report["sources"]:
            newest = _positions(source.get("latestOffset"))
            for partition, end in _positions(source.get("endOffset")).items():
                if partition.topic in streams:
                    read[partition] = end
                    lag[partition] = max(0, newest.get(partition, end) - end)
        stores = report.get("stateOperators", [])
        return ProcessorStats(
            self.state,
            report["batchId"],
            report["numInputRows"],
            report.get("processedRowsPerSecond", 0.0),
            report["durationMs"].get("triggerExecution", 0) / 1_000,
            read,
            lag,
            sum(each["numRowsTotal"] for each in stores),
            sum(each["memoryUsedBytes"] for each in stores),
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        number = counts[graph.input_streams[0].topic]
        if graph.visitors:
            counts[graph.loop_topic] = topics.ensure_stream(graph.loop_topic, number)
        missing = [topic for topic in self._targets() if topic not in counts]
        found = topics.partitions(missing)
        for topic in missing:
            if topic not in found:
                text = f"group {graph.group} cannot start: topic {topic} does not exist"
                raise TopicsError(f"{text}: create it, as the partition of a key depends on it")
            counts[topic] = len(found[topic])
        for topic in (graph.table_topic, graph.loop_topic):
            if counts.get(topic, number) != number:
                raise TopicsError(
                    f"group {graph.group} cannot start: {topic} has {counts[topic]} partitions, "
                    f"its inputs {number}: delete {topic}, or give the group another name"
                )
        return counts

    def _spark_kafka(self) -> dict[str, str]:
        servers = str(self._kafka["bootstrap.servers"])
        return {"kafka.bootstrap.servers": servers, **self.settings.kafka_options}

    def _layout_of(self, table: Mapping[int, PartitionRange]) -> _Layout:
        """Return the checkpoint's layout; choose and keep one where it is new."""
        files = open_checkpoint(self._checkpoint, self._spark)
        wanted = self.settings.buckets
        for name in files.names(_LAYOUT):
            if name.startswith("part-"):
                known = json.loads(files.read(f"{_LAYOUT}/{name}") or "{}")
                if wanted not in {None, known["buckets"]}:
                    fix = f"give {known['buckets']} or none, or start with a new checkpoint"
                    problem = "is not that of the checkpoint"
                    raise InvalidValueError("buckets", wanted, problem, fix)
                recovery = {int(number): end for number, end in known["recovery"].items()}
                return _Layout(known["buckets"], recovery)
        rows = sum(log.high_watermark - log.log_start_offset for log in table.values())
        recovery = {number: log.high_watermark for number, log in table.items()}
        chosen = wanted or min(max(rows // KEYS_PER_BUCKET, MIN_BUCKETS), MAX_BUCKETS)
        layout = _Layout(chosen, recovery if rows else {})
        text = json.dumps({"buckets": layout.buckets, "recovery": layout.recovery})
        frame = self._spark.createDataFrame([(text,)], "value string").coalesce(1)
        frame.write.mode("overwrite").text(f"{self._checkpoint}/{_LAYOUT}")
        return layout

    def _written(self, layout: _Layout, partitions: Mapping[str, int]) -> DataFrame:
        """Return the stream of all that the processor writes."""
        graph, settings = self.graph, self.settings
        tables = [edge.topic for edge in graph.joint_tables]
        if layout.recovery:
            tables.insert(0, graph.table_topic)
        streams = self._streams()
        plan = buckets.Plan(
            engine=self._engine,
            buckets=layout.buckets,
            sources=[*tables, *streams],
            targets=self._targets(),
            partitions=partitions,
            lookup_kafka=self._kafka,
            lookup_views=settings.lookup_views,
            dead_letters=settings.dead_letters,
            record_ids=settings.record_ids,
            bucket_bytes=settings.bucket_bytes,
            defer_timeout_s=settings.defer_timeout_s,
        )
        frame = self._stream_source(streams)
        if tables:
            frame = self._table_source(tables, layout).unionByName(frame)
        rows = frame.select(
            self._bucket(layout).alias("bucket"),
            _index_of(plan.sources).alias("source"),
            "partition",
            "offset",
            F.unix_millis("timestamp").alias("timestamp"),
            "key",
            "value",
            "headers",
        )
        written = self._processed(plan, rows)
        names = F.array(*map(F.lit, plan.targets))
        topic = F.element_at(names, F.col("target") + 1).alias("topic")
        return written.select(topic, "key", "value", "partition", "headers")

    def _processed(self, plan: buckets.Plan, rows: DataFrame) -> DataFrame:
        if self.graph.group_table is None and not self.graph.joint_tables:

            def stateless(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
                return buckets.process_stateless(plan, frames)

            return rows.mapInPandas(stateless, buckets.OUTPUT_SCHEMA)

        def stateful(
            key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState
        ) -> Iterator[pd.DataFrame]:
            yield buckets.process_bucket(plan, key[0], frames, state)

        conf = self._spark.conf
        tasks = self.settings.parallelism or self._spark.sparkContext.defaultParallelism
        conf.set("spark.sql.shuffle.partitions", str(tasks))
        conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        rocksdb = "spark.sql.streaming.stateStore.rocksdb"
        conf.set(f"{rocksdb}.changelogCheckpointing.enabled", "true")
        return rows.groupBy("bucket").applyInPandasWithState(
            stateful, buckets.OUTPUT_SCHEMA, buckets.STATE_SCHEMA, "append", "NoTimeout"
        )

    def _source(self, topics: Sequence[str], **options: str) -> DataFrame:
        reader = self._spark.readStream.format("kafka").options(**self._spark_kafka())
        reader = reader.option("subscribe", ",".join(topics)).option("includeHeaders", "true")
        return reader.options(**options).load()

    def _stream_source(self, topics: Sequence[str]) -> DataFrame:
        start = "latest" if self.settings.missing == "latest" else "earliest"
        if self._offsets is not None:
            start = starting_offsets(
                self._offsets,
                self.graph.group,
                topics,
                self.settings.missing,
                checkpoint=self._checkpoint,
                spark=self._spark,
            )
        limit = str(self.settings.max_offsets_per_trigger)
        return self._source(topics, startingOffsets=start, maxOffsetsPerTrigger=limit)

    def _table_source(self, topics: Sequence[str], layout: _Layout) -> DataFrame:
        """Return joined tables, and the group's own as it was when the checkpoint was new."""
        frame = self._source(topics, startingOffsets="earliest")
        if not layout.recovery:
            return frame
        count = max(layout.recovery) + 1
        ends = F.array(*(F.lit(layout.recovery.get(number, 0)) for number in range(count)))
        before = F.col("offset") < F.element_at(ends, F.col("partition") + 1)
        return frame.where((F.col("topic") != self.graph.table_topic) | before)

    def _bucket(self, layout: _Layout) -> Column:
        by_key = F.expr(f"pmod(hash(coalesce(key, X'')), {layout.buckets})")
        if not self.graph.visitors:
            return by_key
        visit = F.expr(f"exists(headers, each -> each.key = '{buckets.VISIT_HEADER}')")
        in_loop = F.col("topic") == self.graph.loop_topic
        return F.when(in_loop & visit, F.col("key").cast("string").cast("int")).otherwise(by_key)

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
        """Return the cause in Python where there is one, not Spark's pages of Java."""
        found = _OURS.findall(str(error))
        return ProcessorError(found[-1] if found else str(error))


def _index_of(topics: Sequence[str]) -> Column:
    index = F.lit(None).cast("int")
    for number, topic in enumerate(topics):
        index = F.when(F.col("topic") == topic, number).otherwise(index)
    return index


def _positions(value: object) -> dict[TopicPartition, int]:
    if not value or value == "null":
        return {}
    return read_offsets(value if isinstance(value, str) else json.dumps(value))
