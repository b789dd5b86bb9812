"""Outbound mailboxes, alone and between threads."""

from __future__ import annotations

import sys
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import Mailbox, MailboxClosed

OPS = st.lists(st.one_of(st.integers(), st.just("get"), st.just("close")), max_size=40)


@pytest.fixture
def mailbox() -> Mailbox[int | None]:
    return Mailbox(2)


def observed(mailbox: Mailbox[int]) -> object:
    """Read without waiting; an exception counts as what was read."""
    try:
        return mailbox.get(timeout=0)
    except (MailboxClosed, TimeoutError) as error:
        return type(error)


@given(st.integers(1, 4), OPS)
def test_it_is_a_ring_that_counts(limit: int, ops: list[int | str]) -> None:
    """For any history, the newest `limit` values come in order and each lost one is counted."""
    mailbox: Mailbox[int] = Mailbox(limit)
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
        assert (mailbox.dropped, mailbox.closed) == (dropped, closed)


def test_put_wakes_a_blocked_reader(mailbox: Mailbox[int | None]) -> None:
    """A reader that waits without a limit gets the value that comes."""
    got: list[int | None] = []
    reader = threading.Thread(target=lambda: got.append(mailbox.get()), daemon=True)
    reader.start()
    mailbox.put(7)
    reader.join(10)
    assert got == [7]


def test_close_wakes_every_blocked_reader(mailbox: Mailbox[int | None]) -> None:
    """No reader is left waiting on a mailbox that was closed."""
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


def test_an_unused_mailbox_is_light(mailbox: Mailbox[int | None]) -> None:
    """A hundred thousand may exist: no dict, no Condition and no deque before use."""
    assert not hasattr(mailbox, "__dict__")
    assert mailbox._ready is None
    assert sys.getsizeof(mailbox) + sys.getsizeof(mailbox._lock) < 200
