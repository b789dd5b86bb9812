"""Tables that change under a view or a lookup: transactions, partitions, topics, rights, time."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from offsetmgr.answers import PartitionLog, TopicLog
from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.kafka.log_reader import open_reader
from offsetmgr.streams import TopicManager, codecs
from offsetmgr.streams.lookups import rows_of
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.partition_table import TableState
from offsetmgr.streams.storage import LmdbStorage
from offsetmgr.streams.view import View, ViewState
from tests.conftest import create_topic
from tests.kafka.messages import produce
from tests.kafka.mock_cluster import MockCluster
from tests.secured import allow, user_login
from tests.tables import Transactional, delete, grow, send
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have views look at their topics more often."""
    monkeypatch.setattr("offsetmgr.streams.table_reader.LOOK_S", 0.2)


def view_of(kafka: DevKafka, topic: str, path: Path | None = None) -> View:
    storage = MemoryStorage() if path is None else None
    return View(kafka.bootstrap_servers, topic, codecs.String(), path, storage=storage)


def looked_up(kafka: DevKafka, topic: str, key: str) -> bytes | None:
    return rows_of({"bootstrap.servers": kafka.bootstrap_servers}, topic).get(key.encode())


@pytest.mark.usefixtures("quick")
class TestTransactions:
    def test_a_view_is_not_running_while_a_transaction_hides_committed_rows(
        self, kafka: DevKafka, new_topic: TopicFactory, unique_name: str, tmp_path: Path
    ) -> None:
        """It says which offset it waits for, over HTTP too; lookups take what is committed."""
        topic = new_topic(1)
        send(kafka, topic, ("a", "1"))
        hanging, other = (Transactional(kafka, f"{unique_name}-{n}") for n in (1, 2))
        hanging.write((topic, "x", "9"))
        other.write((topic, "a", "2"))
        other.end(commits=True)
        assert looked_up(kafka, topic, "a") == b"1"
        with view_of(kafka, topic, tmp_path) as view:
            hides = "an open transaction hides the messages from offset 1 on"
            eventually(lambda: view.stats().partitions[0].error, hides)
            (part,) = view.stats().partitions
            assert (part.next_offset, part.last_stable_offset, part.high_watermark) == (1, 1, 4)
            assert (part.lag, part.recovery) == (3, 0.25)
            assert (view.state, view.has_caught_up) == (ViewState.CATCH_UP, False)
            with pytest.raises(OffsetTimeoutError, match=hides):
                view.wait_until_running(0.1)
            hanging.end(commits=False)
            view.wait_until_running(WAIT_S)
            assert dict(view) == {"a": "2"}
            eventually(lambda: view.stats().lag, 0)
            assert view.stats().partitions[0].error is None
            # One that begins later does not end the state.
            hanging.write((topic, "x", "9"))
            eventually(lambda: view.stats().partitions[0].lag, 1)
            assert view.state is ViewState.RUNNING
            hanging.end(commits=True)
            eventually(lambda: view.get("x"), "9")
        eventually(lambda: looked_up(kafka, topic, "a"), b"2")

    def test_a_view_is_as_far_as_its_last_partition(
        self, kafka: DevKafka, new_topic: TopicFactory, unique_name: str, tmp_path: Path
    ) -> None:
        """Until that one has caught up, rows of the others can be read, and are followed.

        A lookup does not wait for the transaction, though nothing is committed before it.
        """
        topic = new_topic(3)
        hanging = Transactional(kafka, unique_name)
        hanging.write((topic, "b", "1"), partition=1)
        assert looked_up(kafka, topic, "b") is None
        with view_of(kafka, topic, tmp_path) as view:
            for number in (0, 2):
                send(kafka, topic, (f"{number}", "1"), partition=number)
            ahead = [TableState.RUNNING, TableState.RECOVERING, TableState.RUNNING]
            eventually(lambda: [part.state for part in view.stats().partitions], ahead)
            assert (view.state, view.recovered) == (ViewState.CATCH_UP, False)
            eventually(lambda: dict(view), {"0": "1", "2": "1"})
            with pytest.raises(OffsetTimeoutError, match=r"within 0.01 s, but catch_up"):
                view.wait_until_running(0.01)
            hanging.end(commits=True)
            view.wait_until_running(WAIT_S)
            assert view.get("b") == "1"
        eventually(lambda: looked_up(kafka, topic, "b"), b"1")


