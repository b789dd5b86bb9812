"""What Spark's bus leaves for the committer: the newest of each run, within bounds."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from offsetmgr.spark import inbox as inbox_module
from offsetmgr.spark.inbox import Inbox, Run
from offsetmgr.spark.progress import Snapshot

if TYPE_CHECKING:
    import pytest


def snapshot(batch: int, query: str = "q") -> Snapshot:
    """A snapshot that says nothing but its batch."""
    return Snapshot(query, "r", None, "", batch, (), {})


def test_the_newest_snapshot_of_a_run_waits() -> None:
    """A backlog is one snapshot for each run, and a late one replaces no newer one."""
    inbox = Inbox()
    for batch in (1, 3, 2):
        inbox.put(snapshot(batch))
    inbox.put(snapshot(9, "p"))
    taken = inbox.take()
    assert taken is not None
    assert [each.snapshot for each in taken[0]] == [snapshot(3), snapshot(9, "p")]


def test_an_end_comes_after_the_snapshot() -> None:
    """The end of a run is told together with what it read last."""
    inbox = Inbox()
    inbox.put(snapshot(1))
    inbox.end(Run("q", "r"))
    taken = inbox.take()
    assert taken is not None
    assert [(each.snapshot, each.ended) for each in taken[0]] == [(snapshot(1), True)]


def test_a_ticket_is_waited_for() -> None:
    """A wait ends when the reader is done with the ticket, and not before."""
    inbox = Inbox()
    first = inbox.put(snapshot(1))
    assert not inbox.wait(first, time.monotonic())
    inbox.take()
    second = inbox.put(snapshot(2))
    inbox.done(first)
    assert inbox.wait(first, time.monotonic() + 60)
    assert not inbox.wait(second, time.monotonic())


def test_a_waiting_reader_is_woken() -> None:
    """A reader that waits gets what is put, and the end of a closed inbox."""
    inbox = Inbox()
    got: list[object] = []

    def read() -> None:
        while (taken := inbox.take()) is not None:
            got.append(taken[0][0].snapshot)
            inbox.done(taken[1])

    reader = threading.Thread(target=read)
    reader.start()
    assert inbox.wait(inbox.put(snapshot(1)), time.monotonic() + 60)
    inbox.close()
    reader.join(60)
    assert not reader.is_alive()
    assert got == [snapshot(1)]


def test_too_many_runs_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded; what is dropped is counted."""
    monkeypatch.setattr(inbox_module, "MAX_RUNS", 2)
    inbox = Inbox()
    for query in ("a", "b", "c"):
        inbox.put(snapshot(1, query))
    taken = inbox.take()
    assert taken is not None
    assert [each.run.query_id for each in taken[0]] == ["b", "c"]
    assert inbox.dropped == 1
