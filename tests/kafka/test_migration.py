"""Offsets copied to a real mirror: nothing skipped, and what is read again is counted."""

from __future__ import annotations

import json
import struct
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from offsetmgr import LocalOffsets
from offsetmgr.admin.migration import OffsetMigration
from offsetmgr.errors import OffsetConflictError
from tests.commands import Ran, run_alone
from tests.conftest import create_topic
from tests.kafka.messages import delete_records
from tests.tables import delete
from tests.unit.spark.checkpoints import WrittenCheckpoint
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka

COUNT = 300
SKIPPED = 40
"""First records of partition 1, which the mirror does not have."""


class Mirrored:
    """A topic in ``west`` and its mirror in ``east``, made as MirrorMaker 2 makes it.

    Partition 0 is mirrored whole, with five records of one time each; partition 1 but for its
    first records; partition 2 only up to record 100; partition 3 is empty.
    """

    def __init__(self, west: DevKafka, east: DevKafka, name: str, folder: Path) -> None:
        self.west, self.east = west, east
        self.names = f"west-{name[-8:]}", f"east-{name[-8:]}"
        self.topic, self.mirror = name, f"{self.names[0]}.{name}"
        create_topic(west, self.topic, 4)
        create_topic(east, self.mirror, 4)
        here = Producer({"bootstrap.servers": west.bootstrap_servers})
        there = Producer({"bootstrap.servers": east.bootstrap_servers})
        # Older records than a week would be deleted by the broker when it next looks.
        hour_ago_ms = int(time.time() - 3_600) * 1_000
        for number in range(COUNT):
            for partition in range(3):
                value = f"{partition}/{number}{' ' * 40}"  # longer than a digest
                at_ms = hour_ago_ms + number // (5 if partition == 0 else 1)
                arguments: dict[str, Any] = {"partition": partition, "timestamp": at_ms}
                here.produce(self.topic, value, **arguments)
                left_out = (partition == 1 and number < SKIPPED) or (
                    partition == 2 and number >= 100
                )
                if not left_out:
                    there.produce(self.mirror, value, **arguments)
        assert here.flush(WAIT_S) == 0
        assert there.flush(WAIT_S) == 0
        self.config = folder / "clusters.toml"
        self.config.write_text(
            "".join(
                f'[clusters.{each}]\n"bootstrap.servers" = "{kafka.bootstrap_servers}"\n'
                for each, kafka in zip(self.names, (west, east), strict=True)
            )
        )

    def sync(self, partition: int, source: int, target: int) -> None:
        """Write what MirrorMaker writes to its offset-syncs topic, in the source."""
        topic = f"mm2-offset-syncs.{self.names[1]}.internal"
        create_topic(self.west, topic, 1)
        name = self.topic.encode()
        key = struct.pack(">h", len(name)) + name + struct.pack(">i", partition)
        producer = Producer({"bootstrap.servers": self.west.bootstrap_servers})
        producer.produce(topic, None, b"\xff\xff of somebody else")
        producer.produce(topic, struct.pack(">qq", source, target), key)
        assert producer.flush(WAIT_S) == 0

    def types(self, *arguments: str) -> Ran:
        names = ["--from", self.names[0], "--to", self.names[1], "--config", str(self.config)]
        names += ["--timeout", f"{WAIT_S}"]
        return run_alone("clusters", "copy-offsets", *names, *arguments)

    def copy(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        done = self.types("--json", *arguments)
        assert done.status == status, done.output
        found: dict[str, Any] = done.json()
        return found


@pytest.fixture(scope="module")
def mirrored(
    breakable_kafka: DevKafka, second_kafka: DevKafka, tmp_path_factory: pytest.TempPathFactory
) -> Mirrored:
    """A mirror without offset syncs, for all tests that write none."""
    name = f"mirrored-{uuid.uuid4().hex[:8]}"
    return Mirrored(breakable_kafka, second_kafka, name, tmp_path_factory.mktemp("clusters"))


@pytest.fixture
def synced(
    breakable_kafka: DevKafka, second_kafka: DevKafka, unique_name: str, tmp_path: Path
) -> Mirrored:
    """A mirror of one test, which writes offset syncs."""
    return Mirrored(breakable_kafka, second_kafka, unique_name, tmp_path)


def committed(kafka: DevKafka, group: str, offsets: dict[tuple[str, int], int]) -> None:
    with LocalOffsets(kafka.bootstrap_servers) as client:
        client.submit(group, offsets, sync=True, timeout=WAIT_S)


def first_read(kafka: DevKafka, group: str, topic: str, partitions: set[int]) -> dict[int, str]:
    """Return the first value that a member of the group reads of each partition."""
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    found: dict[int, str] = {}
    try:
        while found.keys() < partitions:
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            found.setdefault(message.partition() or 0, (message.value() or b"").decode().strip())
    finally:
        consumer.close()
    return found


def by_partition(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {each["partition"]: each for each in answer["partitions"]}


def test_a_group_goes_on_in_the_mirror_where_it_was(mirrored: Mirrored, group: str) -> None:
    """The records' times decide; the plan changes nothing; the counted records are read again."""
    offsets = {(mirrored.topic, n): at for n, at in ((0, 152), (1, 200), (2, 250), (3, 0))}
    committed(mirrored.west, group, offsets)
    plan = mirrored.copy(group, status=3)
    rows = by_partition(plan)
    assert {each["mirror"] for each in rows.values()} == {mirrored.mirror}
    assert [rows[0][each] for each in ("new", "again", "by")] == [152, 0, "time"]
    assert [rows[1][each] for each in ("new", "again", "by")] == [200 - SKIPPED, 0, "time"]
    assert rows[2]["new"] is None
    assert "not yet" in rows[2]["note"]
    assert [rows[3][each] for each in ("new", "again", "by")] == [0, 0, "end"]
    assert not plan["executed"]
    with LocalOffsets(mirrored.east.bootstrap_servers) as client:
        assert client.committed(group) == {}
    assert mirrored.copy(group, "--execute", status=3)["executed"]
    found = first_read(mirrored.east, group, mirrored.mirror, {0, 1})
    assert found == {0: "0/152", 1: "1/200"}
    again = by_partition(mirrored.copy(group, status=3))
    assert {n: each["current"] for n, each in again.items()} == {
        n: each["new"] for n, each in rows.items()
    }


def test_mirrormakers_offset_syncs_are_used_where_they_are_nearer(
    synced: Mirrored, group: str
) -> None:
    """The mirror does not have the next record of partition 2."""
    synced.sync(2, 50, 50)
    synced.sync(2, 99, 99)
    synced.sync(1, 150, 150 - SKIPPED)
    offsets = {(synced.topic, n): at for n, at in ((2, 153), (1, 200))}
    committed(synced.west, group, offsets)
    rows = by_partition(synced.copy(group))
    assert [rows[2][each] for each in ("new", "again", "by")] == [100, 53, "offset sync"]
    assert [rows[1][each] for each in ("new", "again", "by")] == [200 - SKIPPED, 0, "time"]


def test_a_group_at_the_end_reads_nothing_again(mirrored: Mirrored, group: str) -> None:
    """The record before the end is found in the mirror; the next one is what comes after it."""
    committed(mirrored.west, group, {(mirrored.topic, 1): COUNT})
    (row,) = mirrored.copy(group)["partitions"]
    assert [row[each] for each in ("new", "again")] == [COUNT - SKIPPED, 0]


def test_retention_and_markers_do_not_hide_the_next_record(mirrored: Mirrored, group: str) -> None:
    """Transactions end in offsets without records; logs are emptied in the source or the mirror."""
    topic = f"{mirrored.topic}-2"
    for kafka in (mirrored.west, mirrored.east):
        create_topic(kafka, topic, 4)
    here = Producer(
        {"bootstrap.servers": mirrored.west.bootstrap_servers, "transactional.id": topic}
    )
    there = Producer({"bootstrap.servers": mirrored.east.bootstrap_servers})
    now_ms = int(time.time() * 1_000)
    here.init_transactions(WAIT_S)
    for number in range(30):
        if number % 10 == 0:
            here.begin_transaction()
        for partition in range(4):
            arguments: dict[str, Any] = {"partition": partition, "timestamp": now_ms + number}
            here.produce(topic, str(number), **arguments)
            there.produce(topic, str(number), **arguments)
        if number % 10 == 9:
            here.commit_transaction(WAIT_S)
    assert there.flush(WAIT_S) == 0
    delete_records(mirrored.west, topic, {1: 33, 3: 15})
    delete_records(mirrored.east, topic, {2: 30})
    # Each transaction of ten records has a marker behind them.
    offsets = {(topic, 0): 27, (topic, 1): 33, (topic, 2): 20, (topic, 3): 10}
    committed(mirrored.west, group, offsets)
    rows = by_partition(mirrored.copy(group, status=3))
    assert {n: each["new"] for n, each in rows.items()} == {0: 25, 1: 30, 2: 30, 3: None}
    assert rows[0]["again"] == rows[1]["again"] == 0
    assert "the source has deleted the records from 10 to 15" in rows[3]["note"]


def test_topics_without_a_mirror_are_left_alone(mirrored: Mirrored, group: str) -> None:
    """A topic of the same name with other records is none, and one that does not exist."""
    other = f"other-{mirrored.topic}"
    alone = f"alone-{mirrored.topic}"
    for kafka, topics in ((mirrored.west, [other, alone]), (mirrored.east, [other])):
        for topic in topics:
            create_topic(kafka, topic, 1)
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            for number in range(10):
                producer.produce(topic, f"{kafka.bootstrap_servers} {number}")
            assert producer.flush(WAIT_S) == 0
    committed(mirrored.west, group, {(other, 0): 5, (alone, 0): 5})
    plan = mirrored.copy(group, "--execute", status=3)
    notes = {each["topic"]: (each["new"], each["note"]) for each in plan["partitions"]}
    assert notes[alone][0] is None
    assert "does not exist in east" in notes[alone][1]
    assert notes[other][0] is None
    with LocalOffsets(mirrored.east.bootstrap_servers) as client:
        assert (alone, 0) not in client.committed(group)


def test_a_group_without_offsets_is_refused(mirrored: Mirrored, group: str) -> None:
    """A mistyped name does not look like a copy that is done."""
    done = mirrored.types(group, "--execute")
    assert done.status == 2, done.output
    assert "has no committed offsets in west-" in done.err


def test_a_copy_within_a_cluster_is_refused(mirrored: Mirrored, group: str, tmp_path: Path) -> None:
    """Also if its address is written in another way: a topic there is no mirror of itself."""
    committed(mirrored.west, group, {(mirrored.topic, 0): 5})
    config, port = tmp_path / "one.toml", mirrored.west.bootstrap_servers.rpartition(":")[2]
    servers = mirrored.west.bootstrap_servers, f"localhost:{port}"
    tables = (
        f'[clusters.c{n}]\n"bootstrap.servers" = "{each}"\n' for n, each in enumerate(servers)
    )
    config.write_text("".join(tables))
    for target in ("c0", "c1"):
        words = ["--from", "c0", "--to", target, "--config", str(config), "--execute"]
        done = run_alone("clusters", "copy-offsets", group, *words)
        assert done.status == 2
        assert f"--to '{target}' is the cluster of --from: topic {mirrored.topic}" in done.err


def test_a_copy_to_a_topic_recreated_since_its_plan_is_refused(
    mirrored: Mirrored, group: str
) -> None:
    """As a reset is: the planned offsets are of the former log."""
    topic = f"{mirrored.topic}-3"
    for kafka in (mirrored.west, mirrored.east):
        create_topic(kafka, topic, 1)
    committed(mirrored.west, group, {(topic, 0): 0})
    west: dict[str, object] = {"bootstrap.servers": mirrored.west.bootstrap_servers}
    east: dict[str, object] = {"bootstrap.servers": mirrored.east.bootstrap_servers}
    with OffsetMigration(("west", west), ("east", east), timeout_s=WAIT_S) as migration:
        plan = migration.plan_group(group)
        delete(mirrored.east, topic)
        create_topic(mirrored.east, topic, 1)
        with pytest.raises(OffsetConflictError, match="deleted or recreated"):
            migration.execute(group, plan)


def test_topics_with_the_same_mirror_are_left_alone(mirrored: Mirrored, group: str) -> None:
    """``orders`` and ``west.orders`` of west would both be ``west.orders`` in east."""
    create_topic(mirrored.west, mirrored.mirror, 1)
    committed(mirrored.west, group, {(mirrored.topic, 0): 5, (mirrored.mirror, 0): 0})
    rows = mirrored.copy(group, "--execute", status=3)["partitions"]
    note = "another topic of the group has the same mirror; left as it is"
    assert [row["note"] for row in rows] == [note, note]


def test_a_spark_query_goes_on_in_the_mirror(synced: Mirrored, tmp_path: Path) -> None:
    """Its checkpoint becomes the startingOffsets of the mirror's topic."""
    checkpoint = WrittenCheckpoint(tmp_path / "checkpoint")
    checkpoint.batch(0, {synced.topic: {"0": 153, "1": 200, "2": 50, "3": 0}})
    synced.sync(0, 153, 153)
    answer = synced.copy("--checkpoint", str(checkpoint.root))
    assert json.loads(answer["startingOffsets"]) == {
        synced.mirror: {"0": 153, "1": 200 - SKIPPED, "2": 50, "3": 0}
    }
