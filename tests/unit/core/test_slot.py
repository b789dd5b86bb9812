"""The submit mailbox of one manager: latest wins, never backwards, collected once."""

from __future__ import annotations

import pytest

from offsetmgr.errors import ManagerStoppedError, OffsetRegressionError
from offsetmgr.manager.slot import Finding, Standing, SubmitSlot, Version
from offsetmgr.manager.tray import Tray
from offsetmgr.types import MAX_OFFSET, OffsetAndMetadata
from tests.unit.core.core import at, tp


@pytest.fixture
def slot() -> SubmitSlot:
    """A slot of which nothing is known."""
    return SubmitSlot(Tray("g"), tp(0))


@pytest.fixture
def ready(slot: SubmitSlot) -> SubmitSlot:
    """A slot that knows that 10 is committed."""
    slot.establish(at(10))
    return slot


def collected(slot: SubmitSlot) -> bool:
    """Whether its committer learns of it, if it comes now."""
    return slot in slot.tray.collect(0.0)[0]


def test_a_hot_loop_of_submits_is_one_version(ready: SubmitSlot) -> None:
    """What nobody saw is replaced, and the newest one is what is kept."""
    for offset in (11, 12, 13):
        ready.put(offset, "", None)
    assert collected(ready)
    assert ready.newest == ready.wanted() == Version(1, at(13))
    assert ready.dirty


def test_both_ways_in_lead_to_the_same_slot(ready: SubmitSlot) -> None:
    """The quick one for the handle, the full one for everything else."""
    ready.put(11, "m", 4)
    assert ready.newest == Version(1, OffsetAndMetadata(11, "m", 4))
    ready.offer(at(12))
    assert ready.newest == Version(2, at(12))
    with pytest.raises(OffsetRegressionError):
        ready.put(11, "", None)


def test_it_is_collected_once_until_it_is_settled(ready: SubmitSlot) -> None:
    """Its committer is at it already; after a commit of the newest it has to be told anew."""
    ready.offer(at(11))
    assert collected(ready)
    ready.offer(at(12))
    assert not collected(ready)
    assert ready.newest == Version(2, at(12))
    assert ready.settle(2)
    assert not ready.dirty
    ready.offer(at(13))
    assert collected(ready)


def test_settling_an_older_version_leaves_the_newer_one_dirty(ready: SubmitSlot) -> None:
    """What was submitted while a commit was under way is not mistaken for committed."""
    ready.offer(at(11))
    assert collected(ready)
    ready.offer(at(12))
    assert not ready.settle(1)
    assert ready.dirty
    ready.offer(at(13))
    assert not collected(ready), "the committer is at it already"


def test_equal_offset_with_new_metadata_counts(ready: SubmitSlot) -> None:
    """Metadata is part of what is committed."""
    ready.offer(at(11, "a"))
    assert collected(ready)
    ready.settle(1)
    ready.offer(at(11, "b"))
    assert collected(ready)
    assert ready.newest == Version(2, at(11, "b"))


def test_exactly_the_same_again_is_nothing(ready: SubmitSlot) -> None:
    """Submitting what is committed already makes no work."""
    ready.offer(at(11))
    assert collected(ready)
    ready.settle(1)
    ready.offer(at(11))
    assert not collected(ready)
    assert not ready.dirty
    ready.offer(at(12))
    assert collected(ready)


def test_the_same_again_wakes_what_was_parked(ready: SubmitSlot) -> None:
    """Who submits again after a permanent refusal wants another try."""
    ready.offer(at(11))
    assert collected(ready)
    assert ready.park(1)
    assert ready.dirty
    assert not collected(ready)
    ready.offer(at(11))
    assert collected(ready)


def test_parking_an_older_version_leaves_the_newer_one_to_be_tried(ready: SubmitSlot) -> None:
    """A refusal of old metadata says nothing of the new."""
    ready.offer(at(11, "bad"))
    assert collected(ready)
    ready.offer(at(11, "good"))
    assert not ready.park(1)


