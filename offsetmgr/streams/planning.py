"""The query of a processor, from the topics that it reads to all that it writes.

::

    tables (joins; the group's own until it is recovered) ─┐
                                                           ├─► rows by bucket ─► callbacks ─► Kafka
    streams (inputs, loop), so many messages at once ──────┘
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import starting_offsets
from offsetmgr.spark.files import java_text
from offsetmgr.spark.starting import check_missing, spark_json
from offsetmgr.streams import buckets
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.layout import STREAMS, TABLES, LayoutFiles, Start
from offsetmgr.streams.messages import MAX_BYTES, VISIT_HEADER
from offsetmgr.streams.topics import TopicSettings, prepare_topics
from offsetmgr.types import TopicPartition, check_count, check_flag, check_timeout, check_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from offsetmgr.answers import TopicLog
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.checkpoint import Checkpoint
    from offsetmgr.spark.starting import Missing
    from offsetmgr.streams.engine import Engine, NilHandling
    from offsetmgr.streams.topics import TopicManager

_READS_STATE: Final = 4
"""The first version of Spark that reads the state of a query."""
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

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
        for name in ("bucket_bytes", "max_offsets_per_trigger"):
            check_count(getattr(self, name), name)
        for name in ("buckets", "parallelism"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        for name in ("default_headers", "lookup_views", "kafka_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidValueError(name, getattr(self, name), "is not a mapping", "give one")
        check_flag(self.record_ids, "record_ids")
        for name in ("trigger_interval_s", "defer_timeout_s"):
            check_timeout(getattr(self, name), name)
        check_missing(self.missing)
        if self.dead_letters is not None:
            check_topic(self.dead_letters, "dead_letters")


class Query:
    """The query of one start of a processor."""

    def __init__(
        self,
        spark: SparkSession,
        engine: Engine,
        settings: ProcessorSettings,
        topics: TopicManager,
        kafka: Mapping[str, Any],
        options: Mapping[str, str],
        checkpoint: Checkpoint,
        offsets: Offsets | None,
    ) -> None:
        """Check and create topics, adapt the checkpoint, and plan the query.

        ``kafka`` has librdkafka's settings, ``options`` are those of Spark's Kafka source and sink.
        Raises TopicsError, ProcessorError, and what `starting_offsets` raises.
        """
        self._spark = spark
        self._graph = graph = engine.graph
        self._settings = settings
        self._manager = topics
        self._options = options
        self._offsets = offsets
        partitions = prepare_topics(topics, graph, settings.dead_letters)
        streams = graph.consumed
        self.topics = {*streams, *graph.joins, graph.table} - {""}
        """Those that are read, and the table."""
        logs = topics.logs(self.topics)
        positions = partial(self._starts, logs=logs)
        restore = partial(self._restore, checkpoint.location, partitions.get(graph.table, 0))
        accepts_loss = options.get("failOnDataLoss", "").lower() == "false"
        start = Start(graph, logs, settings.buckets, positions, restore, accepts_loss)
        files = LayoutFiles(checkpoint)
        isolated = options.get("kafka.isolation.level") != "read_uncommitted"
        if files.is_new and graph.table and isolated:
            self._await_transactions(logs[graph.table])
        self.layout = layout = files.prepare(start)
        engine.limits = self._limits()
        tables = layout.topics.get(TABLES, ())
        self.plan = buckets.Plan(
            engine=engine,
            buckets=layout.buckets,
            sources=[
                *(buckets.Source("join" if t in graph.joins else "table", t) for t in tables),
                *(buckets.Source("stream", topic) for topic in streams),
            ],
            joins={topic: layout.join_name(topic) for topic in graph.joins},
            targets=self._targets(),
            partitions=partitions,
            # They travel with each task, passwords and callbacks included.
            lookup_kafka=kafka if graph.lookups else {},
            lookup_views=settings.lookup_views,
            dead_letters=settings.dead_letters,
            record_ids=settings.record_ids,
            bucket_bytes=settings.bucket_bytes,
            defer_timeout_s=settings.defer_timeout_s,
        )
        # Spark takes them from its checkpoint if that has any.
        known = checkpoint.has_offsets(streams)
        self._first = "earliest" if known else spark_json(positions(streams))

    def frame(self) -> DataFrame:
        """Return the stream of all that the processor writes, in the columns of Spark's sink."""
        rows = self._rows()
        written = self._stateful(rows) if self.layout.stateful else self._stateless(rows)
        names = F.array(*map(F.lit, self.plan.targets)).cast("array<string>")
        topic = F.element_at(names, F.col("target") + 1).alias("topic")
        return written.select(topic, "key", "value", "partition", "headers")

    def _rows(self) -> DataFrame:
        topics = self.layout.topics
        limit = str(self._settings.max_offsets_per_trigger)
        streams = self._read(STREAMS, startingOffsets=self._first, maxOffsetsPerTrigger=limit)
        if TABLES not in topics:
            return streams
        # An option for the streams must not delay the rows of tables behind their messages.
        tables = self._read(TABLES, startingOffsets="earliest", minOffsetsPerTrigger="0")
        recovery = self.layout.recovery
        if recovery:
            # The group's own table as it was when the checkpoint was new.
            ends = [F.lit(recovery.get(number, 0)) for number in range(max(recovery) + 1)]
            before = F.col("offset") < F.get(F.array(*ends), F.col("partition"))
            tables = tables.where((F.col("source") > 0) | before)
        return streams.unionByName(tables)

    def _read(self, name: str, **options: str) -> DataFrame:
        topics = self.layout.topics[name]
        reader = self._spark.readStream.format("kafka").option("includeHeaders", "true")
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.options(**self._options).option("subscribe", ",".join(topics))
        first = len(self.plan.sources) - len(topics) if name == STREAMS else 0
        return (
            reader.options(**options)
            .load()
            .select(
                self._bucket(name).alias("bucket"),
                _index_of(topics, first).alias("source"),
                "partition",
                "offset",
                F.unix_millis("timestamp").alias("timestamp"),
                "key",
                "value",
                "headers",
            )
        )

    def _bucket(self, name: str) -> Column:
        """Return the bucket of a row's key; a row that asks for a visit comes once for each."""
        number = self.layout.buckets
        by_key = F.expr(f"pmod(hash(coalesce(key, X'')), {number})")
        if name != STREAMS or not self._graph.visitors:
            return by_key
        visit = F.expr(f"exists(headers, each -> each.key = '{VISIT_HEADER}')")
        visit &= F.col("topic") == self._graph.loop_topic
        every = F.sequence(F.lit(0), F.lit(number - 1))
        return F.explode(F.when(visit, every).otherwise(F.array(by_key)))

    def _stateless(self, rows: DataFrame) -> DataFrame:
        process = partial(buckets.process_stateless, self.plan)
        return rows.mapInPandas(process, buckets.OUTPUT_SCHEMA)

    def _stateful(self, rows: DataFrame) -> DataFrame:
        conf = self._spark.conf
        tasks = self._settings.parallelism or self._spark.sparkContext.defaultParallelism
        conf.set("spark.sql.shuffle.partitions", str(tasks))
        conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        rocksdb = "spark.sql.streaming.stateStore.rocksdb"
        conf.set(f"{rocksdb}.changelogCheckpointing.enabled", "true")
        return rows.groupBy("bucket").applyInPandasWithState(
            partial(buckets.process_bucket, self.plan),
            buckets.OUTPUT_SCHEMA, buckets.STATE_SCHEMA, "append", "NoTimeout",
        )  # fmt: skip

    def _await_transactions(self, log: TopicLog) -> None:
        """Wait until no transaction hides rows of the table.  Raises ProcessorError."""
        graph = self._graph
        for _ in Deadline(TRANSACTION_S).polls():
            now = self._manager.logs([graph.table])[graph.table].partitions
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

    def _restore(self, checkpoint: str, partitions: int) -> None:
        """Write all rows of the state in a checkpoint into the table.  Raises ProcessorError."""
        spark, topic = self._spark, self._graph.table
        if int(spark.version.split(".")[0]) < _READS_STATE:
            text = f"topic {topic} cannot be written from its checkpoint by Spark {spark.version}"
            raise ProcessorError(f"{text}: use Spark 4, or start with a new checkpoint")
        unpack = partial(buckets.table_rows, partitions)
        state = spark.read.format("statestore").load(checkpoint).select("value.groupState.rows")
        rows = state.mapInPandas(unpack, "key binary, value binary, partition int")
        try:
            rows.write.format("kafka").options(**self._options).option("topic", topic).save()
        except Exception as error:
            text = f"topic {topic} was not written from its checkpoint: {java_text(error)}"
            raise ProcessorError(f"{text}: start the processor again") from error

    def _targets(self) -> list[str]:
        graph = self._graph
        loop = graph.loop_topic if graph.loop_stream else ""
        written = [*graph.outputs, graph.table, loop, self._settings.dead_letters]
        return list(filter(None, written))

    def _limits(self) -> dict[str, int]:
        """Return the largest record of each topic that the processor writes, in bytes."""
        name = "kafka.max.request.size"
        text = self._options.get(name, str(MAX_BYTES))
        if not text.isdecimal():
            raise InvalidValueError(name, text, "is not a number of bytes", "give such as 2097152")
        request = int(text)
        limits = dict.fromkeys(self._targets(), request)
        if self._options.get("kafka.compression.type", "none") == "none":
            # Brokers measure compressed records.
            for topic, most in self._manager.max_bytes(limits).items():
                limits[topic] = min(request, most)
        reserved = buckets.ID_BYTES if self._settings.record_ids else 0
        return {topic: most - reserved for topic, most in limits.items()}

    def _starts(
        self, streams: Collection[str], logs: Mapping[str, TopicLog]
    ) -> dict[TopicPartition, int]:
        """Return the offsets to begin with: the group's, else those that the settings choose.

        The loop is read from its beginning where the group has none.  The ends are those of now, so
        that later messages are not missed.
        """
        missing, loop = self._settings.missing, self._graph.loop_topic
        inputs = [topic for topic in streams if topic != loop]
        known: dict[TopicPartition, int] = {}
        if self._offsets is not None:
            loops = [topic for topic in streams if topic == loop]
            known = self._committed(inputs, missing) | self._committed(loops, "earliest")
        elif inputs and missing == "error":
            fix = "give offsets=, from which the group begins, or 'earliest' or 'latest'"
            raise InvalidValueError("missing", missing, "leaves no place to begin", fix)
        elif inputs and isinstance(missing, datetime):
            known = self._manager.offsets_at(inputs, missing)
        starts: dict[TopicPartition, int] = {}
        for topic in streams:
            early = topic == loop or missing == "earliest"
            for number, log in logs[topic].partitions.items():
                end = log.last_stable_offset or 0
                starts[TopicPartition(topic, number)] = log.log_start_offset if early else end
        return starts | known

    def _committed(self, topics: list[str], missing: Missing) -> dict[TopicPartition, int]:
        """Return the committed offsets of topics, or those of the time ``missing``."""
        if not topics or self._offsets is None:
            return {}
        text = starting_offsets(self._offsets, self._graph.group, topics, missing)
        return {
            TopicPartition(topic, int(number)): offset
            for topic, offsets in json.loads(text).items()
            for number, offset in offsets.items()
            if offset >= 0
        }


def _index_of(topics: Sequence[str], first: int) -> Column:
    index = F.lit(None).cast("int")
    for number, topic in enumerate(topics, first):
        index = F.when(F.col("topic") == topic, number).otherwise(index)
    return index
