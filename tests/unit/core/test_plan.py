"""What a group asks next: each rule of the plan, without actors and without time passing."""

from __future__ import annotations

from math import inf

import pytest

from offsetmgr.coordinator.base import FetchResult
from offsetmgr.manager.requests import (
    BATCH_LIMIT,
    FetchRequest,
    InitialFailed,
    InitialKnown,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.slot import SubmitSlot, Version
from tests.unit.core.core import (
    LOADING,
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


class TestReading:
    """Initial offsets."""

    def test_all_that_wait_go_into_one_request(self, group: Group) -> None:
        """A thousand managers cost one fetch."""
        group.attach(*range(1000))
        request = group.due()
        assert isinstance(request, FetchRequest)
        assert len(request.members) == 1000

    def test_what_is_found_is_told(self, group: Group) -> None:
        """Offsets and nothings alike; then nothing is left to ask."""
        group.attach(0, 1)
        notes = group.fetch({tp(0): at(7), tp(1): None})
        assert notes == [InitialKnown(at(7)), InitialKnown(None)]
        assert group.due() is None
        assert group.plan.wake_at() == inf

    def test_an_unreadable_partition_does_not_hold_back_its_peers(self, group: Group) -> None:
        """It backs off alone: who is spawned meanwhile is fetched at once."""
        group.attach(0, 1)
        notes = group.fetch({tp(1): at(7)}, failures={0: TOPIC_DENIED})
        assert isinstance(notes[0], InitialFailed)
        assert group.due() is None
        group.attach(2)
        assert group.fetch({tp(2): at(5)}) == [InitialKnown(at(5))]
        assert group.plan.wake_at() > group.now

    def test_an_error_of_the_group_pauses_all_reads(self, group: Group) -> None:
        """A coordinator that is loading is not asked by each new manager."""
        group.attach(0)
        group.fetch({}, failures={0: LOADING})
        group.attach(1)
        assert group.due() is None
        group.wait()
        group.fetch({tp(0): None, tp(1): None})

    def test_an_answer_to_a_predecessor_is_not_its_successors(self, group: Group) -> None:
        """What was read before a manager was spawned is not its initial offset."""
        group.attach(0)
        request = group.due()
        assert isinstance(request, FetchRequest)
        group.plan.detach(tp(0), 0.0)
        group.attach(0)
        old = {tp(0): at(7)}
        assert group.plan.fetched(request, FetchResult(old, {}), 0.0) == []
        assert isinstance(group.due(), FetchRequest)

    def test_more_than_one_request_can_carry_come_in_turns(self, group: Group) -> None:
        """Requests have a limit; nobody is forgotten."""
        group.attach(*range(BATCH_LIMIT + 5))
        group.fetch({tp(p): None for p in range(BATCH_LIMIT)})
        group.fetch({tp(p): None for p in range(BATCH_LIMIT, BATCH_LIMIT + 5)})
        assert group.due() is None

    def test_nothing_is_written_before_it_was_read(self, group: Group) -> None:
        """Not even when somebody is in a hurry."""
        group.attach(0)
        group.submit(12)
        group.plan.hurry()
        assert isinstance(group.due(), FetchRequest)

    def test_a_stream_of_new_managers_does_not_starve_a_due_commit(self, group: Group) -> None:
        """Between two reads a commit that is due has its turn."""
        group.start(0)
        group.submit(12)
        group.attach(1)
        group.fetch({tp(1): None})
        group.attach(2)
        group.answer(group.commit(after_s=10.0))
        assert isinstance(group.due(), FetchRequest)


class TestCommitting:
    """Dirty partitions."""

    def test_an_interval_passes_first(self, group: Group) -> None:
        """Submits of an interval become one commit, of the newest."""
        group.start(0)
        group.submit(12)
        assert group.due() is None
        assert group.plan.wake_at() == 10.0
        group.submit(13)
        assert sent(group.commit(after_s=10.0)) == {0: 13}

    def test_all_that_is_dirty_goes_along(self, group: Group) -> None:
        """One request carries also what became dirty just now."""
        group.start(0, 1)
        group.submit(12)
        group.now = 9.9
        group.submit(22, partition=1)
        assert sent(group.commit(after_s=0.1)) == {0: 12, 1: 22}

    def test_urgent_ones_do_not_wait(self, group: Group) -> None:
        """Somebody waits for it."""
        group.start(0)
        group.submit(12, urgent=True)
        assert sent(group.commit(after_s=0.0)) == {0: 12}

    def test_a_hurry_takes_all_that_is_dirty(self, group: Group) -> None:
        """A flush of a thousand is one request."""
        group.start(*range(1000))
        for partition in range(1000):
            group.submit(12, partition)
        group.plan.hurry()
        request = group.commit(after_s=0.0)
        assert len(request.versions) == 1000
        group.answer(request)
        assert group.due() is None

    def test_a_hurry_takes_also_what_one_request_cannot_carry(self, group: Group) -> None:
        """The rest follows at once, not an interval later."""
        many = BATCH_LIMIT + 3
        group.start(*range(BATCH_LIMIT))
        group.start(*range(BATCH_LIMIT, many))
        for partition in range(many):
            group.submit(12, partition)
        group.plan.hurry()
        group.answer(group.commit(after_s=0.0))
        assert len(group.commit(after_s=0.0).versions) == 3

    def test_what_was_hurried_while_a_commit_is_under_way_follows_at_once(
        self, group: Group
    ) -> None:
        """A flush waits for the newest version, which may not be the one in flight."""
        group.start(0)
        group.submit(12)
        request = group.commit()
        group.submit(13)
        group.plan.hurry()
        assert group.answer(request) == [VersionCommitted(Version(1, at(12)), clean=False)]
        assert sent(group.commit(after_s=0.0)) == {0: 13}

    def test_what_became_newer_meanwhile_waits_its_own_interval(self, group: Group) -> None:
        """Constant submits make one commit per interval, not one per answer."""
        group.start(0)
        group.submit(12)
        request = group.commit()
        group.submit(13)
        group.answer(request)
        assert group.due() is None
        assert group.plan.wake_at() == group.now + 10.0

    def test_what_is_committed_already_needs_no_request(self, group: Group) -> None:
        """To rewind and come back within an interval changes nothing."""
        group.start(0)
        slot = group.members[0].slot
        slot.offer(at(5), rewind=True)
        group.plan.mark_dirty(tp(0), 0.0)
        slot.offer(at(10))
        group.now = 10.0
        assert group.plan.next_request(10.0) == (
            None,
            [(tp(0), VersionCommitted(Version(1, at(10)), clean=True))],
        )
        assert not slot.dirty

    def test_a_submit_that_comes_in_between_is_not_lost(
        self, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another thread may submit just when an equal offset is found to need no request."""
        group.start(0)
        slot = group.members[0].slot
        slot.offer(at(5), rewind=True)
        group.plan.mark_dirty(tp(0), 0.0)
        slot.offer(at(10))
        settle = SubmitSlot.settle

        def interrupted(self: SubmitSlot, number: int) -> bool:
            monkeypatch.undo()
            assert self.armed, "nobody would ring for the committer"
            self.offer(at(11))
            return settle(self, number)

        monkeypatch.setattr(SubmitSlot, "settle", interrupted)
        assert sent(group.commit(after_s=10.0)) == {0: 11}

    def test_a_mark_that_comes_late_needs_no_request(self, group: Group) -> None:
        """What it speaks of was committed meanwhile."""
        group.start(0)
        group.submit(12)
        group.answer(group.commit())
        group.plan.mark_dirty(tp(0), group.now, urgent=True)
        assert group.due() is None

    def test_busy_partitions_do_not_starve_the_rest(self, group: Group) -> None:
        """Where one request cannot carry all, those that have waited go first."""
        many = BATCH_LIMIT + 3
        group.start(*range(BATCH_LIMIT))
        group.start(*range(BATCH_LIMIT, many))
        for partition in range(many):
            group.submit(12, partition)
        request = group.commit()
        for partition in range(BATCH_LIMIT):
            group.submit(13, partition)
        group.answer(request)
        carried = sent(group.commit(after_s=0.0))
        assert {p: carried[p] for p in range(BATCH_LIMIT, many)} == dict.fromkeys(
            range(BATCH_LIMIT, many), 12
        )

    def test_who_is_gone_is_not_committed(self, group: Group) -> None:
        """Its last offset is in the answer of its stop."""
        group.start(0, 1)
        group.submit(12)
        group.submit(13, partition=1)
        group.plan.detach(tp(0), 0.0)
        assert sent(group.commit()) == {1: 13}

    def test_a_mark_of_one_who_is_gone_is_nothing(self, group: Group) -> None:
        """Messages may cross."""
        group.start(0)
        group.plan.detach(tp(0), 0.0)
        group.plan.mark_dirty(tp(0), 0.0, urgent=True)
        assert group.due() is None


class TestRefusals:
    """The coordinator says no."""

    @pytest.mark.fault(23)
    def test_one_refused_partition_backs_off_alone(self, group: Group) -> None:
        """Its peers are committed, now and in the next interval."""
        group.start(0, 1)
        group.submit(12)
        group.submit(13, partition=1)
        notes = group.answer(group.commit(), failures={0: UNKNOWN_TOPIC})
        assert [type(note) for note in notes] == [VersionFailed, VersionCommitted]
        group.submit(14, partition=1, urgent=True)
        assert sent(group.commit(after_s=0.0)) == {1: 14}

    def test_an_error_of_the_group_backs_all_off(self, group: Group) -> None:
        """Nobody asks a coordinator that is loading, not even for something urgent."""
        group.start(0, 1)
        group.submit(12)
        group.answer(group.commit(), failures={0: LOADING})
        group.submit(13, partition=1, urgent=True)
        assert group.due() is None

    def test_after_an_error_only_the_pause_counts(self, group: Group) -> None:
        """What was due is tried again after its pause, not an interval later."""
        group.start(0)
        group.submit(12, urgent=True)
        group.answer(group.commit(after_s=0.0), failures={0: LOADING})
        assert group.plan.wake_at() <= group.now + group.settings.retry_backoff_s

    def test_who_only_went_along_is_not_put_off_either(self, group: Group) -> None:
        """What was sent before its own interval was over is tried again after the pause, too."""
        group.start(0, 1)
        group.submit(12)
        group.now = 9.9
        group.submit(13, partition=1)
        group.answer(group.commit(after_s=0.1), failures={1: UNKNOWN_TOPIC})
        assert group.plan.wake_at() <= group.now + group.settings.retry_backoff_s

    @pytest.mark.parametrize("code", [LOADING, UNKNOWN_TOPIC])
    def test_pauses_double_up_to_the_longest_with_jitter(self, group: Group, code: int) -> None:
        """Between half and the whole of 0.2, 0.4, 0.8 ... 30 s, for ever."""
        group.start(0)
        group.submit(12)
        request = group.commit()
        for attempt in range(2000):
            group.answer(request, failures={0: code})
            whole = min(30.0, 0.2 * 2 ** min(attempt, 20))
            pause = group.plan.wake_at() - group.now
            assert whole / 2 - 1e-9 <= pause <= whole + 1e-9
            group.wait()
            request = group.commit(after_s=0.0)

    def test_a_success_forgives(self, group: Group) -> None:
        """The next error begins with the shortest pause again."""
        group.start(0)
        group.submit(12)
        for _ in range(5):
            group.answer(group.commit(), failures={0: LOADING})
        group.answer(group.commit())
        group.submit(13)
        group.answer(group.commit(), failures={0: LOADING})
        assert group.plan.wake_at() <= group.now + 0.2

    def test_a_hurry_forgives_once(self, group: Group) -> None:
        """Somebody waits, so the pause of an earlier error is cut short."""
        group.start(0, 1)
        group.submit(12)
        group.submit(13, partition=1)
        for _ in range(10):
            request = group.commit()
            group.answer(request, failures={0: UNKNOWN_TOPIC, 1: LOADING})
        assert group.due() is None
        group.plan.hurry()
        assert sent(group.commit(after_s=0.0)) == {0: 12, 1: 13}

    @pytest.mark.fault(22)
    def test_a_permanent_refusal_is_told_once_and_parked(self, group: Group) -> None:
        """It is not looped; it stays dirty and visible."""
        group.start(0)
        group.submit(12)
        (note,) = group.answer(group.commit(), failures={0: TOPIC_DENIED})
        assert isinstance(note, VersionFailed)
        assert note.final
        assert group.members[0].slot.dirty
        group.now += 1e6
        assert group.due() is None

    def test_what_is_parked_is_tried_again_with_the_next_submit(self, group: Group) -> None:
        """The same offset once more is enough."""
        group.start(0)
        group.submit(12)
        group.answer(group.commit(), failures={0: TOPIC_DENIED})
        group.submit(12)
        assert sent(group.commit()) == {0: 12}

    def test_a_permanent_refusal_of_an_old_version_does_not_park_the_new_one(
        self, group: Group
    ) -> None:
        """Too much metadata in one submit says nothing of the next."""
        group.start(0)
        group.submit(12)
        request = group.commit()
        group.submit(13)
        (note,) = group.answer(request, failures={0: TOPIC_DENIED})
        assert isinstance(note, VersionFailed)
        assert not note.final
        # Not at once: who submits all the time would be refused as often as Kafka can answer.
        assert group.due() is None
        assert sent(group.commit(after_s=10.0)) == {0: 13}
