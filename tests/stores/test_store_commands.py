"""A group in a database, for operators: the same commands as for one in Kafka."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx

from offsetmgr import LocalOffsets, OffsetClient
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.commands import run_alone
from tests.kafka.messages import produce
from tests.service.support import serve_process
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

RECORDS = 10


def run(*arguments: str, status: int = 0) -> str:
    done = run_alone(*arguments)
    assert done.status == status, done.output
    return done.output


def test_init_makes_the_tables_or_prints_them(database: str, tmp_path: Path) -> None:
    """The printed SQL makes tables that the store can use."""
    run("store", "init", database)
    run("store", "init", database)
    with SqlOffsetStore(database) as store:
        store.check()
    printed = run("store", "init", f"sqlite:///{tmp_path}/a.db", "--print")
    assert not (tmp_path / "a.db").exists()
    with SqlOffsetStore(f"sqlite:///{tmp_path}/b.db") as store:
        with store.engine.begin() as connection:
            for statement in printed.split(";"):
                if statement.strip():
                    connection.exec_driver_sql(statement)
        store.commit_offset("etl", "orders", 0, 1)


def test_a_group_is_described_and_reset(
    kafka: DevKafka, new_topic: TopicFactory, group: str, database: str
) -> None:
    """LocalOffsets commits it to the database, where the commands find it; Kafka knows nothing."""
    topic = new_topic()
    produce(kafka, topic, range(RECORDS), partitions=1)
    run("store", "init", database)
    with LocalOffsets(kafka.bootstrap_servers, store=database) as offsets:
        offsets.submit(group, {(topic, 0): 4}, sync=True, timeout=WAIT_S)
        assert offsets.committed(group, timeout=WAIT_S)[
            TopicPartition(topic, 0)
        ] == OffsetAndMetadata(4)
    place = ["--store", database, "--bootstrap-servers", kafka.bootstrap_servers, "--timeout=60"]
    described = json.loads(run("describe", group, "--json", *place))["groups"][0]
    assert (described["state"], described["lag"]) == ("Empty", RECORDS - 4)
    assert "***" in described["coordinator"] or "@" in described["coordinator"]
    assert f"Lag: {RECORDS - 4} records" in run("describe", group, *place)
    assert group in run("lag", *place)
    assert group in run("groups", *place)
    run("describe", f"{group}-2", *place, status=1)
    reset = ["reset", group, "--all-topics", "--to-offset", "7", *place]
    run(*reset)
    with SqlOffsetStore(database) as store:
        assert store.fetch_offset(group, topic, 0) == OffsetAndMetadata(4)
        run(*reset, "--execute")
        assert store.fetch_offset(group, topic, 0) == OffsetAndMetadata(7)
        run("set", group, f"{topic}:0=2", "--execute", *place)
        assert store.fetch_offset(group, topic, 0) == OffsetAndMetadata(2)
    with ClusterReader(kafka.bootstrap_servers, timeout_s=WAIT_S) as reader:
        assert reader.committed([group]) == {group: {}}
    run("reset", group, "--to-history", "1h", "--all-topics", *place, status=2)
    missing = ["--store", "postgresql://me@127.0.0.1:1/none", *place[2:-1], "--timeout=1"]
    assert "STORE_FAILED" in run("describe", group, *missing, status=3)


def test_a_store_that_hangs_keeps_no_command_beyond_its_time(
    kafka: DevKafka, group: str, database: str
) -> None:
    """Such as one whose tables are locked; the error names the database, not Kafka."""
    run("store", "init", database)
    place = ["--store", database, "--bootstrap-servers", kafka.bootstrap_servers]
    with SqlOffsetStore(database) as store, store.engine.connect() as locking:
        locking.exec_driver_sql("LOCK TABLE offsetmgr_offsets IN ACCESS EXCLUSIVE MODE")
        assert "STORE_FAILED" in run("lag", group, "--timeout=1", *place, status=3)
        assert "STORE_FAILED" in run("groups", "--timeout=1", *place, status=3)
        locking.rollback()
    run("lag", group, "--timeout=60", *place, status=1)


def test_the_service_keeps_groups_in_the_database(
    kafka: DevKafka, new_topic: TopicFactory, group: str, database: str
) -> None:
    """Clients notice nothing; lag and metrics find the group there, also behind the service."""
    topic = new_topic()
    produce(kafka, topic, range(RECORDS), partitions=1)
    run("store", "init", database)
    env = {
        "OFFSETMGR_STORE": database,
        "OFFSETMGR_WATCH__GROUPS": ".*",
        "OFFSETMGR_WATCH__INTERVAL_S": "1",
    }
    options = ["--listen", "127.0.0.1:0", "--bootstrap-servers", kafka.bootstrap_servers]
    with serve_process(*options, env=env) as service:
        with OffsetClient(service.address, name=group) as client:
            client.submit(group, {(topic, 0): 4}, sync=True, timeout=WAIT_S)
            committed = client.committed(group, timeout=WAIT_S)
        assert committed[TopicPartition(topic, 0)] == OffsetAndMetadata(4)
        report = json.loads(run("describe", group, "--json", "--service", service.address))
        assert report["groups"][0]["lag"] == RECORDS - 4
        wanted = f'group="{group}"'
        until(lambda: _lines(service.address, "lag", wanted))
        assert service.stop() == 0
    with SqlOffsetStore(database) as store:
        assert store.fetch_offset(group, topic, 0) == OffsetAndMetadata(4)


def _lines(address: str, *words: str) -> list[Any]:
    text = httpx.get(f"{address}/metrics", timeout=WAIT_S).text
    return [line for line in text.splitlines() if all(word in line for word in words)]
