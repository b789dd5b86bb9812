"""What a group makes of lost commits, of old ones and of its own restart."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.manager.requests import (
    CommitRequest,
    InitialKnown,
    Noticed,
    ReadBackRequest,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.slot import Version
from tests.unit.core.core import (
    GROUP_DENIED,
    LOADING,
    TIMED_OUT,
    TOPIC_DENIED,
    UNKNOWN_TOPIC,
    at,
    tp,
)
from tests.unit.core.planned import Group, sent


@pytest.fixture
def group() -> Group:
    """A group with an interval of 10 s and no members."""
    return Group()


class TestUnknownOutcomes:
    """A commit that was not answered can have landed, or can land yet."""

    @pytest.fixture
    def lost(self, group: Group) -> Group:
        """A group whose commit of 12 timed out."""
        group.start(0, 1)
        group.submit(12)
        (note,) = group.answer(group.commit(), failures={0: TIMED_OUT})
        assert isinstance(note, VersionFailed)
        assert not note.final
        return group

    @pytest.mark.fault(2)
    def test_it_is_read_back_before_it_is_written_again(self, lost: Group) -> None:
        """Also where somebody is in a hurry."""
        lost.plan.hurry()
        assert isinstance(lost.due(), ReadBackRequest)

    def test_its_peers_are_not_held_back(self, lost: Group) -> None:
        """Where it cannot be read for now, the others are committed."""
        lost.read({}, failures={0: UNKNOWN_TOPIC})
        lost.now += 0.2  # the pause of the group, not the one of the partition
        lost.plan.hurry()
        lost.read({}, failures={0: UNKNOWN_TOPIC})
        lost.submit(22, partition=1, urgent=True)
        assert sent(lost.commit(after_s=0.0)) == {1: 22}

    def test_found_it_is_committed(self, lost: Group) -> None:
        """No second request is made."""
        assert lost.read({0: 12}) == [VersionCommitted(Version(1, at(12)), clean=True)]
        assert lost.due() is None
        assert not lost.members[0].slot.dirty

    def test_not_found_it_is_sent_again(self, lost: Group) -> None:
        """After the pause, and what is newest by then."""
        assert lost.read({0: 10}) == []
        lost.submit(13)
        assert sent(lost.commit(after_s=1.0)) == {0: 13}

    def test_landing_late_behind_a_newer_one_it_is_put_right(self, lost: Group) -> None:
        """The newer offset is committed again, and is not called committed meanwhile."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.wait()
        assert lost.read({0: 12}) == []
        assert lost.members[0].slot.dirty
        assert sent(lost.commit(after_s=0.0)) == {0: 13}

    def test_what_somebody_else_committed_meanwhile_is_not_put_right(self, lost: Group) -> None:
        """It is told, once."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.wait()
        (note,) = lost.read({0: 40})
        assert isinstance(note, Noticed)
        assert (note.before, note.committed) == (at(13), at(40))
        assert lost.due() is None
        lost.now += 1e6
        assert lost.read({0: 40}) == []
        assert lost.due() is None

    def test_landing_late_as_the_newest_it_is_committed(self, lost: Group) -> None:
        """A second try that was refused for good, and then the first one lands."""
        lost.read({0: 10})
        lost.answer(lost.commit(after_s=1.0), failures={0: TOPIC_DENIED})
        lost.wait()
        assert lost.read({0: 12}) == [VersionCommitted(Version(1, at(12)), clean=True)]

    def test_what_may_not_be_read_is_parked(self, lost: Group) -> None:
        """To wait for an answer that never comes would be to wait in silence."""
        (note,) = lost.read({}, failures={0: GROUP_DENIED})
        assert isinstance(note, VersionFailed)
        assert note.final

    def test_a_read_that_fails_is_tried_again_after_a_pause(self, lost: Group) -> None:
        """And the partition is not written meanwhile."""
        lost.read({}, failures={0: LOADING})
        assert lost.due() is None
        lost.plan.mark_dirty(tp(0), lost.now, urgent=True)
        lost.wait()
        assert lost.read({0: 12})

    def test_it_is_watched_though_its_manager_is_gone(self, lost: Group) -> None:
        """A stop that was answered in time does not undo what was acknowledged."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.plan.detach(tp(0), lost.now)
        lost.wait()
        lost.read({0: 12})
        assert sent(lost.commit(after_s=0.0)) == {0: 13}

    def test_what_was_being_put_back_is_when_its_manager_is_gone(self, lost: Group) -> None:
        """It was acknowledged; that a stop could not wait for it takes nothing back."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.wait()
        lost.read({0: 12})
        lost.answer(lost.commit(after_s=0.0), failures={0: LOADING})
        lost.plan.detach(tp(0), lost.now)
        lost.wait()
        lost.read({0: 12})
        assert sent(lost.commit(after_s=0.0)) == {0: 13}

    def test_it_is_watched_over_a_crash_though_its_manager_is_gone(self, lost: Group) -> None:
        """Whatever was to be read before is read again."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.detach(0)
        lost.wait()
        lost.read({0: 12})
        lost.answer(lost.commit(after_s=0.0), failures={0: TIMED_OUT})
        lost.crash()
        lost.fetch({tp(0): at(12), tp(1): at(10)}, told=False)
        assert sent(lost.commit(after_s=0.0)) == {0: 13}

    def test_a_successor_puts_right_what_lands_late(self, lost: Group) -> None:
        """It finds its predecessor's lost commit, and starts from what was acknowledged."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.plan.detach(tp(0), lost.now)
        lost.attach(0)
        assert lost.fetch({tp(0): at(12)}) == [InitialKnown(at(13))]
        assert sent(lost.commit(after_s=0.0)) == {0: 13}

    def test_an_answer_that_comes_after_its_manager_is_gone_is_watched_too(
        self, group: Group
    ) -> None:
        """An abandoned commit may land on what the next manager commits."""
        group.start(0)
        group.submit(12)
        request = group.commit()
        group.plan.detach(tp(0), group.now)
        group.attach(0)
        assert group.answer(request, failures={0: TIMED_OUT}) == []
        group.fetch({tp(0): at(10)})
        group.submit(13)
        group.plan.hurry()
        group.answer(group.commit(after_s=0.0))
        group.wait()
        group.read({0: 12})
        assert sent(group.commit(after_s=0.0)) == {0: 13}

    def test_what_its_predecessor_commits_at_last_is_nobody_elses(self) -> None:
        """The answer comes when the next manager is there, and has not read anything yet."""
        group = Group()
        group.start(0)
        group.submit(12)
        group.answer(group.commit())
        group.submit(13)
        request = group.commit()
        group.plan.detach(tp(0), group.now)
        group.attach(0)
        assert group.answer(request) == []
        kept = group.ledger.kept(tp(0))
        assert kept is not None
        assert kept.value == at(13)

    def test_a_successor_that_comes_late_knows_what_may_land_yet(self) -> None:
        """Though nobody was there to look for it when it was time to."""
        group = Group(on_external_change="overwrite")
        group.start(0, 1)
        group.submit(12)
        request = group.commit()
        group.plan.detach(tp(0), group.now)
        group.answer(request, failures={0: TIMED_OUT})
        group.now = group.plan.wake_at()
        assert group.due() is None
        assert group.plan.wake_at() > group.now
        group.attach(0)
        group.fetch({tp(0): at(10)})
        group.wait()
        assert group.read({0: 12}) == []

    def test_a_successor_forgets_what_was_under_way_for_its_predecessor(self, lost: Group) -> None:
        """What is being put right for one who is gone is not settled for the new one."""
        lost.read({0: 10})
        lost.submit(13)
        lost.answer(lost.commit(after_s=1.0))
        lost.plan.detach(tp(0), lost.now)
        lost.wait()
        lost.read({0: 12})
        lost.answer(lost.commit(after_s=0.0), failures={0: TIMED_OUT})
        lost.attach(0)
        lost.fetch({tp(0): at(13)})
        lost.submit(14)
        lost.plan.hurry()
        assert sent(lost.commit(after_s=0.0)) == {0: 14}

    def test_when_all_are_gone_and_nothing_can_land_it_is_over(self, lost: Group) -> None:
        """A group without managers is forgotten, but not before."""
        lost.read({0: 10})
        for partition in (0, 1):
            lost.plan.detach(tp(partition), lost.now)
        before = lost.plan.over
        lost.wait()
        while isinstance(lost.due(), ReadBackRequest):
            assert lost.read({0: 10}) == []
            lost.now = min(lost.plan.wake_at(), lost.now + 3600.0)
        assert lost.due() is None
        assert (before, lost.plan.over) == (False, True)
        assert lost.plan.wake_at() == inf


class TestKeepAlive:
    """Unchanged offsets do not expire."""

    @pytest.fixture
    def old(self) -> Group:
        """A group with offset 10, an hour after it was committed."""
        group = Group(recommit_interval_s=3600.0)
        group.start(0, committed=None)
        group.submit(10, urgent=True)
        group.answer(group.commit(after_s=0.0))
        assert group.plan.wake_at() == 3600.0
        group.now = 3600.0
        return group

    def test_an_offset_that_nobody_submits_is_kept_alive_for_as_long_as_its_manager_lives(
        self,
    ) -> None:
        """Soon after the start, as it may be old already; then once an interval, for ever."""
        group = Group(recommit_interval_s=3600.0)
        group.start(0)
        committed_at = []
        for _ in range(10):
            group.wait()
            assert group.read({0: 10}) == []
            request = group.commit(after_s=0.0)
            assert sent(request) == {0: 10}
            group.answer(request)
            committed_at.append(group.now)
        assert committed_at == [60.0 + 3600.0 * n for n in range(10)]

    @pytest.mark.fault(34)
    def test_what_stands_is_committed_again(self, old: Group) -> None:
        """Then all is quiet for another hour."""
        assert old.read({0: 10}) == []
        request = old.commit(after_s=0.0)
        assert sent(request) == {0: 10}
        old.answer(request)
        assert old.plan.wake_at() == 7200.0

    def test_what_somebody_else_changed_is_theirs(self, old: Group) -> None:
        """It is kept alive in place of ours, until something new is submitted."""
        old.read({0: 40})
        assert old.due() is None
        assert old.plan.wake_at() == 7200.0
        old.submit(41)
        assert sent(old.commit(after_s=10.0)) == {0: 41}

    def test_what_expired_all_the_same_is_not_brought_back(self, old: Group) -> None:
        """Deleted by an operator, for all we know."""
        old.read({0: None})
        assert old.plan.wake_at() == inf

    def test_a_refused_keep_alive_is_told_and_waits_for_its_next_turn(self, old: Group) -> None:
        """It is not looped, and nothing is called uncommitted because of it."""
        old.read({0: 10})
        (note,) = old.answer(old.commit(after_s=0.0), failures={0: TOPIC_DENIED})
        assert isinstance(note, VersionFailed)
        assert not old.members[0].slot.dirty
        assert old.plan.wake_at() == 7200.0

    def test_a_lost_keep_alive_is_not_repeated_over_somebody_elses(self, old: Group) -> None:
        """It was to be committed because it stood; once it does not, it is not."""
        old.read({0: 10})
        old.answer(old.commit(after_s=0.0), failures={0: TIMED_OUT})
        (note,) = old.read({0: 40})
        assert isinstance(note, Noticed)
        while old.plan.wake_at() < 7200.0:
            old.now = old.plan.wake_at()
            if isinstance(old.due(), ReadBackRequest):
                assert old.read({0: 40}) == []
            assert old.due() is None

    def test_it_does_not_bring_a_parked_offset_along(self, old: Group) -> None:
        """What was refused for good waits for its user; what stands is kept alive."""
        old.submit(12, urgent=True)
        old.answer(old.commit(after_s=0.0), failures={0: TOPIC_DENIED})
        old.read({0: 10})
        assert sent(old.commit(after_s=0.0)) == {0: 10}

    def test_a_partition_that_cannot_be_read_is_not_asked_in_a_loop(self, old: Group) -> None:
        """Its turn comes again with the next round."""
        old.read({}, failures={0: TOPIC_DENIED})
        assert old.plan.wake_at() == 7200.0


class TestRounds:
    """Whether what was committed still stands."""

    @pytest.fixture
    def due(self) -> Group:
        """A group with an interval of 10 s, to be looked at while 12 waits for its commit."""
        group = Group(verify_interval_s=60.0)
        group.start(0)
        group.submit(11, urgent=True)
        group.answer(group.commit(after_s=0.0))
        assert group.due() is None
        assert 40.0 <= group.plan.wake_at() <= 70.0
        group.now = group.plan.wake_at() - 10.0
        group.submit(12)
        assert group.due() is None
        return group

    def test_the_look_is_right_before_the_commit(self, due: Group) -> None:
        """What somebody else commits stands until then; the commit is not put off by it."""
        due.wait()
        assert due.read({0: 11}) == []
        assert sent(due.commit(after_s=0.001)) == {0: 12}

    def test_an_urgent_commit_does_not_wait_for_it(self, due: Group) -> None:
        """Somebody waits for the commit alone."""
        due.plan.hurry()
        assert sent(due.commit(after_s=0.0)) == {0: 12}

    def test_a_look_that_fails_does_not_hold_back_the_commit(self, due: Group) -> None:
        """It is taken again with the next round."""
        due.wait()
        assert due.read({}, failures={0: LOADING}) == []
        assert sent(due.commit(after_s=0.001)) == {0: 12}

    def test_nobody_left_is_nothing_to_look_at(self, due: Group) -> None:
        """A group without managers sleeps."""
        due.plan.detach(tp(0), due.now)
        due.now += 10.0
        assert due.due() is None
        assert due.plan.wake_at() == inf


class TestRecovery:
    """A restarted committer knows nothing but its members and its ledger."""

    def test_everything_is_read_and_then_committed(self, group: Group) -> None:
        """Read before write, as for unknown outcomes."""
        group.start(0, 1)
        group.submit(12)
        again = Group()
        again.members = group.members
        again.plan.recover({tp(p): m for p, m in group.members.items()}, 0.0)
        again.fetch({tp(0): at(10), tp(1): at(10)})
        assert sent(again.commit()) == {0: 12}

    def test_nothing_is_committed_of_which_nobody_knows_the_initial_offset(
        self, group: Group
    ) -> None:
        """It may be lower than what is committed: its manager has to look first."""
        group.attach(0)
        group.submit(5)
        again = Group()
        again.members = group.members
        again.plan.recover({tp(0): group.members[0]}, 0.0)
        again.fetch({tp(0): at(10)}, told=False)
        again.plan.hurry()
        assert again.due() is None


@given(st.lists(st.integers(0, 5), max_size=40))
def test_no_order_of_outcomes_loses_the_newest_offset(outcomes: list[int]) -> None:
    """Whatever the answers, with time and successes the newest version is committed."""
    codes = (0, LOADING, UNKNOWN_TOPIC, TIMED_OUT, 7, 16)
    group = Group()
    group.start(0)
    held, offset = 10, 11
    for outcome in [*outcomes, *[0] * 30]:
        offset += 1
        group.submit(offset)
        group.now = max(group.now, min(group.plan.wake_at(), 1e9))
        request = group.due()
        if isinstance(request, ReadBackRequest):
            group.read({0: held})
        elif isinstance(request, CommitRequest):
            code = codes[outcome]
            held = sent(request)[0] if code in {0, 7} else held
            group.answer(request, failures={0: code} if code else {})
    group.plan.hurry()
    for _ in range(3):
        request = group.due()
        if isinstance(request, CommitRequest):
            held = sent(request)[0]
            group.answer(request)
        elif isinstance(request, ReadBackRequest):
            group.read({0: held})
    assert held == offset
    assert not group.members[0].slot.dirty
