"""A real Spark's offsets while Kafka refuses, and in a shared group."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from offsetmgr.errors import InvalidValueError, OffsetCommitError
from offsetmgr.spark import commit_offsets
from offsetmgr.spark import committer as committing
from tests.spark.support import WAIT_S, ends, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsetmgr.errors import OffsetManagerError
    from tests.spark.support import Job


@pytest.fixture
def consumer(job: Job) -> Iterator[Consumer]:
    """A live member of the job's group."""
    settings = {"bootstrap.servers": job.topic.kafka.bootstrap_servers, "group.id": job.group}
    made = Consumer(settings)
    made.subscribe([job.topic.name])
    eventually(lambda: made.poll(0.1) is None and len(made.assignment()), job.topic.partitions)
    yield made
    made.close()


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


def test_a_shared_group_waits_for_a_query_that_has_stopped(
    job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes no further than that one has read, until it runs again or is released."""
    produced = 0

    def produce() -> None:
        nonlocal produced
        job.topic.produce(30, first=produced)
        produced += 30
        fast.processAllAvailable()

    def at() -> int:
        assert commits.flush(fast, WAIT_S).uncommitted == {}
        return sum(job.committed().values())

    with job.commits() as commits, job.running() as fast:
        slow = start(job.read(), str(tmp_path / "slow"), name="slow")
        produce()
        slow.processAllAvailable()
        eventually(lambda: sum(job.committed().values()), 30)
        slow.stop()
        eventually(lambda: "commits.release('slow')" in caplog.text, expected=True)
        produce()
        assert at() == 30
        slow = start(job.read(), str(tmp_path / "slow"), name="slow")
        slow.processAllAvailable()
        eventually(lambda: sum(job.committed().values()), 60)
        slow.stop()
        produce()
        assert at() == 60
        commits.release(slow)
        assert at() == 90
        with pytest.raises(InvalidValueError, match="'nobody'"):
            commits.release("nobody")
    assert len([each for each in caplog.messages if "has stopped" in each]) == 1
