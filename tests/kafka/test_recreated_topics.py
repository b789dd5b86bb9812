"""Topics that are deleted and recreated on a real Kafka."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr import LocalOffsets, OffsetClient
from offsetmgr.admin.times import time_text
from offsetmgr.config import CommitSettings
from offsetmgr.types import TopicPartition
from tests.commands import run
from tests.conftest import create_topic
from tests.faults.support import WAIT_S, committing
from tests.kafka.messages import produce
from tests.service.support import serve_process
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.manager import ManagerHandle
    from tests.conftest import TopicFactory
    from tests.faults.support import Committing

QUICK: Final = CommitSettings(commit_interval_s=0.05, verify_interval_s=0)
FORMER: Final = 100


def delete(kafka: DevKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(WAIT_S)


def recreate(kafka: DevKafka, topic: str, records: int, *, partitions: int = 1) -> None:
    """Create a topic that was just deleted, as soon as Kafka lets it, and fill it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    until(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics)

    def created() -> bool:
        with suppress(KafkaException):
            create_topic(kafka, topic, partitions)
            return True
        return False

    until(created)
    produce(kafka, topic, range(records), partitions=partitions)


def assert_refused(here: Committing, handle: ManagerHandle, group: str, topic: str) -> None:
    """Nothing is committed in the new log, and the flush says why."""
    result = here.factory.flush([handle.key], WAIT_S).get(timeout=WAIT_S)[handle.key]
    assert result.error is not None
    assert result.error.code == "TOPIC_RECREATED"
    assert here.in_kafka(group, topic=topic) is None


@pytest.mark.fault(36)
@pytest.mark.parametrize("records", [30, 100, 150])
def test_offsets_of_a_topic_recreated_at_once_are_refused(
    kafka: DevKafka, group: str, topic: str, records: int
) -> None:
    """A shorter, equal or longer log; the manager knows it by the topic's id."""
    with committing(kafka.bootstrap_servers, QUICK) as here:
        produce(kafka, topic, range(FORMER), partitions=1)
        handle = here.spawn(group, topic=topic)
        handle.submit(FORMER - 1)
        assert here.flush(handle) is None
        delete(kafka, topic)
        recreate(kafka, topic, records)
        handle.submit(FORMER)
        assert_refused(here, handle, group, topic)
        handle.submit(FORMER)
        assert_refused(here, handle, group, topic)
        handle.rewind(20)
        assert here.flush(handle) is None
        handle.submit(25)
        assert here.flush(handle) is None
        assert here.in_kafka(group, topic=topic) == 25


@pytest.mark.fault(36)
@pytest.mark.parametrize("records", [30, 150])
def test_offsets_submitted_while_a_topic_is_away_are_refused(
    kafka: DevKafka, group: str, topic: str, records: int
) -> None:
    """They are tried again until the topic is back."""
    with committing(kafka.bootstrap_servers, QUICK) as here:
        produce(kafka, topic, range(FORMER), partitions=1)
        handle = here.spawn(group, topic=topic)
        handle.submit(FORMER - 1)
        assert here.flush(handle) is None
        delete(kafka, topic)
        handle.submit(FORMER)
        here.error(handle, "UNKNOWN_TOPIC_OR_PARTITION")
        recreate(kafka, topic, records)
        here.error(handle, "TOPIC_RECREATED")
        assert_refused(here, handle, group, topic)


@pytest.mark.fault(36)
def test_partitions_that_a_recreated_topic_lacks_do_not_hold_back_the_others(
    kafka: DevKafka, group: str
) -> None:
    """A partition that only the new topic has begins as any other."""
    topic = f"topic-{group}"
    create_topic(kafka, topic, 2)
    with committing(kafka.bootstrap_servers, QUICK) as here:
        produce(kafka, topic, range(FORMER), partitions=2)
        first, second = here.spawn(group, 0, topic=topic), here.spawn(group, 1, topic=topic)
        for handle in (first, second):
            handle.submit(FORMER // 2)
            assert here.flush(handle) is None
        delete(kafka, topic)
        recreate(kafka, topic, 30)
        for handle in (first, second):
            handle.rewind(10)
        assert here.flush(first) is None
        assert here.flush(second) is not None
        assert here.in_kafka(group, topic=topic) == 10


@pytest.mark.fault(36)
def test_offsets_in_process_are_refused_in_a_recreated_topic(
    kafka: DevKafka, group: str, topic: str
) -> None:
    """``LocalOffsets`` reports them as uncommitted, with the reason."""
    produce(kafka, topic, range(FORMER), partitions=1)
    where = TopicPartition(topic, 0)
    with LocalOffsets(kafka.bootstrap_servers, settings=QUICK) as offsets:
        offsets.submit(group, {where: FORMER - 1}, sync=True, timeout=WAIT_S)
        delete(kafka, topic)
        recreate(kafka, topic, 150)
        offsets.submit(group, {where: FORMER})
        result = offsets.flush(timeout=WAIT_S)
        (left,) = result.uncommitted.values()
        assert left.offset.offset == FORMER
        assert left.error.code == "TOPIC_RECREATED"
        assert offsets.committed(group, timeout=WAIT_S) == {}


@pytest.mark.fault(36)
def test_a_restarted_service_does_not_commit_offsets_of_the_former_log(
    kafka: DevKafka, group: str, topic: str, tmp_path: Path
) -> None:
    """The client sends its offsets again, with the id of the topic that they were read from."""
    produce(kafka, topic, range(FORMER), partitions=1)
    listen, servers = f"unix://{tmp_path}/s", kafka.bootstrap_servers
    options = ("--listen", listen, "--bootstrap-servers", servers)
    env = {"OFFSETMGR_COMMIT__COMMIT_INTERVAL_S": "0.1"}
    with serve_process(*options, env=env) as service:
        client = OffsetClient(service.address, name=group)
        manager = client.spawn(group, topic, 0)
        manager.initial_offset(timeout=WAIT_S)
        for offset in (FORMER - 1, FORMER):
            client.submit(group, {(topic, 0): offset}, sync=True, timeout=WAIT_S)
        service.process.kill()
    delete(kafka, topic)
    recreate(kafka, topic, 150)
    with client, serve_process(*options, env=env):
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
