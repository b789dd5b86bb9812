"""The query of a processor: from the topics that it reads to all that it writes.

::

    tables (joins; the group's own until it is recovered) ─┐
                                                           ├─► rows by bucket ─► callbacks ─► Kafka
    streams (inputs, loop), so many messages at once ──────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.streams import buckets
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.layout import STREAMS, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from offsetmgr.streams.layout import Layout

_READS_STATE: Final = 4
"""The first version of Spark that reads the state of a query."""
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Query(NamedTuple):
    """All that makes a query."""

    spark: SparkSession
    layout: Layout
    plan: buckets.Plan
    options: Mapping[str, str]
    """Of Spark's Kafka source and sink."""
    starts: str
    """The option ``startingOffsets`` of the streams."""
    max_offsets: int
    """Most messages of inputs and loop in a batch."""
    tasks: int
    """Tasks of a batch of a group with state."""

    @property
    def topics(self) -> set[str]:
        """The topics that are read, and the table."""
        table = self.plan.engine.graph.group_table
        read = {source.topic for source in self.plan.sources}
        return read if table is None else {*read, table.topic}

    def frame(self) -> DataFrame:
        """Return the stream of all that the processor writes, in the columns of Spark's sink."""
        rows = self._rows()
        written = self._stateful(rows) if self.layout.stateful else self._stateless(rows)
        names = F.array(*map(F.lit, self.plan.targets)).cast("array<string>")
        topic = F.element_at(names, F.col("target") + 1).alias("topic")
        return written.select(topic, "key", "value", "partition", "headers")

    def _rows(self) -> DataFrame:
        topics = self.layout.topics
        limit = str(self.max_offsets)
        streams = self._read(STREAMS, startingOffsets=self.starts, maxOffsetsPerTrigger=limit)
        if TABLES not in topics:
            return streams
        tables = self._read(TABLES, startingOffsets="earliest")
        recovery = self.layout.recovery
        if recovery:
            # The group's own table as it was when the checkpoint was new.
            ends = [F.lit(recovery.get(number, 0)) for number in range(max(recovery) + 1)]
            before = F.col("offset") < F.get(F.array(*ends), F.col("partition"))
            tables = tables.where((F.col("source") > 0) | before)
        return tables.unionByName(streams)

    def _read(self, name: str, **options: str) -> DataFrame:
        topics = self.layout.topics[name]
        reader = self.spark.readStream.format("kafka").option("includeHeaders", "true")
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.options(**self.options).option("subscribe", ",".join(topics))
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
        if name != STREAMS or not self.plan.engine.graph.visitors:
            return by_key
        visit = F.expr(f"exists(headers, each -> each.key = '{buckets.VISIT_HEADER}')")
        visit &= F.col("topic") == self.plan.engine.graph.loop_topic
        every = F.sequence(F.lit(0), F.lit(number - 1))
        return F.explode(F.when(visit, every).otherwise(F.array(by_key)))

    def _stateless(self, rows: DataFrame) -> DataFrame:
        plan = self.plan

        def process(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            return buckets.process_stateless(plan, frames)

        return rows.mapInPandas(process, buckets.OUTPUT_SCHEMA)

    def _stateful(self, rows: DataFrame) -> DataFrame:
        plan = self.plan

        def process(
            key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState
        ) -> Iterator[pd.DataFrame]:
            return buckets.process_bucket(plan, key[0], frames, state)

        conf = self.spark.conf
        conf.set("spark.sql.shuffle.partitions", str(self.tasks))
        conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        rocksdb = "spark.sql.streaming.stateStore.rocksdb"
        conf.set(f"{rocksdb}.changelogCheckpointing.enabled", "true")
        return rows.groupBy("bucket").applyInPandasWithState(
            process, buckets.OUTPUT_SCHEMA, buckets.STATE_SCHEMA, "append", "NoTimeout"
        )


def restore_table(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str], topic: str, partitions: int
) -> None:
    """Write all rows of the state in a checkpoint into a topic.  Raises ProcessorError."""
    if int(spark.version.split(".")[0]) < _READS_STATE:
        text = f"topic {topic} cannot be written from its checkpoint by Spark {spark.version}"
        raise ProcessorError(f"{text}: use Spark 4, or start with a new checkpoint")

    def unpack(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return buckets.table_rows(frames, partitions)

    state = spark.read.format("statestore").load(checkpoint).select("value.groupState.rows")
    rows = state.mapInPandas(unpack, "key binary, value binary, partition int")
    rows.write.format("kafka").options(**options).option("topic", topic).save()


def _index_of(topics: Sequence[str], first: int) -> Column:
    index = F.lit(None).cast("int")
    for number, topic in enumerate(topics, first):
        index = F.when(F.col("topic") == topic, number).otherwise(index)
    return index
