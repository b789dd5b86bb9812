"""The commands that read groups, on a real broker, held against Kafka's own tool."""

from __future__ import annotations

import csv
import fcntl
import io
import itertools
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.devkafka import consumer_groups
from offsetmgr.kafka.commit_log import TOPIC, partition_of
from offsetmgr.types import TopicPartition
from tests.commands import run, run_alone
from tests.kafka.test_cluster_reader import commit, produce
from tests.tables import delete
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

_COLUMNS = "committed", "end", "lag"


Rows: TypeAlias = "dict[TopicPartition, tuple[str, str, str]]"
"""Offset, end and lag of each partition, as they are printed."""


def kafkas_rows(kafka: DevKafka, *groups: str) -> dict[str, Rows]:
    """The offsets, ends and lags that Kafka's own tool prints of groups."""
    rows: dict[str, Rows] = {group: {} for group in groups}
    asked = [each for group in groups for each in ("--group", group)]
    for line in consumer_groups(kafka.bootstrap_servers, "--describe", *asked).splitlines():
        fields = line.split()
        if fields and fields[0] in rows:
            where = TopicPartition(fields[1], int(fields[2]))
            rows[fields[0]][where] = (fields[3], fields[4], fields[5])
    return rows


def our_rows(group: Any) -> Rows:
    rows = {}
    for each in group["partitions"]:
        shown = ["-" if each[name] is None else str(each[name]) for name in _COLUMNS]
        rows[TopicPartition(each["topic"], each["partition"])] = (shown[0], shown[1], shown[2])
    return rows


