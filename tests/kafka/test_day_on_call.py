"""A day on call: each trouble is found and mended with the commands of this product alone."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from offsetmgr import LocalOffsets, OffsetClient
from tests.chaos.offsets_topic import read_committed
from tests.commands import Ran, run
from tests.conftest import create_topic
from tests.kafka.conftest import service_of
from tests.unit.spark.checkpoints import WrittenCheckpoint
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka

RECORDS: Final = 100
MINUTE_S: Final = 60


class OnCall:
    """Somebody with a terminal, and Kafka's address in its configuration."""

    def __init__(self, kafka: DevKafka, begin_s: float) -> None:
        self.kafka = kafka
        self.begin_s = begin_s
        """The time of the first record of each partition; one a minute."""

    def types(self, line: str) -> Ran:
        """Run a command line."""
        return run(self.kafka, *shlex.split(line.removeprefix("offsetmgr ")))

    def asks_the_doctor(
        self, group: str, more: str = "", level: str = "trouble"
    ) -> dict[str, dict[str, Any]]:
        """Return the findings of a level of a group by their check."""
        answer = self.types(f"doctor {group} {more} --json").json()
        return {each["check"]: each for each in answer["findings"] if each["level"] == level}

    def stands(self, group: str, topic: str = "orders") -> dict[int, int]:
        """Return what Kafka has committed, asked past all commands."""
        return read_committed(self.kafka.bootstrap_servers, group, topic, range(2))


@pytest.fixture
def on_call(breakable_kafka: DevKafka) -> OnCall:
    """A Kafka with two topics, of names that no other test gives."""
    begin_s = time.time() - RECORDS * MINUTE_S
    producer = Producer({"bootstrap.servers": breakable_kafka.bootstrap_servers})
    for topic in ("orders", "returns"):
        create_topic(breakable_kafka, topic, 2)
        for number in range(2 * RECORDS):
            partition, index = number % 2, number // 2
            at_ms = round((begin_s + index * MINUTE_S) * 1_000)
            producer.produce(topic, b"x", partition=partition, timestamp=at_ms)
    assert producer.flush(WAIT_S) == 0
    return OnCall(breakable_kafka, begin_s)


def commit(on_call: OnCall, group: str, *offsets: int, topic: str = "orders") -> None:
    """A job commits and ends."""
    with LocalOffsets(on_call.kafka.bootstrap_servers) as job:
        wanted = {(topic, partition): offset for partition, offset in enumerate(offsets)}
        job.submit(group, wanted, sync=True, timeout=WAIT_S)


def test_a_day_on_call(on_call: OnCall, tmp_path: Path) -> None:
    """From the first alert in the morning to the last at night."""
    a_job_is_stuck(on_call, tmp_path)
    a_group_has_live_members(on_call)
    a_topic_was_deleted(on_call)
    somebody_reset_the_wrong_group(on_call)
    a_live_job_has_to_go_back_an_hour(on_call)


def a_job_is_stuck(on_call: OnCall, tmp_path: Path) -> None:
    """It hangs in a batch: records wait, and nothing is committed."""
    commit(on_call, "billing", 40, 40)
    job = WrittenCheckpoint(tmp_path)
    job.batch(7, {"orders": {"0": 40, "1": 40}})
    job.batch(8, {"orders": {"0": 60, "1": 60}}, finished=False)

    stuck = on_call.asks_the_doctor("billing", "--stuck-after 0s")["stuck"]
    assert "120 records wait in orders 0, 1" in stuck["what"]
    assert "offsetmgr spark status" in stuck["mend"]
    looked = on_call.types(f"spark status --checkpoint {tmp_path} --group billing")
    assert looked.status == 1
    assert "Batch 8, begun" in looked.output
    assert "A restart reads 40 offsets again, and finds 0 lost." in looked.output

    # So a restart is safe.  The job comes back and catches up.
    job.batch(8, {"orders": {"0": 100, "1": 100}})
    commit(on_call, "billing", 100, 100)
    assert on_call.types(f"spark status --checkpoint {tmp_path} --group billing").status == 0
    assert "stuck" not in on_call.asks_the_doctor("billing", "--stuck-after 0s")