def test_a_lower_offset_is_refused_and_counted(ready: SubmitSlot) -> None:
    """It names the floor, and what was kept stays."""
    ready.offer(at(20))
    with pytest.raises(OffsetRegressionError) as caught:
        ready.offer(at(19))
    assert (caught.value.offset, caught.value.floor) == (19, 20)
    assert ready.newest == Version(1, at(20))
    assert ready.regressions == 1


def test_below_the_initial_offset_is_lower_too(ready: SubmitSlot) -> None:
    """What was committed before this manager counts as well."""
    with pytest.raises(OffsetRegressionError, match="offset 9 is lower than 10"):
        ready.offer(at(9))


def test_a_rewind_goes_back_and_becomes_the_new_floor(ready: SubmitSlot) -> None:
    """Going back on purpose is allowed; from there it rises again."""
    ready.offer(at(20))
    ready.offer(at(5), rewind=True)
    ready.offer(at(6))
    with pytest.raises(OffsetRegressionError):
        ready.offer(at(4))
    assert ready.newest == Version(1, at(6))


def test_nothing_is_taken_after_close(slot: SubmitSlot) -> None:
    """A stopped manager says so, rewinds and repetitions included; closing twice is harmless."""
    slot.offer(at(1))
    slot.close()
    slot.close()
    assert slot.closed
    for rewind in (False, True):
        with pytest.raises(ManagerStoppedError, match="g/t/0 is stopped; spawn a new manager"):
            slot.offer(at(1), rewind=rewind)
    with pytest.raises(ManagerStoppedError):
        slot.put(MAX_OFFSET, "", None)
    slot.establish(at(1))
    with pytest.raises(ManagerStoppedError):
        slot.put(MAX_OFFSET, "", None)


class TestEstablish:
    """What was submitted before the committed offset was known is judged once it is."""

    def test_nothing_submitted(self, slot: SubmitSlot) -> None:
        """Clean, whatever is committed."""
        assert slot.establish(None) == Finding(Standing.CLEAN, None)
        assert slot.established

    def test_nothing_committed(self, slot: SubmitSlot) -> None:
        """Any offset is higher than nothing, 0 included."""
        slot.offer(at(0))
        assert slot.establish(None) == Finding(Standing.DIRTY, Version(1, at(0)))

    def test_the_same_is_committed(self, slot: SubmitSlot) -> None:
        """No request is needed."""
        slot.offer(at(10))
        assert slot.establish(at(10)).standing is Standing.SAME
        assert not slot.dirty
        slot.offer(at(11))
        assert collected(slot), "the next one has to be collected"

    def test_higher_than_committed(self, slot: SubmitSlot) -> None:
        """It is to be committed."""
        slot.offer(at(11))
        assert slot.establish(at(10)).standing is Standing.DIRTY
        assert slot.wanted() == Version(1, at(11))

    def test_lower_than_committed(self, slot: SubmitSlot) -> None:
        """It is dropped, told, and the committed offset is the floor."""
        slot.offer(at(9))
        assert slot.establish(at(10)) == Finding(Standing.REGRESSED, Version(1, at(9)))
        assert not slot.dirty
        assert slot.regressions == 1
        with pytest.raises(OffsetRegressionError):
            slot.offer(at(9))
        slot.offer(at(11))
        assert collected(slot)

    def test_lower_by_a_rewind(self, slot: SubmitSlot) -> None:
        """An explicit rewind is kept, also by what was submitted on top of it."""
        slot.offer(at(5), rewind=True)
        slot.offer(at(6))
        assert slot.establish(at(10)) == Finding(Standing.DIRTY, Version(1, at(6)))

    def test_lower_by_a_rewind_to_what_waits(self, slot: SubmitSlot) -> None:
        """A rewind counts even where it changes nothing of what was submitted just before."""
        slot.offer(at(5))
        slot.offer(at(5), rewind=True)
        assert slot.establish(at(10)).standing is Standing.DIRTY

    def test_a_rewind_of_long_ago_excuses_nothing(self, slot: SubmitSlot) -> None:
        """Once it is committed, a rewind is over."""
        slot.establish(None)
        slot.offer(at(5), rewind=True)
        assert collected(slot)
        slot.settle(1)
        with pytest.raises(OffsetRegressionError):
            slot.offer(at(4))

    def test_only_the_first_answer_counts(self, slot: SubmitSlot) -> None:
        """An answer to a restarted actor may be older than its own latest commit."""
        slot.establish(at(10))
        slot.offer(at(5), rewind=True)
        assert slot.establish(at(10)).standing is Standing.DIRTY
        assert slot.newest == Version(1, at(5))
        slot.settle(1)
        assert slot.establish(at(10)).standing is Standing.CLEAN
        assert slot.newest == Version(1, at(5))


