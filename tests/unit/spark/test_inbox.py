"""What Spark's bus leaves for the committer: the newest of each run, within bounds."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from offsetmgr.spark import inbox as inbox_module
from offsetmgr.spark.inbox import Inbox, Run, Waiting
from offsetmgr.spark.progress import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


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


def taken(inbox: Inbox) -> list[Waiting]:
    """What there is to do, once there is something."""
    found = inbox.take()
    assert found is not None
    return found[0]


def test_a_silent_run_is_asked_until_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, beside what others put; its own snapshot, or word of it, ends that."""
    monkeypatch.setattr(inbox_module, "ASK_S", 0.0)
    inbox = Inbox()
    inbox.expect(Run("q", "r"), lambda: snapshot(1))
    for _ in range(2):
        (waiting,) = taken(inbox)
        assert waiting.run == Run("q", "r")
        assert waiting.ask is not None
        assert waiting.ask() == snapshot(1)
    inbox.put(snapshot(1, "p"))
    assert [each.run.query_id for each in taken(inbox)] == ["p", "q"]
    inbox.heard(Run("q", "r"))
    inbox.put(snapshot(2, "p"))
    assert taken(inbox) == [Waiting(Run("p", "r"), snapshot(2, "p"))]
    inbox.expect(Run("q", "r"), lambda: snapshot(1))
    inbox.put(snapshot(2))
    assert taken(inbox) == [Waiting(Run("q", "r"), snapshot(2))]


@pytest.mark.parametrize("over", [lambda inbox: inbox.end(Run("q", "r")), Inbox.close])
def test_a_silent_run_is_asked_when_all_is_over(over: Callable[[Inbox], int]) -> None:
    """Without waiting for its turn, whether it ends or the inbox is closed; once."""
    inbox = Inbox()
    inbox.expect(Run("q", "r"), lambda: snapshot(1))
    over(inbox)
    (waiting,) = taken(inbox)
    assert waiting.ask is not None
    assert not inbox._silent


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
