"""Members of a group are killed while they store messages in PostgreSQL."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from offsetmgr.stores.sql import OFFSETS, SqlOffsetStore
from tests.conftest import create_topic
from tests.kafka.messages import filled, produce
from tests.stores.database_member import RESULTS, TABLES
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

MEMBERS = 2
MEMBER = Path(__file__).with_name("database_member.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "database_consumer.py"


class Members:
    """The members of a group, and a judge of what they store."""

    def __init__(self, kafka: DevKafka, group: str, database: str, stack: ExitStack) -> None:
        self._brokers = kafka.bootstrap_servers
        self._group = group
        self._database = database
        self._stack = stack
        self._processes: list[subprocess.Popen[bytes]] = []
        self._store = stack.enter_context(SqlOffsetStore(database))
        self._store.create_tables()
        TABLES.create_all(self._store.engine)

    def fill_up(self) -> None:
        """Start a member in the place of each that has ended: killed, or fenced by another."""
        self._processes = [each for each in self._processes if each.poll() is None]
        while len(self._processes) < MEMBERS:
            arguments = [self._brokers, self._group, self._group, self._database]
            process = subprocess.Popen([sys.executable, str(MEMBER), *arguments])
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)
            self._processes.append(process)

    def kill(self, index: int) -> None:
        self._processes[index].kill()

    def rows(self) -> int:
        """Return the number of rows; each partition has as many as its offset says, from 0 on."""
        offsets = select(OFFSETS.c.partition_id, func.coalesce(OFFSETS.c.next_offset, 0))
        results = select(
            RESULTS.c.partition_id,
            func.count(),
            func.count(RESULTS.c.message_offset.distinct()),
            func.max(RESULTS.c.message_offset) + 1,
        ).group_by(RESULTS.c.partition_id)
        # One snapshot for both.
        with self._store.engine.connect().execution_options(
            isolation_level="REPEATABLE READ"
        ) as connection:
            stored = {partition: counts for partition, *counts in connection.execute(results)}
            for partition, offset in connection.execute(offsets):
                assert stored.get(partition, [0, 0, 0]) == [offset] * 3
                stored.pop(partition, None)
            assert stored == {}
            return connection.scalar(select(func.count()).select_from(RESULTS)) or 0

    def wait_for(self, count: int) -> None:
        def is_stored() -> bool:
            self.fill_up()
            return self.rows() >= count

        until(is_stored)


@pytest.mark.parametrize(
    ("messages", "kills"),
    [
        (600, 2),
        pytest.param(20_000, 30, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_killed_members_store_each_message_once(
    kafka: DevKafka, group: str, database: str, messages: int, kills: int
) -> None:
    """Rows and offsets agree at every moment of random kills, and each row is there."""
    rng = random.Random(messages)  # noqa: S311
    filled(kafka, group, messages)
    with ExitStack() as stack:
        members = Members(kafka, group, database, stack)
        for number in range(1, kills + 1):
            portion = messages // (kills + 1)
            members.wait_for(portion * number - rng.randrange(portion))
            members.kill(rng.randrange(MEMBERS))
        members.wait_for(messages)
        assert members.rows() == messages


def test_the_example_stores_each_message_once(kafka: DevKafka, group: str, database: str) -> None:
    """Stopped and started again, it goes on where its rows end."""
    create_topic(kafka, group, 1)
    options = {
        "--bootstrap-servers": kafka.bootstrap_servers,
        "--topic": group,
        "--group": group,
        "--database": database,
        "--records": "40",
    }
    command = [sys.executable, str(EXAMPLE), *(word for each in options.items() for word in each)]
    for count in (40, 80):
        produce(kafka, group, range(count - 40, count), partitions=1)
        done = subprocess.run(command, check=True, timeout=WAIT_S, capture_output=True, text=True)
        assert f"{count} messages in the table" in done.stdout