def test_what_is_not_committed_any_more_is_dirty_again(ready: SubmitSlot) -> None:
    """A newer commit that was overwritten by an older one has to be made again."""
    ready.offer(at(11))
    assert collected(ready)
    ready.settle(1)
    assert ready.reopen(Version(1, at(10)))
    assert ready.dirty
    assert ready.reopened == Version(1, at(10)), "as it was committed"
    ready.offer(at(12))
    assert not collected(ready), "the committer is at it already"


def test_only_the_newest_can_be_reopened(ready: SubmitSlot) -> None:
    """What is dirty anyway, or was never this manager's, stays as it is."""
    assert not ready.reopen(Version(0, at(10)))
    ready.offer(at(11))
    assert collected(ready)
    assert not ready.reopen(Version(1, at(11)))
    ready.settle(1)
    ready.offer(at(12))
    assert not ready.reopen(Version(1, at(11)))


def test_what_somebody_else_changed_meanwhile_is_not_put_back(ready: SubmitSlot) -> None:
    """What was submitted still waits, but as what it is now: new, above theirs."""
    ready.offer(at(30))
    assert collected(ready)
    ready.settle(1)
    assert ready.reopen(Version(1, at(20)))
    before = ready.reopened
    ready.follow(at(25))
    assert (before, ready.reopened) == (Version(1, at(20)), None)
    assert ready.wanted() == Version(1, at(30))


def test_it_is_not_closed_for_idleness_while_something_waits(ready: SubmitSlot) -> None:
    """A submit that comes first keeps its manager; one that comes later is refused, not lost."""
    ready.offer(at(11))
    assert not ready.close_if_clean()
    ready.offer(at(12))
    ready.settle(2)
    assert not ready.dirty
    assert ready.close_if_clean()
    with pytest.raises(ManagerStoppedError):
        ready.put(13, "", None)


@pytest.mark.parametrize("theirs", [7, 40])
def test_what_somebody_else_committed_is_the_floor(ready: SubmitSlot, theirs: int) -> None:
    """And what was committed here before is news again."""
    ready.offer(at(20))
    ready.settle(1)
    ready.follow(at(theirs))
    with pytest.raises(OffsetRegressionError, match=f"lower than {theirs}"):
        ready.offer(at(theirs - 1))
    ready.offer(at(20), rewind=True)
    assert ready.wanted() == Version(2, at(20))


def test_what_waits_above_theirs_stays_the_floor(ready: SubmitSlot) -> None:
    """It goes over theirs; nothing lower may come after it."""
    ready.offer(at(20))
    ready.follow(at(7))
    with pytest.raises(OffsetRegressionError, match="lower than 20"):
        ready.offer(at(19))


def test_a_rewind_counts_until_it_is_committed(ready: SubmitSlot) -> None:
    """What is submitted after it goes on from there."""
    ready.offer(at(5), rewind=True)
    ready.offer(at(6))
    before, newest = ready.rewinds, ready.newest
    assert newest is not None
    ready.settle(newest.number)
    assert (before, ready.rewinds) == (True, False)
