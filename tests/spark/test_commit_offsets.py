"""A real Spark's offsets reach their group, whatever happens to the service or to Kafka."""

from __future__ import annotations

import logging
import queue
import signal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import QueryProgressEvent

from offsetmgr.client import OffsetClient
from offsetmgr.errors import ManagerStoppedError, OffsetCommitError
from offsetmgr.spark import commit_offsets
from offsetmgr.spark import committer as committing
from offsetmgr.spark.checkpoint import Checkpoint
from tests.service.support import serve_process
from tests.spark.support import WAIT_S, Collected, ends, offsets_of, run, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from offsetmgr.errors import OffsetManagerError
    from tests.service.support import ServeProcess
    from tests.spark.support import Job


def owned(sidecar: ServeProcess, client: OffsetClient) -> int:
    """The number of managers that the service keeps for the client."""
    with sidecar.http() as http:
        return len(http.get("/v1/managers", params={"client": client.name}).json()["managers"])


@pytest.fixture
def consumer(job: Job) -> Iterator[Consumer]:
    """A live member of the job's group."""
    settings = {"bootstrap.servers": job.topic.kafka.bootstrap_servers, "group.id": job.group}
    made = Consumer(settings)
    made.subscribe([job.topic.name])
    eventually(lambda: made.poll(0.1) is None and len(made.assignment()), job.topic.partitions)
    yield made
    made.close()


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
    """While they run and after they have ended or were flushed, for as long as the client lives."""

    def shown() -> dict[str, Any]:
        with sidecar.http() as http:
            found = http.get("/v1/queries", params={"client": job.client.name}).json()["queries"]
        return found[0] if found else {}

    def breaks(batch: DataFrame, batch_id: int) -> None:
        if batch_id > 0:
            raise RuntimeError("the sink is full")
        batch.collect()

    job.topic.produce(30)
    with job.commits() as commits:
        query = start(job.read(9), job.checkpoint, breaks, "etl")
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(int(WAIT_S))
        assert commits.flush(query, WAIT_S).ok
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
        commits.detach(WAIT_S)
        assert job.committed() == ends(query)
        assert owned(sidecar, job.client) == 0
        with pytest.raises(ManagerStoppedError, match="detached"):
            commits.flush(query, timeout=WAIT_S)


def test_a_query_does_not_notice_that_its_service_stands_still(job: Job) -> None:
    """A frozen service takes nothing and answers nothing; all is committed when it goes on.

    Meanwhile flush returns what is not committed.
    """
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", job.topic.kafka.bootstrap_servers)
    job.topic.produce(30)
    sink = Collected()
    with (
        serve_process(*options) as service,
        OffsetClient(service.address, name=job.group) as client,
        job._replace(client=client).commits() as commits,
    ):
        service.process.send_signal(signal.SIGSTOP)
        query = run(job.read(10), job.checkpoint, sink)
        assert query.exception() is None
        assert sorted(sink.numbers) == list(range(30))
        committed, uncommitted = commits.flush(query, timeout=0.5)
        assert committed == {}
        left = {key.topic_partition: each.offset.offset for key, each in uncommitted.items()}
        assert left == ends(query)
        assert all("service" in str(each.error) for each in uncommitted.values())
        service.process.send_signal(signal.SIGCONT)
        eventually(job.committed, ends(query))


def test_the_driver_reports_refusals_of_kafka(
    job: Job, consumer: Consumer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in its log, until that is over; by errors() and on_error as often as it happens."""
    # Many attempts fail in a moment.
    monkeypatch.setattr(committing, "FLUSH_S", 0.1)
    monkeypatch.setattr(committing, "RETRY_S", 0.05)
    told: queue.SimpleQueue[OffsetManagerError] = queue.SimpleQueue()

    def on_error(error: OffsetManagerError) -> None:
        told.put(error)
        raise RuntimeError("it broke")

    commits = commit_offsets(job.spark, job.client, group=job.group, on_error=on_error)
    job.topic.produce(30)
    query = job.run()
    for error in (commits.errors().get(WAIT_S), told.get(timeout=WAIT_S), told.get(timeout=WAIT_S)):
        assert isinstance(error, OffsetCommitError)
        assert error.group == job.group
        code = error.code
    assert commits.counts.refused > 0
    assert commits.counts.lower == 0
    consumer.close()
    eventually(job.committed, ends(query))
    over = f"offsets of group {job.group} are committed again: {code} is over"
    eventually(lambda: over in caplog.messages, expected=True)
    commits.detach()
    warned = [each for each in caplog.messages if each.endswith(f"({code})")]
    assert len(warned) == 1
    assert len([each for each in caplog.messages if "it broke" in each]) == 1


def test_a_run_that_finds_nothing_new(job: Job) -> None:
    """Spark reports nothing of it, and ends it at once: its checkpoint is committed all the same.

    Nobody flushes, and nobody listened when its batches were read.
    """
    job.topic.produce(30)
    job.run()
    finished = Checkpoint(job.checkpoint).last_finished()
    assert finished is not None
    with job.commits() as commits:
        again = job.run()
    assert again.lastProgress is not None
    assert again.lastProgress["numInputRows"] == 0
    assert commits.counts.submitted == 3
    assert job.committed() == finished.offsets
