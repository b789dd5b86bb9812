"""The start of a query, with the real service and a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.spark import starting_offsets
from tests.service.support import serve_process
from tests.spark.support import WAIT_S, Collected, ends, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.support import Job


def test_a_job_with_a_checkpoint_starts_while_the_service_is_down(job: Job, tmp_path: Path) -> None:
    """It reads on from there, and its group follows when the service is back.

    A file system that Spark does not have, or a path that Java refuses, is told in one line.
    """
    topic, group, checkpoint = job.topic, job.group, job.checkpoint
    address = f"unix://{tmp_path}/service.sock"
    serving = ("--listen", address, "--bootstrap-servers", topic.kafka.bootstrap_servers)
    sink = Collected()

    def read_on(session: SparkSession | None) -> StreamingQuery:
        topic.produce(30, first=len(sink.numbers))
        start = starting_offsets(client, group, [topic.name], checkpoint=checkpoint, spark=session)
        return run(topic.read(job.spark, start), checkpoint, sink)

    with OffsetClient(address, name=group) as client:
        with serve_process(*serving) as service:
            assert service.address
            read_on(None)
        with job._replace(client=client).commits() as commits:
            read_on(None)
            query = read_on(job.spark)
            assert sorted(sink.numbers) == list(range(90))
            for location in ("nosuch://bucket/path", "a:b"):
                with pytest.raises(OSError, match=f"{location}/offsets failed: .*$") as caught:
                    starting_offsets(
                        client, group, [topic.name], checkpoint=location, spark=job.spark
                    )
                assert "\n" not in str(caught.value)
            with serve_process(*serving):
                assert commits.flush(query, timeout=WAIT_S).uncommitted == {}
                assert job.committed() == ends(query)
