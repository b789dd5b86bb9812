"""Queries of other sessions, of continuous triggers and of recreated topics, on a real Spark."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from offsetmgr.admin.spark_status import positions, status
from offsetmgr.errors import InvalidValueError, OffsetTimeoutError
from offsetmgr.spark import commits as committed_by
from offsetmgr.spark import committer as committing
from offsetmgr.spark import starting_offsets
from offsetmgr.spark.checkpoint import Checkpoint
from tests.conftest import create_topic
from tests.spark.support import WAIT_S, Collected, Topic, numbers, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.conftest import TopicFactory
    from tests.spark.support import Job


@pytest.fixture
def single(job: Job, new_topic: TopicFactory) -> Job:
    """A query over a topic of one partition with ten records."""
    topic = Topic(job.topic.kafka, new_topic(), 1)
    topic.produce(10)
    return job._replace(topic=topic)


def copying(job: Job, name: str, **options: object) -> DataStreamWriter:
    """Return a writer of the job's records to another topic of the same Kafka."""
    return (
        job.topic.stream(job.spark, **options)
        .select("value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", job.topic.kafka.bootstrap_servers)
        .option("topic", name)
        .option("checkpointLocation", job.checkpoint)
    )


def recreate(topic: Topic) -> None:
    """Delete the topic and create it again."""
    admin = AdminClient({"bootstrap.servers": topic.kafka.bootstrap_servers})
    admin.delete_topics([topic.name])[topic.name].result(WAIT_S)
    eventually(lambda: topic.name in admin.list_topics(timeout=WAIT_S).topics, expected=False)
    create_topic(topic.kafka, topic.name, topic.partitions)


def test_queries_of_other_sessions_are_reported_and_share_the_minimum(
    single: Job,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session's listener hears of its own queries alone: a warning says how to commit others."""
    monkeypatch.setattr(committing, "LOOK_AROUND_S", 0.1)
    other = single._replace(spark=single.spark.newSession())
    with single.commits():
        query = start(other.read(4), str(tmp_path / "slow"), name="slow")
        eventually(lambda: "query 'slow'" in caplog.text, expected=True)
        assert "call commit_offsets with that session and the same client" in caplog.text
        with other.commits():
            eventually(single.described, {0: 10})
            query.stop()
    assert caplog.text.count("as it is of another session") == 1


def test_a_stopped_jvm_delays_no_flush_release_or_detach(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in a long pause of its garbage collection; what it reported before is committed."""
    monkeypatch.setattr(committed_by, "LOOK_S", 0.5)
    monkeypatch.setattr(committing, "LOOK_AROUND_S", 0.1)
    java: Any = job.spark.sparkContext._gateway
    job.topic.produce(30)
    with job.running() as query, job.commits() as commits:
        eventually(lambda: sum(job.committed().values()), 30)
        java.proc.send_signal(signal.SIGSTOP)
        try:
            for ask in (commits.flush, commits.release):
                with pytest.raises(OffsetTimeoutError, match="Spark did not answer in time"):
                    ask(query, 0.1)
            assert commits._committer.do(lambda: True).result(WAIT_S)
            commits.detach(1.0)
        finally:
            java.proc.send_signal(signal.SIGCONT)


def test_a_continuous_query_is_committed_from_its_checkpoint(
    single: Job, new_topic: TopicFactory
) -> None:
    """It reports nothing to Spark's listeners; its finished epochs are in the checkpoint."""
    writer = copying(single, new_topic())
    with single.commits() as commits:
        query = writer.trigger(continuous="100 milliseconds").start()
        eventually(single.described, {0: 10})
        assert query.lastProgress is None
        single.topic.produce(5, first=10)

        def read() -> int:
            finished = Checkpoint(single.checkpoint).last_finished()
            return 0 if finished is None else sum(finished.offsets.values())

        eventually(read, 15)
        result = commits.flush(query, WAIT_S)
        assert [value.offset for value in result.committed.values()] == [15]
        query.stop()
    assert single.described() == {0: 15}


@pytest.mark.parametrize("whole", [False, True], ids=["contains", "deprecated"])
def test_a_pattern_and_a_time_start_a_query_on_all_topics_that_spark_takes(
    single: Job, *, whole: bool
) -> None:
    """Spark fails on a partition more or less in its startingOffsets.

    A thread of the driver's own has no active session, and its offsets are those of the others.
    """
    spark, client, topic, group, _ = single
    moment = datetime.fromtimestamp(int(time.time()) + 3_600, timezone.utc)
    topic.produce(5, first=10, at=moment)
    create_topic(topic.kafka, f"eu-{topic.name}", 1)
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(setting, str(whole).lower())
    try:
        asked = partial(starting_offsets, client, group, pattern=topic.name, missing=moment)
        with ThreadPoolExecutor() as threads:
            begin = threads.submit(asked).result()
        assert len(json.loads(begin)) == (1 if whole else 2)
        assert json.loads(begin)[topic.name] == {"0": 10}
        frame = topic.stream(spark, subscribePattern=topic.name, startingOffsets=begin)
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
    single: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false it goes on at the end of the new log, and reports lower offsets."""
    topic, sink = single.topic, Collected()
    frame = numbers(topic.stream(single.spark, failOnDataLoss="false"))
    with single.commits() as commits:
        query = start(frame, single.checkpoint, sink)
        eventually(single.described, {0: 10})
        recreate(topic)
        topic.produce(3, first=100)
        eventually(lambda: commits.counts.rewinds, 1)
        eventually(single.described, {0: 3})
        topic.produce(2, first=103)
        eventually(lambda: sorted(sink.numbers)[-2:], [103, 104])
        eventually(single.described, {0: 5})
        query.stop()
    assert caplog.text.count("goes back within its run") == 1


def test_a_flush_refuses_offsets_of_a_topic_that_was_recreated(single: Job) -> None:
    """The query fails, and still reports where it was: the next run must not begin there."""
    topic = single.topic
    with single.commits() as commits:
        query = single.start()
        eventually(single.described, {0: 10})
        recreate(topic)
        topic.produce(3, first=100)
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
    begin = json.loads(starting_offsets(single.client, single.group, [topic.name]))
    assert begin in ({topic.name: {"0": -2}}, {topic.name: {"0": 0}})


def test_a_checkpoint_of_asynchronous_progress_tracking_is_read(
    single: Job, new_topic: TopicFactory
) -> None:
    """Not every batch has its files; the newest finished one that has them counts."""
    query = (
        copying(single, new_topic(), maxOffsetsPerTrigger=1)
        .option("asyncProgressTrackingEnabled", "true")
        .option("asyncProgressTrackingCheckpointIntervalMs", "1000")
        .start()
    )
    query.processAllAvailable()
    files = Checkpoint(single.checkpoint)
    eventually(lambda: files.last_finished() is not None, expected=True)
    query.stop()
    finished = files.last_finished()
    assert finished is not None
    (row,) = status(positions(files), {}, {})
    assert row.finished == sum(finished.offsets.values())
