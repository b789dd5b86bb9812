"""Topics of stream processors on a real Kafka."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams import MemoryStorage, TopicsError, View, codecs, visitor
from offsetmgr.streams.graph import define_group, input, join, lookup, loop, output, persist
from offsetmgr.streams.topics import TopicManager, TopicSettings, prepare_topics
from tests.commands import run
from tests.tables import Transactional, send
from tests.waiting import eventually

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

C = codecs.String()


def test_loop_and_table_are_created_once(
    kafka: DevKafka, new_topic: TopicFactory, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With their settings, which a second start finds as they should be; also numbers."""
    topic = new_topic(3)
    graph = define_group(group, input(topic, C, print), loop(C, print), persist(C))
    hour: Any = {"cleanup.policy": "delete", "retention.ms": 3_600_000}
    fail = TopicSettings(mismatch="fail", stream=hour, replication=1)
    with TopicManager(kafka.bootstrap_servers, fail, timeout_s=60) as manager:
        counts = prepare_topics(manager, graph)
        assert counts == {topic: 3, f"{group}-loop": 3, f"{group}-table": 3}
        assert prepare_topics(manager, graph) == counts
        log = manager.logs([f"{group}-table"])[f"{group}-table"]
        assert [ends[:2] for ends in log.partitions.values()] == [(0, 0)] * 3
        with pytest.raises(
            TopicsError, match=r"cleanup.policy=delete, not compact.*mismatch='warn'"
        ):
            manager.ensure_table(f"{group}-loop", 3)
        with pytest.raises(TopicsError, match="has 3 partitions, not 4: alter or delete"):
            manager.ensure_stream(f"{group}-loop", 4)
        with pytest.raises(InvalidValueError, match=r"cannot be created \(.*num_partitions"):
            manager.ensure_stream(f"{group}-wide", 10_000_000)
        assert manager.partitions([topic, topic]) == {topic: [0, 1, 2]}
    with TopicManager(kafka.bootstrap_servers, TopicSettings(replication=3)) as manager:
        assert manager.ensure_topic(f"{group}-table", 5, {"retention.ms": "1"}) == 3
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    text = "has 3 partitions, not 5; replication 1, not 3; retention.ms=604800000, not 1: alter"
    assert text in warning.getMessage()


def test_topics_that_are_missing_are_listed_and_none_is_created(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """A lookup may have another number of partitions."""
    narrow, wide, gone, late = new_topic(1), new_topic(3), f"{group}-gone", f"{group}-late"
    edges = [input(narrow, C, print), lookup(wide, C), persist(C)]
    out, letters, table = (f"{group}-{name}" for name in ("out", "letters", "table"))
    with TopicManager(kafka.bootstrap_servers, timeout_s=60) as manager:
        wrong = define_group(group, edges, join(gone, C), lookup(late, C), output(out, C))
        with pytest.raises(TopicsError) as failed:
            prepare_topics(manager, wrong, letters)
        assert str(failed.value) == (
            f"group {group} cannot start: topic {gone} (join) does not exist: create it; "
            f"topic {late} (lookup) does not exist: create it; "
            f"topic {letters}, which it writes, does not exist: create it; "
            f"topic {out}, which it writes, does not exist: create it"
        )
        assert manager.partitions([table]) == {}
        counts = prepare_topics(manager, define_group(group, edges, visitor("v", print)))
        assert counts == {narrow: 1, wide: 3, table: 1, f"{group}-loop": 1}


def test_a_table_is_copied_into_more_partitions(kafka: DevKafka, unique_name: str) -> None:
    """Tombstones and headers too; of a key in two partitions the younger message counts.

    Neither one from the future, which brokers refuse by default, nor one above librdkafka's or the
    broker's limit ends the copy.  A partition may begin above 0.  While an open transaction hides
    a part, it is refused.
    """
    servers, source = kafka.bootstrap_servers, f"{unique_name}-source"
    limits = {"message.timestamp.after.max.ms": str(2**63 - 1), "max.message.bytes": "3000000"}
    limits["retention.ms"] = "-1"  # its messages are of 1970
    with TopicManager(servers) as manager:
        manager.ensure_topic(source, 2, limits)
    send(kafka, source, *((f"gone-{number}", "gone") for number in range(9)), partition=1)
    admin = AdminClient({"bootstrap.servers": servers})
    (cut,) = admin.delete_records([TopicPartition(source, 1, 9)]).values()
    cut.result(60)
    headers: dict[str, str | bytes | None] = {"trace": b"1"}
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 3_000_000})
    for number in range(200):
        key, value = f"k{number % 50}", None if number % 50 == 7 else str(number)
        # As after partitions were added to it: the older half is elsewhere.
        value = "2" * 2_000_000 if number == 198 else value
        place, at_ms = number // 100, 2**60 if number == 199 else 1_000_000 + number
        producer.produce(source, value, key, place, headers=headers, timestamp=at_ms)
    assert producer.flush(60) == 0
    copy = ["streams", "copy-table", source, unique_name]
    missing = run(kafka, *copy)
    assert missing.status == 2
    assert "partitions None is missing; give the number" in missing.output
    copy += ["--partitions", "5", "--json"]
    hiding = Transactional(kafka, unique_name)
    hiding.write((source, "hidden", "0"), partition=1)
    refused = run(kafka, *copy)
    assert refused.status == 1
    assert f"hides the messages of {source}/1 from offset 109 on: stop what" in refused.output
    hiding.end(commits=False)
    eventually(lambda: run(kafka, *copy).status, 0)
    plan = run(kafka, *copy).json()
    assert (plan["messages"], plan["target_partitions"], plan["executed"]) == (202, 5, False)
    assert run(kafka, *copy, "--execute").json()["messages"] == 200
    with View(servers, unique_name, codecs.String(), storage=MemoryStorage()) as view:
        view.wait_until_running(60)
        expected = {f"k{number}": str(number + 150) for number in range(50) if number != 7}
        expected["k48"] = "2" * 2_000_000
        assert dict(view) == expected
        assert len(view.stats().partitions) == 5
    with TopicManager(servers, TopicSettings(mismatch="fail"), timeout_s=60) as manager:
        assert manager.ensure_table(unique_name, 5) == 5
    again = run(kafka, *copy, "--execute")
    assert again.status == 1
    assert "has 200 messages: name one that has none" in again.output
