"""A partition of a view over a log in memory: states, back-off, errors; time is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message

from actors.testing import SimSystem
from offsetmgr.errors import KafkaRequestError, error_info
from offsetmgr.streams.errors import TopicsError
from offsetmgr.streams.partition_table import (
    PartitionTable,
    PendingRows,
    Progress,
    ReconnectBackoff,
    TablePlan,
    TableState,
    start_offset,
)
from offsetmgr.streams.storage import MemoryStorage
from offsetmgr.types import PartitionRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.streams.messages import Message as TableMessage


def refusal(code: int) -> KafkaRequestError:
    return KafkaRequestError("log of t/0", error_info(code))


class Log:
    """The log of one partition, and the connection to it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.first = 0
        self.error: KafkaRequestError | TopicsError | None = None
        self.asked = 0
        self.opened: list[int] = []
        self.batch = 3
        self._at = 0

    def write(self, key: bytes, value: bytes | None) -> None:
        self.messages.append(
            Message(
                topic="t",
                partition=0,
                offset=self.first + len(self.messages),
                key=key,
                value=value,
                timestamp=(1, 1_000),
            )
        )

    def ask_range(
        self,
        partition: int,
        answer: Callable[[PartitionRange | KafkaRequestError | TopicsError], object],
    ) -> None:
        assert partition == 0
        self.asked += 1
        answer(self.error or PartitionRange(self.first, self.first + len(self.messages)))

    def open(self, partition: int, start: int) -> Log:
        assert partition == 0
        self.opened.append(start)
        self._at = start
        return self

    def read(self) -> list[Message]:
        if self.error is not None:
            raise self.error
        found = self.messages[self._at - self.first :][: self.batch]
        self._at += len(found)
        return list(found)

    def at_end(self) -> bool:
        return self._at == self.first + len(self.messages)

    def high_watermark(self) -> int:
        return self.first + len(self.messages)

    def close(self) -> None:
        """Nothing to close."""


class Table:
    def __init__(
        self,
        log: Log,
        storage: MemoryStorage | None = None,
        update: Callable[[PendingRows, TableMessage], object] | None = None,
    ) -> None:
        self.log = log
        self.storage = storage or MemoryStorage()
        self.progress = Progress(0)
        self.states: list[str] = []
        self.error: Exception | None = None
        self.system = SimSystem(seed=1)
        plan = TablePlan("t", self.storage, log, update, self._changed)
        self.ref = self.system.spawn(PartitionTable, plan, self.progress, name="t")
        self.system.advance(0.0)

    def _changed(self, _partition: int, state: TableState, error: Exception | None) -> None:
        self.states.append(state.name)
        self.error = self.error or error

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.storage.items(b"", None))


RECOVERY = ["INITIALIZING", "CONNECTING", "RECOVERING", "PREPARING", "RUNNING"]


def test_a_log_is_recovered_and_followed() -> None:
    """With tombstones, in batches; the stored offset is that of the last message."""
    log = Log()
    for number in range(10):
        log.write(b"%d" % (number % 4), b"v%d" % number)
    log.write(b"1", None)
    table = Table(log)
    assert table.states == RECOVERY
    assert table.rows() == {b"0": b"v8", b"2": b"v6", b"3": b"v7"}
    assert table.storage.offset(0) == 10
    log.write(b"1", b"new")
    table.system.advance(1.0)
    assert table.rows()[b"1"] == b"new"
    stats = table.progress.stats(table.system.clock.now())
    assert (stats.next_offset, stats.lag, stats.rows, stats.recovery) == (12, 0, 12, 1.0)
    table.ref.stop(block=False)
    table.system.run_until_idle()
    assert table.states[-1] == "STOPPED"


def test_a_restart_goes_on_after_the_stored_offset() -> None:
    """Or at the start of the log, where that is later; nothing left is recovered at once."""
    log = Log()
    log.first = 5
    for number in range(5):
        log.write(b"%d" % number, b"v")
    storage = MemoryStorage()
    storage.apply({b"old": b"row"}, {0: 6})
    assert Table(log, storage).log.opened == [7]
    assert Table(log, storage).log.opened == [7, 10]
    storage = MemoryStorage()
    storage.apply({}, {0: 2})
    table = Table(log, storage)
    assert table.log.opened[-1] == 5
    assert table.states == RECOVERY
    log = Log()
    assert Table(log).states == RECOVERY  # an empty log


@pytest.mark.parametrize(("stored", "end"), [(3, 0), (9, 9), (9, 5)])
def test_a_log_that_ends_behind_the_stored_offset_is_an_error(stored: int, end: int) -> None:
    """It says that the table might be gone; rows of another table are not served."""
    log = Log()
    for _ in range(end):
        log.write(b"k", b"v")
    storage = MemoryStorage()
    storage.apply({b"k": b"old"}, {0: stored})
    table = Table(log, storage)
    assert table.states[-1] == "STOPPED"
    assert isinstance(table.error, TopicsError)
    text = f"t/0 ends at offset {end}, but the view has stored the message at {stored}: the table "
    assert str(table.error).startswith(f"{text}might be gone")
    assert start_offset("t", 0, 9, PartitionRange(0, 10)) == 10