def test_as_kafkas_own_tool(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """Offsets, ends and lags of many groups are what kafka-consumer-groups prints in one run.

    Also those of a deleted topic.
    """
    topic, gone = new_topic(4), new_topic(1)
    for partition in range(3):
        produce(kafka, topic, partition, 20 + partition)
    commit(kafka, group, {TopicPartition(topic, 0): 12, TopicPartition(topic, 3): 0})
    chance = Random(1)  # noqa: S311 -- the same offsets in every run
    names = [f"{group}-{number}" for number in range(8)]
    for number, name in enumerate(names):
        partitions = chance.sample(range(3), 1 + number % 3)
        wanted = {TopicPartition(topic, each): chance.randint(0, 20) for each in partitions}
        commit(kafka, name, wanted)
    deleted = f"{group}-deleted"
    commit(kafka, deleted, {TopicPartition(topic, 1): 5, TopicPartition(gone, 0): 4})
    delete(kafka, gone)
    told = kafkas_rows(kafka, group, deleted, *names)
    answer = run(kafka, "describe", group, deleted, *names, "--json").json()
    assert {each["name"]: our_rows(each) for each in answer["groups"]} == told
    found = answer["groups"][0]
    assert (found["name"], found["state"], found["lag"]) == (group, "Empty", 8)
    assert all(each["lag_seconds"] > 0 for each in found["partitions"] if each["lag"])


@pytest.mark.parametrize("end", ["SIGTERM", "Ctrl-Z"])
def test_top_in_a_terminal(kafka: DevKafka, new_topic: TopicFactory, group: str, end: str) -> None:
    """It draws the groups, hears its keys, and leaves the terminal as it was however it ends.

    Ctrl-Z leaves it too, and the view comes back until the key q ends it.
    """
    topic = new_topic()
    produce(kafka, topic, 0, 10)
    commit(kafka, group, {TopicPartition(topic, 0): 4})
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "offsetmgr", "top", group, "--interval", "0.5"]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--timeout", "60"]
    # What the run itself was started in must not decide the size.
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        env={**env, "TERM": "xterm-256color"},
        start_new_session=True,  # without a shell to continue it, so that it is never stopped
    )
    seen = b""

    def read_until(wanted: str) -> None:
        nonlocal seen
        while wanted.encode() not in seen:
            ready, _, _ = select.select([ours], [], [], WAIT_S)
            assert ready, f"{wanted} was not drawn; but {seen[-2000:]!r}"
            seen += os.read(ours, 65_536)

    try:
        read_until(group)
        os.write(ours, b"p")
        read_until("PARTITION")
        read_until(topic)
        if end == "Ctrl-Z":
            os.write(ours, b"\x1a")
            read_until("\x1b[?1049l")
            seen = b""
            read_until(topic)
        if end == "SIGTERM":
            process.terminate()
        else:
            os.write(ours, b"q")
        # It waits for its output to be read.
        while process.poll() is None:
            ready, _, _ = select.select([ours], [], [], 0.1)
            seen += os.read(ours, 65_536) if ready else b""
        assert process.returncode == (143 if end == "SIGTERM" else 0)
        assert b"\x1b[?1049l" in seen  # the screen of before is back
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_csv_lists_and_exit_statuses(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """CSV has every field, and a group is listed with its state.

    0 fine, 1 trouble found, 2 wrong usage, 3 not complete.
    """
    topic = new_topic(2)
    produce(kafka, topic, 0, 10)
    commit(kafka, group, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0})
    ran = run(kafka, "lag", group, "--csv")
    assert ran.status == 0, ran.err
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    seen = [(row["partition"], row["committed"], row["lag"]) for row in rows]
    assert seen == [("0", "4", "6"), ("1", "0", "0")]
    listed = {each["name"]: each for each in run(kafka, "groups", "--json").json()["groups"]}
    assert listed[group] == {"name": group, "state": "Empty", "type": "classic"}
    assert run(kafka, "lag", group).status == 0
    assert run(kafka, "lag", group, "--max-lag", "6").status == 0
    assert run(kafka, "lag", group, "--max-lag", "5").status == 1
    assert run(kafka, "lag", group, "--max-lag", "0").status == 1
    absent = run(kafka, "describe", f"{group}-absent")
    assert absent.status == 1
    assert "the group does not exist" in absent.out
    partly = run(kafka, "top", group, f"{group}-absent", "--interval", "0.5")
    assert (partly.status, group in partly.out) == (3, True)
    assert f"not watched: {group}-absent; they do not exist" in partly.err
    assert run(kafka, "lag", group, "--no-such-option").status == 2
    assert run(kafka, "describe", " bad name ").status == 2
    assert run(kafka, "lag", group, "--service", "http://127.0.0.1:1").status == 2
    commit(kafka, group, {TopicPartition(topic, 0): 400})
    beyond = run(kafka, "describe", group)
    assert beyond.status == 1
    assert "OFFSET_OUTSIDE_LOG" in beyond.out
    assert "Committed by: no member of the group" in beyond.out


def test_history_reports_commits_behind_an_open_transaction(
    kafka: DevKafka, topic: str, group: str
) -> None:
    """It is of another group, in the same partition of the log; and a lost Kafka has an address."""
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    commit(kafka, group, {TopicPartition(topic, 0): 5})
    producer = Producer({**servers, "transactional.id": group})
    count = len(producer.list_topics(TOPIC, WAIT_S).topics[TOPIC].partitions)
    others = (f"{group}-{number}" for number in itertools.count())
    same = (name for name in others if partition_of(name, count) == partition_of(group, count))
    outsider = Consumer({**servers, "group.id": next(same)})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    member = outsider.consumer_group_metadata()
    producer.send_offsets_to_transaction([KafkaPartition(topic, 0, 7)], member, WAIT_S)
    commit(kafka, group, {TopicPartition(topic, 0): 3})
    first, last = run(kafka, "history", group, "--json").json()["steps"]
    assert (first["to"], last["from"], last["to"], last["change"]) == (5, 5, 3, "hidden")
    producer.abort_transaction(WAIT_S)
    outsider.close()
    until(lambda: "backward" in run(kafka, "history", group).out)
    gone = run_alone("history", group, "--bootstrap-servers", "127.0.0.1:1", "--timeout", "2")
    assert (gone.status, "127.0.0.1:1" in gone.err) == (3, True)
