"""What is dirty together, and what happens to one of it alone."""

from __future__ import annotations

from math import inf

from offsetmgr.manager.dirty import DirtyBook
from tests.unit.core.core import tp

ALL = [tp(number) for number in range(4)]


def marked() -> DirtyBook:
    """All dirty since second 5, committed every 10 s."""
    book = DirtyBook(10.0)
    book.mark_all(ALL, 5.0)
    assert book.due_at == 15.0
    assert len(book.different()) == 1
    return book


def test_the_pause_of_one_is_its_own() -> None:
    """However many were marked with it."""
    book = marked()
    entry = book.get(ALL[1])
    assert entry is not None
    entry.attempts, entry.not_before = 1, 99.0
    assert [each.not_before for each in book.entries().values()] == [-inf, 99.0, -inf, -inf]
    assert [each.since for each in book.entries().values()] == [5.0] * 4


def test_one_that_is_urgent_or_again_to_be_tried_is_so_alone() -> None:
    """The others wait for their interval."""
    book = marked()
    book.mark(ALL[0], 6.0, urgent=True)
    book.mark_due(ALL[2]).since = -inf
    assert [each.since for each in book.entries().values()] == [-inf, 5.0, -inf, 5.0]


def test_what_was_to_be_kept_alive_is_submitted_anew() -> None:
    """Among others that are dirty for the first time; what waits keeps its turn."""
    book = DirtyBook(10.0)
    book.refresh(ALL[3])
    book.mark(ALL[2], 1.0)
    book.mark_all(ALL, 5.0)
    assert list(book.entries()) == [ALL[3], ALL[2], ALL[0], ALL[1]]
    assert not any(entry.refresh for entry in book.entries().values())
    assert [entry.since for entry in book.entries().values()] == [-inf, 1.0, 5.0, 5.0]


def test_a_hurry_reaches_all() -> None:
    """Those that share as those that are alone."""
    book = marked()
    book.mark(ALL[1], 6.0)
    book.hurry()
    assert {entry.since for entry in book.entries().values()} == {-inf}


def test_what_is_committed_is_dirty_no_more() -> None:
    """All of it, or a part."""
    book = marked()
    book.remove_all(dict.fromkeys(ALL[1:3]))
    assert list(book.entries()) == [ALL[0], ALL[3]]
    book.remove_all(dict.fromkeys([ALL[0], ALL[3]]))
    assert len(book) == 0
