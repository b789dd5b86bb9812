"""What the broker should hold, and what may still land there."""

from __future__ import annotations

from math import inf

import pytest

from offsetmgr.manager.ledger import (
    INHERITED_S,
    LATEST_LANDING_S,
    LOST_LIMIT,
    Holding,
    Ledger,
    same,
)
from offsetmgr.manager.slot import Version
from offsetmgr.types import OffsetAndMetadata
from tests.unit.core.core import at, tp

WINDOW_S = 10.0
P = tp(0)


@pytest.fixture
def ledger() -> Ledger:
    """A ledger with version 2 (12) committed at 100 s."""
    made = Ledger(WINDOW_S)
    made.keep(P, Version(2, at(12)), 100.0)
    return made


def test_what_was_committed_last_stands(ledger: Ledger) -> None:
    """The usual case."""
    assert ledger.judge(P, at(12)).holding is Holding.STANDS


def test_what_nobody_here_sent_is_foreign(ledger: Ledger) -> None:
    """Somebody else's offset, or none at all, is theirs."""
    ledger.lose(P, Version(1, at(11)))
    assert ledger.judge(P, at(40)).holding is Holding.FOREIGN
    assert ledger.judge(P, None).holding is Holding.FOREIGN
    assert ledger.judge(tp(1), at(1)).holding is Holding.FOREIGN


def test_a_lost_commit_behind_a_newer_one_is_older(ledger: Ledger) -> None:
    """It is to be put right."""
    ledger.lose(P, Version(1, at(11)))
    assert ledger.judge(P, at(11)) == (Holding.OLDER, Version(1, at(11)))


def test_a_lost_commit_that_is_the_newest_is_newer(ledger: Ledger) -> None:
    """It was submitted, so it may stand."""
    ledger.lose(P, Version(3, at(13)))
    assert ledger.judge(P, at(13)) == (Holding.NEWER, Version(3, at(13)))


def test_a_rewind_is_newer_though_its_offset_is_lower(ledger: Ledger) -> None:
    """The order of submits decides, not the offset."""
    ledger.lose(P, Version(3, at(5)))
    assert ledger.judge(P, at(5)).holding is Holding.NEWER


def looks(ledger: Ledger, now: float) -> list[float]:
    """When a lost commit is looked for, in seconds after ``now``, until it is forgotten."""
    taken: list[float] = []
    while ledger.waits:
        at = ledger.next_check_at(0.0)
        assert list(ledger.due(0.0, at - 0.001)) == []
        assert list(ledger.due(0.0, at)) == [P]
        ledger.looked(P, at)
        taken.append(at - now)
    return taken


def test_a_lost_commit_is_looked_for_ever_more_rarely(ledger: Ledger) -> None:
    """Not while the coordinator is away; then one window later, until nothing can land any more."""
    ledger.lose(P, Version(3, at(13)))
    assert ledger.next_check_at(0.0) == inf
    ledger.was_read(P, 200.0)
    assert looks(ledger, 200.0) == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, LATEST_LANDING_S]
    assert ledger.next_check_at(0.0) == inf


def test_another_loss_begins_the_looks_anew(ledger: Ledger) -> None:
    """The youngest decides."""
    ledger.lose(P, Version(3, at(13)))
    ledger.was_read(P, 200.0)
    ledger.looked(P, 210.0)
    ledger.lose(P, Version(4, at(14)))
    assert ledger.next_check_at(0.0) == inf
    ledger.was_read(P, 300.0)
    assert ledger.next_check_at(0.0) == 310.0


def test_a_look_for_another_reason_does_not_end_the_watch(ledger: Ledger) -> None:
    """Only the look that was due for it does."""
    ledger.lose(P, Version(3, at(13)))
    ledger.was_read(P, 200.0)
    ledger.looked(P, 201.0)
    assert ledger.doubts(P)


