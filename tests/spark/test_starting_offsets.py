"""The start of a query, with the real service and a real Kafka."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError
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
    for wrong, problem in (("(", "Unclosed group"), (7, "compile")):
        with pytest.raises(InvalidValueError, match=rf"pattern .* cannot be read \(.*{problem}"):
            starting_offsets(client, group, pattern=wrong, spark=spark)  # type: ignore[arg-type]


def test_a_job_with_a_checkpoint_starts_while_the_service_is_down(
    spark: SparkSession, topic: Topic, group: str, checkpoint: str, tmp_path: Path
) -> None:
    """It reads on from there, and its group follows when the service is back.

    A file system that Spark does not have, or a path that Java refuses, is told in one line.
    """
    address = f"unix://{tmp_path}/service.sock"
    serving = ("--listen", address, "--bootstrap-servers", topic.kafka.bootstrap_servers)
    sink = Collected()

    def read_on(session: SparkSession | None) -> StreamingQuery:
        topic.produce(30, first=len(sink.numbers))
        start = starting_offsets(client, group, [topic.name], checkpoint=checkpoint, spark=session)
        return run(topic.read(spark, start), checkpoint, sink)

    with OffsetClient(address, name=group) as client:
        with serve_process(*serving) as service:
            assert service.address
            read_on(None)
        with commit_offsets(spark, client, group=group) as commits:
            read_on(None)
            query = read_on(spark)
            assert sorted(sink.numbers) == list(range(90))
            for location in ("nosuch://bucket/path", "a:b"):
                with pytest.raises(OSError, match=f"{location}/offsets failed: .*$") as caught:
                    starting_offsets(client, group, [topic.name], checkpoint=location, spark=spark)
                assert "\n" not in str(caught.value)
            with serve_process(*serving):
                assert commits.flush(query, timeout=WAIT_S).uncommitted == {}
                assert offsets_of(client.committed(group)) == ends(query)
