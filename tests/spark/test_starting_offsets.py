"""Where a query starts, against the real service and a real Kafka."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError, ServiceError
from offsetmgr.spark import commit_offsets, starting_offsets
from tests.service.support import serve_process
from tests.spark.support import (
    WAIT_S,
    Collected,
    Topic,
    ends,
    offsets_of,
    run,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.conftest import TopicFactory


def test_gaps_may_start_at_the_end(client: OffsetClient, topic: Topic, group: str) -> None:
    """With missing="latest" what has no offset starts at what is produced from then on."""
    topic.produce(3)
    start = starting_offsets(client, group, [topic.name], missing="latest")
    assert json.loads(start) == {topic.name: {"0": -1, "1": -1, "2": -1}}


def test_offsets_that_the_log_no_longer_holds_are_clamped(
    client: OffsetClient, topic: Topic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Below the log's start and beyond its end the nearest is taken, and both figures are told."""
    topic.produce(30)
    admin = AdminClient({"bootstrap.servers": topic.kafka.bootstrap_servers})
    cut = KafkaPartition(topic.name, 0, 6)
    for deleted in admin.delete_records([cut]).values():
        deleted.result(WAIT_S)
    offsets = {(topic.name, 0): 2, (topic.name, 1): 77, (topic.name, 2): 10}
    client.submit(group, offsets, sync=True, timeout=WAIT_S)
    start = starting_offsets(client, group, [topic.name])
    assert json.loads(start) == {topic.name: {"0": 6, "1": 10, "2": 10}}
    below, beyond = caplog.messages
    assert f"offset 2 committed for topic {topic.name} partition 0, below" in below
    assert "starting at 6" in below
    assert f"offset 77 committed for topic {topic.name} partition 1, beyond" in beyond
    assert "starting at 10" in beyond


def test_a_pattern_and_a_time_start_a_query(
    spark: SparkSession, client: OffsetClient, topic: Topic, new_topic: TopicFactory, group: str
) -> None:
    """Spark takes what is said for its subscribePattern, and starts at the records of that time."""
    second = Topic(topic.kafka, new_topic(), 1)
    pattern = f"{re.escape(topic.name)}|{re.escape(second.name)}"
    topic.produce(6)
    client.submit(group, {(topic.name, 1): 1}, sync=True, timeout=WAIT_S)
    moment = datetime.fromtimestamp(int(time.time()) + 3_600, timezone.utc)
    second.produce(2, at=moment - timedelta(seconds=1))
    second.produce(2, first=2, at=moment)
    start = starting_offsets(client, group, pattern=pattern, missing=moment)
    assert json.loads(start) == {topic.name: {"0": 2, "1": 1, "2": 2}, second.name: {"0": 2}}
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", topic.kafka.bootstrap_servers)
        .option("subscribePattern", pattern)
        .option("startingOffsets", start)
        .load()
    )
    read = [(row.topic, row.partition, row.offset) for row in frame.collect()]
    assert sorted(read) == sorted([(topic.name, 1, 1), (second.name, 0, 2), (second.name, 0, 3)])


def test_a_job_with_a_checkpoint_starts_while_the_service_is_down(
    spark: SparkSession, topic: Topic, group: str, checkpoint: str, tmp_path: Path
) -> None:
    """It reads on from there, and its group follows when the service is back."""
    address = f"unix://{tmp_path}/service.sock"
    serving = ("--listen", address, "--bootstrap-servers", topic.kafka.bootstrap_servers)
    sink = Collected()

    def read_on(session: SparkSession | None) -> StreamingQuery:
        topic.produce(30, first=len(sink.numbers))
        start = starting_offsets(client, group, [topic.name], checkpoint=checkpoint, spark=session)
        return run(topic.read(spark, start), sink, checkpoint)

    with OffsetClient(address, name=group) as client:
        with serve_process(*serving) as service:
            assert service.address
            read_on(None)
        with commit_offsets(spark, client, group=group) as commits:
            read_on(None)
            query = read_on(spark)
            assert sorted(sink.numbers) == list(range(90))
            with serve_process(*serving):
                assert commits.flush(query, timeout=WAIT_S).uncommitted == {}
                assert offsets_of(client.committed(group)) == ends(query)


def test_a_topic_that_does_not_exist_is_named(
    client: OffsetClient, topic: Topic, group: str
) -> None:
    """A topic that Kafka does not know is an error with its name, not a query without it."""
    topic.produce(3)
    with pytest.raises(ServiceError, match="no-such-topic"):
        starting_offsets(client, group, [topic.name, "no-such-topic"])


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("group", ("", ["t"], "earliest")),
        ("topics", ("g", "t", "earliest")),
        ("topics", ("g", [], "earliest")),
        ("topics[1]", ("g", ["t", "no topic"], "earliest")),
        ("missing", ("g", ["t"], "newest")),
    ],
)
def test_wrong_arguments_are_named(
    client: OffsetClient, field: str, arguments: tuple[str, list[str], str]
) -> None:
    """A wrong argument is refused by its name, before anybody is asked."""
    with pytest.raises(InvalidValueError) as caught:
        starting_offsets(client, *arguments)  # type: ignore[arg-type]
    assert caught.value.field == field