@pytest.mark.usefixtures("quick")
class TestPartitionsAndTopics:
    def test_added_partitions_are_read(
        self, kafka: DevKafka, new_topic: TopicFactory, tmp_path: Path
    ) -> None:
        """Live and after a restart, by views and by lookups."""
        topic = new_topic(1)
        send(kafka, topic, ("0", "old"))
        assert looked_up(kafka, topic, "0") == b"old"
        expected = {str(number): "new" for number in range(4)}
        with view_of(kafka, topic, tmp_path) as view:
            view.wait_until_running(WAIT_S)
            grow(kafka, topic, 3)
            for number in range(3):
                send(kafka, topic, (str(number), "new"), partition=number)
            eventually(lambda: dict(view), dict.fromkeys("012", "new"))
            view.wait_until_running(WAIT_S)
            assert len(view.stats().partitions) == 3
        grow(kafka, topic, 4)
        send(kafka, topic, ("3", "new"), partition=3)
        with view_of(kafka, topic, tmp_path) as view:
            view.wait_until_running(WAIT_S)
            assert dict(view) == expected
        eventually(
            lambda: {key: looked_up(kafka, topic, key) for key in expected},
            dict.fromkeys(expected, b"new"),
        )

    @pytest.mark.parametrize(("messages", "waits"), [(2, True), (6, False)])
    def test_a_recreated_table_is_read_from_its_beginning(
        self, kafka: DevKafka, unique_name: str, tmp_path: Path, messages: int, *, waits: bool
    ) -> None:
        """The new log may be shorter or longer; live and after a restart.

        A view that waits for its deleted topic says so, and its rows can be read meanwhile.
        """
        create_topic(kafka, unique_name, 2)
        old, new = {"a": "1", "b": "2", "c": "3"}, {f"n{n}": "1" for n in range(messages - 1)}
        send(kafka, unique_name, *old.items(), partition=0)
        send(kafka, unique_name, ("d", "4"), partition=1)
        assert looked_up(kafka, unique_name, "a") == b"1"
        with view_of(kafka, unique_name, tmp_path / "lmdb") as view:
            view.wait_until_running(WAIT_S)
            delete(kafka, unique_name)
            if waits:
                eventually(lambda: view.state, ViewState.CONNECTING)
                assert "does not exist" in (view.stats().partitions[0].error or "")
                assert dict(view) == {**old, "d": "4"}
            create_topic(kafka, unique_name, 1)
            send(kafka, unique_name, ("a", "9"), *new.items())
            eventually(lambda: dict(view), {"a": "9", **new})
            view.wait_until_running(WAIT_S)
            assert view.stats().lag == 0
        eventually(lambda: looked_up(kafka, unique_name, "a"), b"9")
        assert looked_up(kafka, unique_name, "b") is None
        delete(kafka, unique_name)
        create_topic(kafka, unique_name, 3)
        send(kafka, unique_name, ("z", "1"), *new.items(), partition=2)
        with view_of(kafka, unique_name, tmp_path / "lmdb") as view:
            view.wait_until_running(WAIT_S)
            assert dict(view) == {"z": "1", **new}

    def test_a_table_that_an_unclean_election_has_cut_is_read_from_its_beginning(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The new log may be longer than what is stored: only its leader epochs tell."""

        def logs_of(*_: object) -> dict[str, TopicLog]:  # the mock cluster describes no topics
            with closing(open_reader(kafka.bootstrap_servers)) as reader:
                ends = reader.get_watermark_offsets(TopicPartition("table", 0), WAIT_S)
            return {"table": TopicLog({0: PartitionLog(*ends, last_stable_offset=ends[1])})}

        monkeypatch.setattr("offsetmgr.streams.table_reader.logs_of", logs_of)
        with MockCluster(2) as kafka:
            kafka.create_topic("table")
            view = View(kafka.bootstrap_servers, "table", codecs.String(), tmp_path, timeout_s=1.0)
            kafka.set_leader("table", 1)
            produce(kafka, "table", range(1), partitions=1, keys=5)
            with view:
                view.wait_until_running(WAIT_S)
            store = LmdbStorage(tmp_path)
            store.open("table", "")
            store.apply({b"lost": b"1"}, {0: 2})  # the next leader does not have them
            store.close()
            kafka.set_leader("table", 2)
            produce(kafka, "table", range(1, 5), partitions=1, keys=5)
            with view:
                eventually(lambda: dict(view), {f"key-{n}": str(n) for n in range(5)})

    @pytest.mark.parametrize("away_s", [10.0, 3_600.0])
    def test_a_view_away_for_longer_than_tombstones_stay_starts_over(
        self,
        kafka: DevKafka,
        unique_name: str,
        tmp_path: Path,
        away_s: float,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A row whose tombstone it has missed is not served; after a shorter time it goes on."""
        with TopicManager(kafka.bootstrap_servers) as topics:
            config = {"cleanup.policy": "compact", "delete.retention.ms": "1800000"}
            topics.ensure_topic(unique_name, 1, config)
        send(kafka, unique_name, ("a", "1"))
        began_s = time.time()
        with view_of(kafka, unique_name, tmp_path) as view:
            view.wait_until_running(WAIT_S)
        store = LmdbStorage(tmp_path)
        store.open(unique_name, "")
        assert began_s <= (store.seen_s() or 0) <= time.time()
        # As if the tombstone of "ghost" had been compacted away meanwhile.
        store.apply({b"ghost": b"2"}, {})
        store.note_seen(time.time() - away_s)
        store.close()
        with caplog.at_level(logging.WARNING), view_of(kafka, unique_name, tmp_path) as view:
            view.wait_until_running(WAIT_S)
            ghost = {} if away_s > 1_800 else {"ghost": "2"}
            assert dict(view) == {"a": "1", **ghost}
        assert ("tombstones stay in it for 1800 s" in caplog.text) is (not ghost)


@pytest.fixture
def granted(kafka: DevKafka, unique_name: str) -> None:
    """Let the user read the topic, and nothing else."""
    create_topic(kafka, unique_name, 1)
    allow(kafka, ResourceType.TOPIC, unique_name, AclOperation.READ, AclOperation.DESCRIBE)


@pytest.mark.usefixtures("granted")
def test_a_view_needs_rights_to_its_topic_alone(
    kafka: DevKafka, unique_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those to its group and to settings are named once, and it runs without them."""
    send(kafka, unique_name, ("a", "1"))
    with View(user_login(kafka), unique_name, codecs.String(), storage=MemoryStorage()) as view:
        view.wait_until_running(WAIT_S)
        assert dict(view) == {"a": "1"}
        group = f"does not let this user DESCRIBE the group offsetmgr-view; topic {unique_name}"
        eventually(lambda: group in caplog.text, expected=True)
        send(kafka, unique_name, ("a", "2"))
        eventually(lambda: view.get("a"), "2")
    assert "delete.retention.ms of one day is assumed" in caplog.text
    assert caplog.text.count(group) == 1


@pytest.mark.usefixtures("granted")
def test_an_unreadable_lookup_table_fails_no_single_message(
    kafka: DevKafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch begins once its tables can be read, or fails with the right that is missing."""
    send(kafka, unique_name, ("a", "1"))
    assert rows_of(user_login(kafka), unique_name).get(b"a") == b"1"
    monkeypatch.setattr("offsetmgr.streams.lookups.RECOVERY_S", 0.5)
    unread = f"{unique_name}-unread"
    create_topic(kafka, unread, 1)
    send(kafka, unread, ("a", "1"))
    allow(kafka, ResourceType.TOPIC, unread, AclOperation.DESCRIBE)

    def failure() -> str:
        with pytest.raises(OffsetTimeoutError) as late:
            rows_of(user_login(kafka), unread)
        return str(late.value)

    until(lambda: f"lacks READ on topic {unread}" in failure())


EXIT = """
import sys, threading

def wait():
    for thread in threading.enumerate():
        if thread.name.startswith("table-"):
            thread.join()

# Registered before the pool's, it is called after that, as if the process took long to end.
threading._register_atexit(wait)
from offsetmgr.streams import MemoryStorage, View, codecs, table_reader

table_reader.LOOK_S = 0.0
view = View(sys.argv[1], sys.argv[2], codecs.String(), storage=MemoryStorage()).start()
view.wait_until_running()
"""


def test_a_view_does_not_fail_at_the_end_of_its_process(kafka: DevKafka, topic: str) -> None:
    """It, or a lookup of Spark's, was reported as no longer read, with a traceback."""
    command = [sys.executable, "-c", EXIT, kafka.bootstrap_servers, topic]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
