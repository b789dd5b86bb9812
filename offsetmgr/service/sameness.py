"""What a request asks to be done, as a number: a sequence is one request's alone.

A hash, because the answers of many requests are kept, and what they asked for may be large.  How
long somebody waits is no part of it: a request that is sent again has less time left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.manager import Submission

if TYPE_CHECKING:
    from offsetmgr.service.validate import Open, Settle, Submit


def of_open(asked: Open) -> int:
    """Managers to have."""
    return hash(("open", asked.group, frozenset(asked.partitions)))


def of_submit(asked: Submit) -> int:
    """Offsets to take; whether they are waited for decides what the answer says."""
    offsets = asked.offsets.items()
    # Which of the two an offset was read as depends on the whole body, a time-out in it included.
    if set(map(type, asked.offsets.values())) != {int}:
        offsets = {where: _plain(each) for where, each in offsets}.items()
    return hash(("submit", asked.group, frozenset(offsets), asked.wait))


def of_settle(operation: str, asked: Settle) -> int:
    """Managers to flush or stop."""
    where = None if asked.partitions is None else frozenset(asked.partitions)
    return hash((operation, asked.group, where))


def _plain(asked: int | Submission) -> int | Submission:
    if isinstance(asked, int) or asked != Submission(asked.offset):
        return asked
    return asked.offset