def test_a_commit_that_was_found_is_not_lost(ledger: Ledger) -> None:
    """Read back and there: nothing more of it can land."""
    ledger.lose(P, Version(3, at(13)))
    ledger.prove(P, Version(3, at(13)))
    assert not ledger.doubts(P)


def test_a_second_try_that_was_found_leaves_the_first_one_lost(ledger: Ledger) -> None:
    """Nobody can tell which of two equal commits has landed; the other may land yet."""
    ledger.lose(P, Version(3, at(13)))
    ledger.lose(P, Version(3, at(13)))
    ledger.prove(P, Version(3, at(13)))
    assert ledger.doubts(P)


def test_finding_what_was_there_before_proves_nothing(ledger: Ledger) -> None:
    """A keep-alive that was lost looks as if it had landed."""
    ledger.lose(P, Version(2, at(12)))
    ledger.prove(P, Version(2, at(12)))
    assert ledger.doubts(P)


def test_lost_commits_are_bounded(ledger: Ledger) -> None:
    """An hour of time-outs remembers the newest few."""
    for number in range(3, 1000):
        ledger.lose(P, Version(number, at(number)))
    assert ledger.judge(P, at(999)).holding is Holding.NEWER
    assert ledger.judge(P, at(999 - LOST_LIMIT + 1)).holding is Holding.NEWER
    assert ledger.judge(P, at(999 - LOST_LIMIT)).holding is Holding.FOREIGN


def test_a_successor_is_newer_than_all_its_predecessor_sent(ledger: Ledger) -> None:
    """Versions are counted anew; the order among the old ones stays."""
    ledger.lose(P, Version(1, at(11)))
    ledger.lose(P, Version(7, at(17)))
    ledger.depart(P, 200.0)
    ledger.succeed(P)
    assert ledger.judge(P, at(11)).holding is Holding.OLDER
    assert ledger.judge(P, at(17)).holding is Holding.NEWER
    ledger.keep(P, Version(1, at(20)), 201.0)
    assert ledger.judge(P, at(17)).holding is Holding.OLDER


def test_who_leaves_without_doubts_leaves_nothing(ledger: Ledger) -> None:
    """Memory is that of the living."""
    ledger.depart(P, 200.0)
    assert ledger.kept(P) is None
    assert not ledger.waits


def test_who_leaves_with_doubts_is_watched_for_a_minute(ledger: Ledger) -> None:
    """Also where the coordinator has not answered since; longer it may be an operator's reset."""
    ledger.lose(P, Version(3, at(13)))
    ledger.depart(P, 200.0)
    assert ledger.kept(P) == Version(2, at(12))
    assert looks(ledger, 200.0) == [10.0, 20.0, 40.0, 60.0]


def test_an_offset_that_was_found_is_old_soon(ledger: Ledger) -> None:
    """Nobody knows when it was committed; once it was committed again, somebody does."""
    ledger.inherit(tp(1), Version(0, at(1)), 130.0)
    soon = 130.0 + INHERITED_S
    assert ledger.next_check_at(3600.0) == soon
    assert list(ledger.due(3600.0, soon - 1)) == []
    assert list(ledger.due(3600.0, soon)) == [tp(1)]
    assert ledger.is_old(tp(1), 3600.0, soon)
    ledger.keep(tp(1), Version(0, at(1)), soon)
    assert not ledger.is_old(tp(1), 3600.0, soon)
    assert ledger.next_check_at(3600.0) == 100.0 + 3600.0
    assert list(ledger.due(3600.0, 3700.0)) == [P]


@pytest.mark.parametrize(
    ("found", "is_same"),
    [
        (OffsetAndMetadata(12, "m", 5), True),
        (OffsetAndMetadata(12, "m"), True),
        (OffsetAndMetadata(12, "m", 4), False),
        (OffsetAndMetadata(12, "n", 5), False),
        (OffsetAndMetadata(13, "m", 5), False),
        (None, False),
    ],
)
def test_what_was_sent_is_told_by_offset_metadata_and_leader_epoch(
    found: OffsetAndMetadata | None, *, is_same: bool
) -> None:
    """The epoch only where Kafka gives it back."""
    assert same(OffsetAndMetadata(12, "m", 5), found) is is_same