def a_group_has_live_members(on_call: OnCall) -> None:
    """A colleague's consumer sits in the group, so that a reset is refused."""
    commit(on_call, "shared", 50, 50)
    servers = on_call.kafka.bootstrap_servers
    config = {"bootstrap.servers": servers, "group.id": "shared", "client.id": "lauras-notebook"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    until(lambda: consumer.poll(0.1) is not None)

    refused = on_call.types("reset shared --all-topics --to-earliest --execute")
    assert refused.status == 1
    assert "held by its members lauras-notebook (host" in refused.output
    assert "members" not in on_call.asks_the_doctor("shared")
    assert "lauras-notebook" in on_call.asks_the_doctor("shared", level="ok")["members"]["what"]

    consumer.close()  # she is asked to stop it
    until(lambda: "live members" not in str(on_call.asks_the_doctor("shared", level="ok")), 0.3)
    assert on_call.types("reset shared --all-topics --to-earliest --execute").status == 0
    assert on_call.stands("shared") == {0: 0, 1: 0}


def a_topic_was_deleted(on_call: OnCall) -> None:
    """Kafka deletes its offsets with it; then its owners recreate it."""
    commit(on_call, "refunds", 100, 100)
    commit(on_call, "refunds", 30, 30, topic="returns")
    admin = AdminClient({"bootstrap.servers": on_call.kafka.bootstrap_servers})
    admin.delete_topics(["returns"])["returns"].result(WAIT_S)

    until(lambda: "deleted" in on_call.asks_the_doctor("refunds"), poll_s=0.3)
    gone = on_call.asks_the_doctor("refunds")["deleted"]
    assert "returns 0, 1: the topic was deleted" in gone["what"]

    create_topic(on_call.kafka, "returns", 2)
    # Until its partitions have leaders, nothing can be said of it.
    until(lambda: "recreated" in str(on_call.asks_the_doctor("refunds").get("deleted")), 0.3)
    assert on_call.types(on_call.asks_the_doctor("refunds")["deleted"]["mend"]).status == 0
    assert on_call.stands("refunds", "returns") == {0: 0, 1: 0}
    assert on_call.stands("refunds") == {0: 100, 1: 100}
    assert "deleted" not in on_call.asks_the_doctor("refunds")


def somebody_reset_the_wrong_group(on_call: OnCall) -> None:
    """Nobody wrote down where it stood; Kafka's own log of commits knows."""
    commit(on_call, "orders-etl", 80, 81)
    commit(on_call, "orders-etl", 90, 91)
    assert on_call.types("reset orders-etl --all-topics --to-earliest --execute").status == 0
    assert on_call.stands("orders-etl") == {0: 0, 1: 0}

    seen = on_call.types("history orders-etl --json")
    assert seen.status == 1
    steps = seen.json()["steps"]
    last = [(step["from"], step["to"], step["change"]) for step in steps if step["partition"] == 1]
    assert last == [(None, 81, "first"), (81, 91, "forward"), (91, 0, "backward")]
    undo = on_call.asks_the_doctor("orders-etl")["regressions"]["mend"]
    assert "--topic orders:0,1 --to-history" in undo  # the partitions that went back
    time_before = undo.partition("--to-history ")[2].split()[0]
    assert f"--to-history {time_before}" in on_call.types("history orders-etl").output
    # What was not shown is not to be changed.
    shown = on_call.types("history orders-etl --partition 1").output
    assert f"offsetmgr reset orders-etl --topic orders:1 --to-history {time_before}" in shown
    assert on_call.types(undo).status == 0
    assert on_call.stands("orders-etl") == {0: 90, 1: 91}
    assert "regressions" not in on_call.asks_the_doctor("orders-etl")


def a_live_job_has_to_go_back_an_hour(on_call: OnCall) -> None:
    """It runs and commits through the service, which sets its offsets."""
    at_s = on_call.begin_s + 39.5 * MINUTE_S  # between the records 39 and 40
    time_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
    with (
        service_of(on_call.kafka) as service,
        OffsetClient(service.address, "fraud-job") as job,
    ):
        job.submit("fraud", {("orders", 0): 100, ("orders", 1): 100}, sync=True, timeout=WAIT_S)
        reset = f"reset fraud --all-topics --to-datetime {time_text} --service {service.address}"
        refused = on_call.types(f"{reset} --execute")
        assert refused.status == 1
        assert "held by client 'fraud-job'" in refused.output
        assert "--live" in refused.output
        done = on_call.types(f"{reset} --live --execute")
        assert done.status == 0, done.output
        assert "reads on from its checkpoint: give it a new one" in done.output
        assert on_call.stands("fraud") == {0: 40, 1: 40}

    # It is started again with a new checkpoint, and so reads from where its group stands.
    with LocalOffsets(on_call.kafka.bootstrap_servers) as restarted:
        found = restarted.committed("fraud", timeout=WAIT_S)
    assert sorted(each.offset for each in found.values()) == [40, 40]
