"""The commands that read groups, on a real broker, held against Kafka's own tool."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from offsetmgr.types import TopicPartition
from tests.kafka.test_cluster_reader import commit, produce

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

_WAIT_S = 120
_COLUMNS = "committed", "end", "lag"


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run(kafka: DevKafka, *args: str) -> Ran:
    command = [sys.executable, "-m", "offsetmgr", *args, "--timeout", "60"]
    command += ["--bootstrap-servers", kafka.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def kafkas_rows(kafka: DevKafka, group: str) -> dict[TopicPartition, tuple[str, str, str]]:
    """What Kafka's own tool prints: offset, end and lag of each partition."""
    rows = {}
    for line in kafka.consumer_groups("--describe", "--group", group).splitlines():
        fields = line.split()
        if fields and fields[0] == group:
            rows[TopicPartition(fields[1], int(fields[2]))] = (fields[3], fields[4], fields[5])
    return rows


def our_rows(answer: Any) -> dict[TopicPartition, tuple[str, str, str]]:
    (group,) = answer["groups"]
    rows = {}
    for each in group["partitions"]:
        shown = ["-" if each[name] is None else str(each[name]) for name in _COLUMNS]
        rows[TopicPartition(each["topic"], each["partition"])] = (shown[0], shown[1], shown[2])
    return rows


def test_as_kafkas_own_tool(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """Offsets, ends and lags are what kafka-consumer-groups prints, also of a deleted topic."""
    first, second, gone = (new_topic(partitions) for partitions in (3, 2, 1))
    produce(kafka, first, 0, 30)
    produce(kafka, first, 1, 5)
    produce(kafka, second, 1, 7)
    commit(
        kafka,
        group,
        {
            TopicPartition(first, 0): 12,
            TopicPartition(first, 1): 5,
            TopicPartition(second, 0): 0,
            TopicPartition(second, 1): 3,
        },
    )
    ran = run(kafka, "describe", group, "--json")
    assert ran.status == 0, ran.err
    assert our_rows(ran.json()) == kafkas_rows(kafka, group)
    (found,) = ran.json()["groups"]
    assert (found["name"], found["state"], found["lag"]) == (group, "Empty", 22)
    lagging = [each for each in found["partitions"] if each["lag"]]
    assert all(each["lag_seconds"] > 0 for each in lagging)

    commit(kafka, group, {TopicPartition(gone, 0): 4})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([gone])[gone].result(_WAIT_S)
    ran = run(kafka, "describe", group, "--json")
    assert our_rows(ran.json()) == kafkas_rows(kafka, group)


def test_csv_and_lists(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """CSV has every field; a group is listed with its state; a table needs no terminal."""
    topic = new_topic(2)
    produce(kafka, topic, 0, 10)
    commit(kafka, group, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0})
    ran = run(kafka, "lag", group, "--csv")
    assert ran.status == 0, ran.err
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [(row["partition"], row["committed"], row["lag"]) for row in rows] == [
        ("0", "4", "6"),
        ("1", "0", "0"),
    ]
    listed = {each["name"]: each for each in run(kafka, "groups", "--json").json()["groups"]}
    assert listed[group] == {"name": group, "state": "Empty", "type": "classic"}
    plain = run(kafka, "lag", group)
    assert "\x1b" not in plain.out
    assert group in plain.out
    assert group in run(kafka, "top", group, "--interval", "0.5").out


def test_exit_statuses(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """0 fine, 1 trouble found, 2 wrong usage, 3 not complete."""
    topic = new_topic()
    produce(kafka, topic, 0, 10)
    commit(kafka, group, {TopicPartition(topic, 0): 4})
    assert run(kafka, "lag", group).status == 0
    assert run(kafka, "lag", group, "--max-lag", "6").status == 0
    assert run(kafka, "lag", group, "--max-lag", "5").status == 1
    assert run(kafka, "lag", group, "--max-lag", "0").status == 1
    absent = run(kafka, "describe", f"{group}-absent")
    assert absent.status == 1
    assert "no such group" in absent.out
    assert run(kafka, "lag", group, "--no-such-option").status == 2
    assert run(kafka, "describe", " bad name ").status == 2
    commit(kafka, group, {TopicPartition(topic, 0): 400})
    beyond = run(kafka, "describe", group)
    assert beyond.status == 1
    assert "OFFSET_OUTSIDE_LOG" in beyond.out


@pytest.mark.parametrize("command", ["groups", "lag", "top"])
def test_no_broker(command: str) -> None:
    """Where Kafka does not answer the status says so, in one line of text."""
    where = "--bootstrap-servers", "127.0.0.1:1", "--timeout", "1"
    done = subprocess.run(
        [sys.executable, "-m", "offsetmgr", command, *where],
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("offsetmgr: list of consumer groups: no answer from Kafka")
    assert len(done.stderr.splitlines()) == 1
