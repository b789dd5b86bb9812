"""Outbound mailboxes, alone and between threads."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from actors import DropOldest, Latest, Mailbox, MailboxClosed, OneShot

if TYPE_CHECKING:
    from collections.abc import Callable

ALL: list[Callable[[], Mailbox[int | None]]] = [OneShot, Latest, lambda: DropOldest(2)]
every_kind = pytest.mark.parametrize("make", ALL, ids=["OneShot", "Latest", "DropOldest"])

OPS = st.lists(st.one_of(st.integers(), st.just("get"), st.just("close")), max_size=40)


def observed(mailbox: Mailbox[int]) -> object:
    """Read without waiting; an exception counts as what was read."""
    try:
        return mailbox.get(timeout=0)
    except (MailboxClosed, TimeoutError) as error:
        return type(error)


@given(OPS)
def test_latest_is_a_variable_that_reading_empties(ops: list[int | str]) -> None:
    """For any order of puts, gets and closes, a reader sees the newest unread value only."""
    mailbox: Latest[int] = Latest()
    waiting: list[int] = []
    closed = False
    for op in ops:
        if op == "close":
            mailbox.close()
            closed = True
        elif op == "get":
            expected = waiting.pop() if waiting else MailboxClosed if closed else TimeoutError
            assert observed(mailbox) == expected
        else:
            assert mailbox.put(int(op)) is not closed
            waiting = waiting if closed else [int(op)]


@given(st.integers(1, 4), OPS)
def test_drop_oldest_is_a_ring_that_counts(limit: int, ops: list[int | str]) -> None:
    """For any history, the newest `limit` values come in order and each lost one is counted."""
    mailbox: DropOldest[int] = DropOldest(limit)
    ring: deque[int] = deque(maxlen=limit)
    closed, dropped = False, 0
    for op in ops:
        if op == "close":
            mailbox.close()
            closed = True
        elif op == "get":
            expected = ring.popleft() if ring else MailboxClosed if closed else TimeoutError
            assert observed(mailbox) == expected
        elif not closed:
            dropped += len(ring) == limit
            ring.append(int(op))
            assert mailbox.put(int(op))
        else:
            assert not mailbox.put(int(op))
        assert mailbox.dropped == dropped


@given(OPS)
def test_one_shot_keeps_its_first_value(ops: list[int | str]) -> None:
    """Whatever follows, the first value is the value, for every reader and every reading."""
    mailbox: OneShot[int] = OneShot()
    first: object = TimeoutError
    for op in ops:
        if op == "close":
            mailbox.close()
            first = MailboxClosed if first is TimeoutError else first
        elif op == "get":
            assert observed(mailbox) == first
        else:
            assert mailbox.put(int(op)) is (first is TimeoutError)
            first = op if first is TimeoutError else first
        assert mailbox.closed is (first is not TimeoutError)


@every_kind
def test_put_wakes_a_blocked_reader(make: Callable[[], Mailbox[int | None]]) -> None:
    """A reader that waits without a limit gets the value that comes."""
    mailbox = make()
    got: list[int | None] = []
    reader = threading.Thread(target=lambda: got.append(mailbox.get()), daemon=True)
    reader.start()
    mailbox.put(7)
    reader.join(10)
    assert got == [7]


@every_kind
def test_close_wakes_every_blocked_reader(make: Callable[[], Mailbox[int | None]]) -> None:
    """No reader is left waiting on a mailbox that was closed."""
    mailbox = make()
    outcomes: list[object] = []

    def read() -> None:
        try:
            outcomes.append(mailbox.get())
        except MailboxClosed as error:
            outcomes.append(type(error))

    readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    mailbox.close()
    for reader in readers:
        reader.join(10)
    assert outcomes == [MailboxClosed] * 3


@every_kind
def test_iteration_ends_with_the_mailbox(make: Callable[[], Mailbox[int | None]]) -> None:
    """A for loop yields what is unread, once each, and ends when the mailbox is closed."""
    mailbox = make()
    mailbox.put(1)
    mailbox.close()
    assert list(mailbox) == [1]


@every_kind
def test_listeners_hear_puts_and_the_close_once(make: Callable[[], Mailbox[int | None]]) -> None:
    """A listener is called after each effective put or close, and never after its removal."""
    mailbox = make()
    heard: list[bool] = []
    deaf: list[bool] = []
    mailbox.add_listener(lambda: heard.append(mailbox.closed))
    mailbox.add_listener(lambda: deaf.append(True))()
    mailbox.put(1)
    mailbox.close()
    mailbox.close()
    mailbox.put(2)
    # The value of a OneShot closes it.
    assert heard == ([True] if isinstance(mailbox, OneShot) else [False, True])
    assert deaf == []


@every_kind
def test_a_failing_listener_harms_nobody(make: Callable[[], Mailbox[int | None]]) -> None:
    """An exception of a listener is logged; the put succeeds and the next listener is called."""
    mailbox = make()
    heard: list[int] = []
    mailbox.add_listener(lambda: 1 // 0)
    mailbox.add_listener(lambda: heard.append(1))
    with capture_logs() as logs:
        assert mailbox.put(1)
    assert heard == [1]
    assert [entry["event"] for entry in logs] == ["mailbox_listener_failed"]


@every_kind
def test_an_unused_mailbox_is_light(make: Callable[[], Mailbox[int | None]]) -> None:
    """A hundred thousand of each may exist: no dict, no Condition and no deque before use."""
    mailbox = make()
    assert not hasattr(mailbox, "__dict__")
    assert mailbox._ready is None
    assert sys.getsizeof(mailbox) + sys.getsizeof(mailbox._lock) < 200