def test_a_lost_connection_is_made_again_with_back_off() -> None:
    """After 0, 10, 20 … 120 s; it starts over once a connection has lasted 60 s."""
    log = Log()
    log.write(b"k", b"1")
    table = Table(log)
    log.error = refusal(-195)
    table.system.advance(0.2)
    assert table.states[-1] == "CONNECTING"
    assert table.rows() == {b"k": b"1"}  # stale, but there
    assert table.progress.stats(0).error == str(log.error)
    waits = []
    for _ in range(15):
        asked, waited = log.asked, 0
        while log.asked == asked:
            table.system.advance(1.0)
            waited += 1
        waits.append(waited)
    assert waits == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 120, 120, 120]
    log.error = None
    log.write(b"k", b"2")
    table.system.advance(121.0)
    assert table.states[-1] == "RUNNING"
    assert table.rows() == {b"k": b"2"}
    assert table.progress.stats(0).error is None


def test_back_off_is_forgotten_after_a_connection_of_a_minute() -> None:
    """A shorter one does not count."""
    backoff = ReconnectBackoff()
    assert [backoff.failed(0), backoff.failed(1)] == [0, 10]
    backoff.connected(100)
    assert backoff.failed(159) == 20
    backoff.connected(200)
    assert backoff.failed(260) == 0


def test_a_topic_that_is_deleted_is_an_error() -> None:
    """Once three tries have found it missing: a broker that has just started knows no topics."""
    log = Log()
    table = Table(log)
    log.error = refusal(3)
    table.system.advance(5.0)
    assert table.states[-1] == "CONNECTING"
    table.system.advance(60.0)
    assert isinstance(table.error, TopicsError)
    assert str(table.error) == "t/0 does not exist any more: the table might be gone"


def test_a_topic_that_is_made_anew_is_an_error_at_the_next_connection() -> None:
    """Its rows stay as they were."""
    log = Log()
    log.write(b"k", b"1")
    table = Table(log)
    log.error = refusal(-195)
    table.system.advance(0.2)
    assert table.states[-1] == "CONNECTING"
    log.error = TopicsError("made anew")
    table.system.advance(10.0)
    assert table.states[-1] == "STOPPED"
    assert table.error is log.error
    assert table.rows() == {b"k": b"1"}


def test_an_update_callback_decides_what_is_stored() -> None:
    """It reads rows with its own changes; an error of it stops the partition."""

    def add(rows: PendingRows, message: TableMessage) -> None:
        if message.value is None:
            rows.delete(message.key)
        else:
            rows.put(message.key, b"%d" % (int(rows.get(message.key) or 0) + int(message.value)))

    log = Log()
    for key, value in ((b"a", b"1"), (b"a", b"2"), (b"b", b"5"), (b"b", None), (b"a", b"4")):
        log.write(key, value)
    table = Table(log, update=add)
    assert table.rows() == {b"a": b"7"}
    log.write(b"a", b"no number")
    table.system.advance(1.0)
    assert isinstance(table.error, ValueError)
    assert table.states[-1] == "STOPPED"
    assert table.storage.offset(0) == 4


def test_a_recovery_that_is_stopped_goes_on_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After what it has stored; nothing is stored once it has stopped."""
    monkeypatch.setattr("offsetmgr.streams.partition_table.MAX_BATCH", 3)
    log = Log()
    for number in range(9):
        log.write(b"%d" % number, b"v")

    def stop_at_fourth(rows: PendingRows, message: TableMessage) -> None:
        rows.put(message.key, message.value or b"")
        if message.offset == 4:
            table.ref.stop(block=False)

    storage = MemoryStorage()
    log.batch = 0
    table = Table(log, storage, stop_at_fourth)
    log.batch = 3
    table.system.advance(1.0)
    assert table.states[-1] == "STOPPED"
    assert table.error is None
    stored = storage.offset(0)
    assert stored is not None
    assert 4 <= stored < 8
    assert len(table.rows()) == stored + 1
    again = Table(log, storage)
    assert again.states == RECOVERY
    assert log.opened[-1] == stored + 1
    assert len(again.rows()) == 9


def test_a_partition_that_is_behind_and_silent_for_two_minutes_is_stalled() -> None:
    """One without new messages is not."""
    log = Log()
    log.write(b"k", b"1")
    table = Table(log)
    table.system.advance(500.0)
    assert not table.progress.stats(table.system.clock.now()).stalled
    log.batch = 0
    log.write(b"k", b"2")
    table.system.advance(60.0)
    stats = table.progress.stats(table.system.clock.now())
    assert (stats.lag, stats.stalled) == (1, True)