def test_keep_alive_is_due_an_interval_after_the_commit(ledger: Ledger) -> None:
    """Oldest first, and not before."""
    ledger.keep(tp(1), Version(1, at(1)), 130.0)
    assert ledger.next_check_at(60.0) == 160.0
    assert list(ledger.due(60.0, 159.0)) == []
    assert list(ledger.due(60.0, 160.0)) == [P]
    assert list(ledger.due(60.0, 500.0)) == [P, tp(1)]
    assert ledger.is_old(P, 60.0, 160.0)
    assert not ledger.is_old(P, 60.0, 159.0)


def test_keep_alive_can_be_switched_off(ledger: Ledger) -> None:
    """With an interval of 0 nothing is ever due."""
    assert ledger.next_check_at(0.0) == inf
    assert list(ledger.due(0.0, 1e9)) == []
    assert not ledger.is_old(P, 0.0, 1e9)


def test_a_partition_is_looked_at_once_for_two_reasons(ledger: Ledger) -> None:
    """Old and in doubt at once."""
    ledger.lose(P, Version(3, at(13)))
    ledger.was_read(P, 101.0)
    assert list(ledger.due(60.0, 500.0)) == [P]


def test_looks_come_in_the_order_of_the_losses(ledger: Ledger) -> None:
    """Else one process would ask otherwise than the next, and no simulation replay."""
    partitions = [tp(number) for number in (5, 3, 8, 1, 9, 2, 7, 4, 6)]
    for partition in partitions:
        ledger.lose(partition, Version(1, at(13)))
        ledger.was_read(partition, 200.0)
    assert list(ledger.due(0.0, 200.0 + WINDOW_S)) == partitions


def test_a_refused_look_waits_for_its_next_turn(ledger: Ledger) -> None:
    """A partition that cannot be read is not asked for in a loop."""
    ledger.lose(P, Version(3, at(13)))
    ledger.was_read(P, 100.0)
    ledger.postpone(P, 500.0)
    assert ledger.next_check_at(60.0) == 500.0 + WINDOW_S
    assert ledger.doubts(P)


def test_a_look_that_is_always_refused_ends_after_a_quarter_of_an_hour(ledger: Ledger) -> None:
    """Else nobody would ever be done with a topic that may not be read any more."""
    ledger.lose(P, Version(3, at(13)))
    ledger.depart(P, 200.0)
    refused: list[float] = []
    while ledger.waits and len(refused) < 20:
        refused.append(ledger.next_check_at(0.0) - 200.0)
        ledger.postpone(P, 200.0 + refused[-1])
    assert refused == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 900.0]


def test_a_look_that_was_refused_is_made_up_for_after_the_minute_of_who_is_gone(
    ledger: Ledger,
) -> None:
    """Refused ones have shown nothing; the first that is answered then is the last."""
    ledger.lose(P, Version(3, at(13)))
    ledger.depart(P, 200.0)
    for after_s in (10.0, 20.0, 40.0):
        ledger.postpone(P, 200.0 + after_s)
    assert ledger.waits
    ledger.looked(P, 280.0)
    assert not ledger.waits


def test_only_an_undoubted_offset_needs_no_request(ledger: Ledger) -> None:
    """Committing the same again is skipped where nothing lost can undo it."""
    assert ledger.stands(P, at(12))
    assert not ledger.stands(P, at(13))
    ledger.lose(P, Version(1, at(11)))
    assert not ledger.stands(P, at(12))


def test_a_successor_does_not_inherit_the_numbers(ledger: Ledger) -> None:
    """A version of the past never counts as one that the new manager has submitted."""
    ledger.succeed(P)
    kept = ledger.kept(P)
    assert kept is not None
    assert kept.number <= 0
