"""Mailboxes, alone and between threads."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetTimeoutError
from offsetmgr.mailboxes import Mailbox
from tests.together import together

OPS = st.lists(st.one_of(st.integers(), st.just("get"), st.just("close")), max_size=40)


@pytest.fixture
def mailbox() -> Mailbox[int]:
    return Mailbox("orders-3", 2)


def read(mailbox: Mailbox[int]) -> object:
    """Read without waiting; an exception counts as the value."""
    try:
        return mailbox.get(timeout=0)
    except (ManagerStoppedError, OffsetTimeoutError) as error:
        return type(error)


@given(st.integers(1, 4), OPS)
def test_a_mailbox_keeps_the_newest_values_and_counts_the_others(
    limit: int, ops: list[int | str]
) -> None:
    """For any history, the newest ``limit`` values come in order and each lost one is counted."""
    mailbox: Mailbox[int] = Mailbox("orders-3", limit)
    ring: deque[int] = deque(maxlen=limit)
    closed, dropped = False, 0
    for op in ops:
        if op == "close":
            mailbox.close()
            closed = True
        elif op == "get":
            empty = ManagerStoppedError if closed else OffsetTimeoutError
            assert read(mailbox) == (ring.popleft() if ring else empty)
        elif not closed:
            dropped += len(ring) == limit
            ring.append(int(op))
            assert mailbox.put(int(op))
        else:
            assert not mailbox.put(int(op))
        assert (mailbox.dropped, mailbox.closed) == (dropped, closed)


def test_a_put_wakes_a_blocked_reader(mailbox: Mailbox[int]) -> None:
    """A reader that waits without a limit gets the value that comes."""
    values: list[int] = []
    together(2, lambda number: mailbox.put(7) if number else values.append(mailbox.get()))
    assert values == [7]


def test_a_close_wakes_every_blocked_reader(mailbox: Mailbox[int]) -> None:
    """Their iteration ends."""
    values: list[list[int]] = []
    together(4, lambda number: values.append(list(mailbox)) if number else mailbox.close())
    assert values == [[], [], []]


def test_the_errors_of_a_mailbox_name_its_owner(mailbox: Mailbox[int]) -> None:
    """The error of a bad timeout names its field."""
    with pytest.raises(OffsetTimeoutError, match="orders-3: nothing came within 0 s"):
        mailbox.get(timeout=0)
    with pytest.raises(InvalidValueError, match="timeout -1"):
        mailbox.get(timeout=-1)
    mailbox.close()
    with pytest.raises(ManagerStoppedError, match="orders-3 is stopped"):
        mailbox.get()
