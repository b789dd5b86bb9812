"""A real Spark's offsets reach their group, whatever happens to the service or to Kafka."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import QueryProgressEvent

from offsetmgr.client import OffsetClient
from offsetmgr.errors import ManagerStoppedError, OffsetCommitError
from offsetmgr.spark import commit_offsets
from tests.service.support import serve_process
from tests.spark.support import WAIT_S, Collected, Topic, ends, offsets_of, run, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.service.support import ServeProcess
    from tests.spark.support import Job


def owned(sidecar: ServeProcess, client: OffsetClient) -> int:
    """The number of managers that the service keeps for the client."""
    with sidecar.http() as http:
        return len(http.get("/v1/managers", params={"client": client.name}).json()["managers"])


def test_a_groups_offsets_are_where_spark_has_finished(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After flush, Kafka has the end of the last finished batch, nothing added.

    Not a word is logged, and no progress is turned into PySpark's objects: that would ask the JVM
    hundreds of things for each batch, in the query's own time.
    """
    made: list[object] = []
    monkeypatch.setattr(QueryProgressEvent, "fromJObject", made.append)
    caplog.set_level(logging.INFO, "offsetmgr")
    job.topic.produce(100)
    with job.commits() as commits:
        query = job.run(40)
        result = commits.flush(query, timeout=WAIT_S)
        assert result.uncommitted == {}
        assert offsets_of(result.committed) == ends(query)
        assert commits.counts.refused == commits.counts.unreadable == 0
    assert job.topic.described(job.group) == {0: 34, 1: 33, 2: 33}
    assert [each for each in caplog.records if each.name.startswith("offsetmgr")] == []
    assert made == []


def test_the_service_shows_queries_with_their_last_batch_and_error(
    job: Job, sidecar: ServeProcess
) -> None:
    """While they run and after they have ended, for as long as the client lives."""

    def shown() -> dict[str, Any]:
        with sidecar.http() as http:
            found = http.get("/v1/queries", params={"client": job.client.name}).json()["queries"]
        return found[0] if found else {}

    def breaks(batch: DataFrame, batch_id: int) -> None:
        if batch_id > 0:
            raise RuntimeError("the sink is full")
        batch.collect()

    job.topic.produce(30)
    with job.commits():
        query = start(job.read(9), job.checkpoint, breaks, "etl")
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(int(WAIT_S))
        eventually(lambda: shown().get("state"), "failed")
        found = shown()
    assert (found["name"], found["id"], found["run_id"]) == ("etl", query.id, query.runId)
    assert (found["groups"], found["batch_id"], found["input_rows"]) == ([job.group], 0, 9)
    assert found["processed_rows_per_second"] > 0
    assert found["batch_ms"] > 0
    assert "the sink is full" in found["error"]


def test_a_query_that_runs_already_is_taken_up(job: Job, sidecar: ServeProcess) -> None:
    """Offsets read before the listener began are committed, even without new records.

    Detached from the query, which goes on, all it has read is committed and nothing is held.
    """
    job.topic.produce(30)
    with job.running() as query:
        query.processAllAvailable()
        with job.commits() as commits:
            eventually(job.committed, ends(query))
            job.topic.produce(30, first=30)
            query.processAllAvailable()
            # The records may come in one batch or in more: the last one's offsets are awaited.
            eventually(lambda: sum(job.committed().values()), 60)
        commits.detach()
        assert job.committed() == ends(query)
        assert owned(sidecar, job.client) == 0
        with pytest.raises(ManagerStoppedError, match="detached"):
            commits.flush(query, timeout=WAIT_S)


def test_a_query_does_not_notice_that_its_service_stands_still(
    spark: SparkSession, topic: Topic, group: str, checkpoint: str
) -> None:
    """A frozen service takes nothing and answers nothing; all is committed when it goes on.

    Meanwhile flush returns what is not committed.
    """
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", topic.kafka.bootstrap_servers)
    topic.produce(30)
    sink = Collected()
    with serve_process(*options) as service, OffsetClient(service.address, name=group) as client:
        service.process.send_signal(signal.SIGSTOP)
        commits = commit_offsets(spark, client, group=group)
        query = run(topic.read(spark, "earliest", 10), checkpoint, sink)
        assert query.exception() is None
        assert sorted(sink.numbers) == list(range(30))
        committed, uncommitted = commits.flush(query, timeout=0.5)
        assert committed == {}
        left = {key.topic_partition: each.offset.offset for key, each in uncommitted.items()}
        assert left == ends(query)
        assert all("service" in str(each.error) for each in uncommitted.values())
        service.process.send_signal(signal.SIGCONT)
        eventually(lambda: offsets_of(client.committed(group)), ends(query))
        commits.detach()


def test_offsets_wait_for_a_kafka_that_stands_still(job: Job) -> None:
    """While Kafka stands still submits are taken and errors are told; then all is committed."""
    broker = job.topic.kafka.broker(1)
    brokers = ("--bootstrap-servers", job.topic.kafka.bootstrap_servers)
    hasty = ("--listen", "127.0.0.1:0", "--set", "commit.request_timeout_s=1", *brokers)
    with serve_process(*hasty) as service, OffsetClient(service.address, name=job.group) as client:
        here = job._replace(client=client)
        commits = here.commits()
        handle = client.spawn(job.group, job.topic.name, 0)
        query = here.start()
        job.topic.produce(30)
        eventually(lambda: sum(here.committed().values()), 30)
        errors = handle.errors()
        broker.pause()
        try:
            handle.submit(11)
            # Over the whole of a commit's time-out.
            left = client.flush(timeout=2, group=job.group).uncommitted
            assert [key.partition for key in left] == [0]
            error = errors.get(WAIT_S)
            assert isinstance(error, OffsetCommitError)
            assert error.retriable
            with service.http() as http:
                shown = http.get("/v1/managers", params={"group": job.group}).json()["managers"]
            failing = {each["partition"] for each in shown if each["dirty"] and each["last_error"]}
            assert failing == {0}
        finally:
            broker.resume()
        job.topic.produce(30, first=30)
        query.processAllAvailable()
        query.stop()
        assert query.exception() is None
        assert commits.flush(query, timeout=WAIT_S).uncommitted == {}
        assert here.committed() == ends(query)
        commits.detach()
