"""Queries of other sessions, of continuous triggers and of recreated topics, on a real Spark."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from offsetmgr.admin.spark_status import positions, status
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import commit_offsets, starting_offsets
from offsetmgr.spark import committer as committing
from offsetmgr.spark.checkpoint import Checkpoint
from tests.conftest import create_topic
from tests.spark.support import WAIT_S, Collected, Topic, numbers, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from offsetmgr.client import OffsetClient
    from tests.conftest import TopicFactory


@pytest.fixture
def single(topic: Topic, new_topic: TopicFactory) -> Topic:
    """A topic of one partition with ten records."""
    made = Topic(topic.kafka, new_topic(), 1)
    made.produce(10)
    return made


def copying(stream: DataFrame, topic: Topic, name: str, checkpoint: str) -> DataStreamWriter:
    """Return a writer of the records of ``stream`` to another topic of the same Kafka."""
    return (
        stream.select("value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", topic.kafka.bootstrap_servers)
        .option("topic", name)
        .option("checkpointLocation", checkpoint)
    )


def recreate(topic: Topic) -> None:
    """Delete the topic and create it again."""
    admin = AdminClient({"bootstrap.servers": topic.kafka.bootstrap_servers})
    admin.delete_topics([topic.name])[topic.name].result(WAIT_S)
    eventually(lambda: topic.name in admin.list_topics(timeout=WAIT_S).topics, expected=False)
    create_topic(topic.kafka, topic.name, topic.partitions)


def test_queries_of_other_sessions_are_reported_and_share_the_minimum(
    spark: SparkSession,
    client: OffsetClient,
    single: Topic,
    group: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session's listener hears of its own queries alone: a warning says how to commit others."""
    monkeypatch.setattr(committing, "LOOK_AROUND_S", 0.1)
    other = spark.newSession()
    with commit_offsets(spark, client, group=group):
        query = start(single.read(other, "earliest", 4), str(tmp_path / "slow"), name="slow")
        eventually(lambda: "query 'slow'" in caplog.text, expected=True)
        assert "call commit_offsets with that session and the same client" in caplog.text
        with commit_offsets(other, client, group=group):
            eventually(lambda: single.described(group), {0: 10})
            query.stop()
    assert caplog.text.count("as of another session") == 1


def test_a_continuous_query_is_committed_from_its_checkpoint(
    spark: SparkSession,
    client: OffsetClient,
    single: Topic,
    new_topic: TopicFactory,
    group: str,
    checkpoint: str,
) -> None:
    """It reports nothing to Spark's listeners; its finished epochs are in the checkpoint."""
    writer = copying(single.stream(spark), single, new_topic(), checkpoint)
    with commit_offsets(spark, client, group=group) as commits:
        query = writer.trigger(continuous="100 milliseconds").start()
        eventually(lambda: single.described(group), {0: 10})
        assert query.lastProgress is None
        single.produce(5, first=10)

        def read() -> int:
            finished = Checkpoint(checkpoint).last_finished()
            return 0 if finished is None else sum(finished.offsets.values())

        eventually(read, 15)
        result = commits.flush(query, WAIT_S)
        assert [value.offset for value in result.committed.values()] == [15]
        query.stop()
    assert single.described(group) == {0: 15}


@pytest.mark.parametrize("whole", [False, True], ids=["contains", "deprecated"])
def test_a_pattern_and_a_time_start_a_query_on_all_topics_that_spark_takes(
    spark: SparkSession,
    client: OffsetClient,
    single: Topic,
    group: str,
    *,
    whole: bool,
) -> None:
    """Spark fails on a partition more or less in its startingOffsets."""
    moment = datetime.fromtimestamp(int(time.time()) + 3_600, timezone.utc)
    single.produce(5, first=10, at=moment)
    create_topic(single.kafka, f"eu-{single.name}", 1)
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(setting, str(whole).lower())
    try:
        begin = starting_offsets(client, group, pattern=single.name, missing=moment)
        assert len(json.loads(begin)) == (1 if whole else 2)
        assert json.loads(begin)[single.name] == {"0": 10}
        frame = single.stream(spark, subscribePattern=single.name, startingOffsets=begin)
        query = frame.writeStream.format("noop").trigger(availableNow=True).start()
        assert query.awaitTermination(int(WAIT_S))
        assert query.lastProgress is not None
        assert query.lastProgress["numInputRows"] == 5
    finally:
        spark.conf.unset(setting)
    for wrong, problem in (("(", "Unclosed group"), (7, "compile")):
        with pytest.raises(InvalidValueError, match=rf"pattern .* cannot be read \(.*{problem}"):
            starting_offsets(client, group, pattern=wrong, spark=spark)  # type: ignore[arg-type]


def test_a_query_in_a_recreated_topic_takes_its_group_along(
    spark: SparkSession,
    client: OffsetClient,
    single: Topic,
    group: str,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With failOnDataLoss=false it goes on at the end of the new log, and reports lower offsets."""
    sink = Collected()
    frame = numbers(single.stream(spark, failOnDataLoss="false"))
    with commit_offsets(spark, client, group=group) as commits:
        query = start(frame, checkpoint, sink)
        eventually(lambda: single.described(group), {0: 10})
        recreate(single)
        single.produce(3, first=100)
        eventually(lambda: commits.counts.rewinds, 1)
        eventually(lambda: single.described(group), {0: 3})
        single.produce(2, first=103)
        eventually(lambda: sorted(sink.numbers)[-2:], [103, 104])
        eventually(lambda: single.described(group), {0: 5})
        query.stop()
    assert caplog.text.count("goes back within its run") == 1


def test_a_flush_refuses_offsets_of_a_topic_that_was_recreated(
    spark: SparkSession, client: OffsetClient, single: Topic, group: str, checkpoint: str
) -> None:
    """The query fails, and still reports where it was: the next run must not begin there."""
    with commit_offsets(spark, client, group=group) as commits:
        query = start(single.read(spark, "earliest"), checkpoint)
        eventually(lambda: single.described(group), {0: 10})
        recreate(single)
        single.produce(3, first=100)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(int(WAIT_S))
        result = commits.flush(query, WAIT_S)
        (left,) = result.uncommitted.values()
        assert left.offset.offset == 10
        # By the end of the log, or by the topic's id, whichever is known first.
        by_end = "beyond the end of the log, 3: the topic was deleted and recreated"
        by_id = "the topic was deleted and recreated; its id is "
        assert (by_end in str(left.error)) != (by_id in str(left.error))
        assert "start the query with a new checkpoint" in str(left.error)
        assert left.error.code == "TOPIC_RECREATED"
    begin = json.loads(starting_offsets(client, group, [single.name]))
    assert begin in ({single.name: {"0": -2}}, {single.name: {"0": 0}})


def test_a_checkpoint_of_asynchronous_progress_tracking_is_read(
    spark: SparkSession, single: Topic, new_topic: TopicFactory, checkpoint: str
) -> None:
    """Not every batch has its files; the newest finished one that has them counts."""
    stream = single.stream(spark, maxOffsetsPerTrigger=1)
    query = (
        copying(stream, single, new_topic(), checkpoint)
        .option("asyncProgressTrackingEnabled", "true")
        .option("asyncProgressTrackingCheckpointIntervalMs", "1000")
        .start()
    )
    query.processAllAvailable()
    files = Checkpoint(checkpoint)
    eventually(lambda: files.last_finished() is not None, expected=True)
    query.stop()
    finished = files.last_finished()
    assert finished is not None
    (row,) = status(positions(files), {}, {})
    assert row.finished == sum(finished.offsets.values())
