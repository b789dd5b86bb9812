"""Topics that are deleted and recreated on a real Kafka."""

from __future__ import annotations

import time
from queue import Queue
from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr import LocalOffsets, OffsetClient
from offsetmgr.admin.times import time_text
from offsetmgr.config import CommitSettings
from offsetmgr.types import TopicPartition
from tests.commands import run
from tests.conftest import create_topic
from tests.kafka.messages import produce, recreate
from tests.service.support import serve_process
from tests.tables import delete
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

QUICK: Final = CommitSettings(commit_interval_s=0.05, verify_interval_s=0)
FORMER: Final = 100


@pytest.mark.fault(36)
def test_offsets_of_a_topic_recreated_at_once_are_refused(kafka: DevKafka, group: str) -> None:
    """Its log is longer, so its id alone tells; a partition that it lacks does not delay others."""
    topic = f"topic-{group}"
    create_topic(kafka, topic, 2)
    produce(kafka, topic, range(2 * FORMER), partitions=2)
    kept, lacking = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with LocalOffsets(kafka.bootstrap_servers, settings=QUICK) as offsets:
        former = FORMER - 1
        offsets.submit(group, {kept: former, lacking: former}, sync=True, timeout=WAIT_S)
        delete(kafka, topic)
        recreate(kafka, topic, 150)
        for _ in range(2):
            offsets.submit(group, {kept: FORMER})
            flushed = offsets.flush(timeout=WAIT_S, group=group, partitions=[kept])
            (left,) = flushed.uncommitted.values()
            assert (left.offset.offset, left.error.code) == (FORMER, "TOPIC_RECREATED")
        assert offsets.committed(group, timeout=WAIT_S) == {}
        offsets.submit(group, {kept: 20, lacking: 20}, rewind=True)
        assert offsets.flush(timeout=WAIT_S, group=group, partitions=[kept]).ok
        assert not offsets.flush(timeout=WAIT_S, group=group, partitions=[lacking]).ok
        offsets.submit(group, {kept: 25}, sync=True, timeout=WAIT_S)
        found = offsets.committed(group, timeout=WAIT_S)
        assert {where: each.offset for where, each in found.items()} == {kept: 25}
        # Offsets submitted while the topic is away are tried again until it is back.
        delete(kafka, topic)
        codes: Queue[str] = Queue()
        offsets.watch_errors(lambda _, error: codes.put(error.code))
        offsets.submit(group, {kept: FORMER})
        until(lambda: codes.get(timeout=WAIT_S) == "UNKNOWN_TOPIC_OR_PARTITION")
        recreate(kafka, topic, 150)
        until(lambda: codes.get(timeout=WAIT_S) == "TOPIC_RECREATED")
        assert offsets.committed(group, timeout=WAIT_S) == {}


@pytest.mark.fault(36)
def test_a_restarted_service_does_not_commit_offsets_of_the_former_log(
    kafka: DevKafka, group: str, topic: str, tmp_path: Path
) -> None:
    """The client sends its offsets again, with the id of the topic that they were read from.

    It knows the id of all that it was told to be committed, and be it the first thing of all.
    """
    produce(kafka, topic, range(FORMER), partitions=1)
    listen, servers = f"unix://{tmp_path}/s", kafka.bootstrap_servers
    options = ("--listen", listen, "--bootstrap-servers", servers)
    env = {"OFFSETMGR_COMMIT__COMMIT_INTERVAL_S": "0.1"}
    with serve_process(*options, env=env) as service:
        client = OffsetClient(service.address, name=group)
        manager = client.spawn(group, topic, 0)
        client.submit(group, {(topic, 0): FORMER}, sync=True, timeout=WAIT_S)
        service.process.kill()
    delete(kafka, topic)
    recreate(kafka, topic, 150)
    with serve_process(*options, env=env), client:
        error = manager.errors().get(timeout=WAIT_S)
        while error.code == "service_unavailable":
            error = manager.errors().get(timeout=WAIT_S)
        assert error.code == "TOPIC_RECREATED"
        (left,) = client.flush(timeout=WAIT_S).uncommitted.values()
        assert left.offset.offset == FORMER
        assert left.error.code == "TOPIC_RECREATED"
        assert client.committed(group, timeout=WAIT_S) == {}
        manager.submit(20)
        assert client.flush(timeout=WAIT_S).ok
        assert {each.offset for each in client.committed(group).values()} == {20}


def test_offsets_of_a_former_log_are_not_restored(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """A history says that Kafka deleted them with their topic; no reset brings them back.

    A longer new log hides it from who compares offsets alone; the kept topic's offset is restored.
    """
    recreated, gone, kept = new_topic(), new_topic(), new_topic()
    for topic in (recreated, gone, kept):
        produce(kafka, topic, range(30), partitions=1)
    with LocalOffsets(kafka.bootstrap_servers) as job:
        offsets = {(topic, 0): 20 for topic in (recreated, gone, kept)}
        job.submit(group, offsets, sync=True, timeout=WAIT_S)
    moment = time_text(time.time())
    for topic in (recreated, gone):
        delete(kafka, topic)
    recreate(kafka, recreated, 50)
    assert run(kafka, "delete-offsets", group, "--topic", kept, "--execute").status == 0

    answer = run(kafka, "history", group, "--json").json()
    assert {step["topic"]: step["cause"] for step in answer["steps"] if step["cause"]} == {
        recreated: "the topic was recreated",
        gone: "the topic was deleted",
        kept: "it expired, or somebody deleted it",
    }
    undo = run(kafka, "reset", group, "--to-history", moment, "--execute", "--json").json()
    assert {row["topic"]: row["new"] for row in undo["partitions"]} == {
        recreated: None,
        gone: None,
        kept: 20,
    }
