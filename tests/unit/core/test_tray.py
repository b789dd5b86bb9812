"""The in-tray of a group: rounds of plain offsets, handed out when somebody looks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import PooledActor
from actors.testing import SimSystem
from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetRegressionError
from offsetmgr.manager.slot import SubmitSlot
from offsetmgr.manager.tray import Bell, Rung, Tray
from offsetmgr.types import MAX_OFFSET, StopResult, TopicPartition
from tests.unit.core.core import Core, at, tp

SIZE = 100


def offsets(value: int, size: int = SIZE) -> dict[TopicPartition, int]:
    """The same offset for each partition."""
    return {tp(p): value for p in range(size)}


@pytest.fixture
def group() -> Core:
    """A group of managers that commit when told, and have taken one round."""
    core = Core(commit_interval_s=3600.0)
    core.factory.spawn_many("g", list(offsets(0)))
    core.advance(1.0)
    assert core.factory.submit("g", offsets(5)) == {}
    return core


def tray(core: Core) -> Tray:
    """The tray of the group."""
    return core.factory.managers("g")[0]._desk.slot.tray


def rounds(core: Core) -> bool:
    """Whether the last submit was taken as a whole."""
    last = tray(core).last
    return last is not None and last.waits


class TestRounds:
    """The same partitions again, with higher offsets."""

    def test_a_round_is_taken_whole_and_reaches_every_manager(self, group: Core) -> None:
        """Whoever looks first finds it in every slot, and one commit carries it."""
        assert group.factory.submit("g", offsets(6)) == {}
        assert rounds(group)
        assert [h.status().submitted for h in group.factory.managers("g")] == [at(6)] * SIZE
        results = group.flush(group.factory.managers("g"), 5.0)
        assert results == [StopResult(at(6))] * SIZE
        assert [len(commit) for commit in group.commits()] == [SIZE]

    def test_of_many_rounds_only_the_last_is_committed(self, group: Core) -> None:
        """They replace each other as single submits do."""
        for value in range(6, 50):
            assert group.factory.submit("g", offsets(value)) == {}
        assert rounds(group)
        group.advance(3601.0)
        assert group.commits() == [dict.fromkeys(range(SIZE), 49)]

    def test_it_is_committed_within_the_interval(self, group: Core) -> None:
        """Its committer is rung for by a round as by a single submit."""
        group.flush(group.factory.managers("g"), 5.0)
        group.factory.submit("g", offsets(6))
        assert rounds(group)
        group.advance(3601.0)
        assert group.holds(SIZE - 1) == at(6)

    def test_a_hot_loop_of_rounds_rings_once(self, group: Core) -> None:
        """The committer's inbox does not grow with the submits."""
        for value in range(6, 500):
            group.factory.submit("g", offsets(value))
        assert len(group.committer().cell._inbox) <= 1

    def test_what_was_committed_already_makes_no_request(self, group: Core) -> None:
        """The same round again."""
        group.flush(group.factory.managers("g"), 5.0)
        assert group.factory.submit("g", offsets(5)) == {}
        assert rounds(group)
        group.advance(7200.0)
        assert len(group.commits()) == 1

    def test_a_round_while_the_one_before_is_being_committed_is_committed_too(self) -> None:
        """An acknowledgement of the older one does not pass for the newer one."""
        core = Core(commit_interval_s=1.0, latency_s=0.5)
        core.factory.spawn_many("g", list(offsets(0)))
        core.advance(1.0)
        core.factory.submit("g", offsets(5))
        core.advance(1.2)
        assert core.coordinator.in_flight("g") == 1
        core.factory.submit("g", offsets(6))
        core.advance(3.0)
        assert core.holds(0) == at(6)


class TestRefusals:
    """Nothing is taken whole that does not only rise."""

    def test_a_lower_offset_is_refused_in_the_answer_and_the_others_are_taken(
        self, group: Core
    ) -> None:
        """Compared with what waits, whether it was handed out or not."""
        group.factory.submit("g", offsets(8))
        refused = group.factory.submit("g", {**offsets(9), tp(3): 7})
        assert {where: type(error) for where, error in refused.items()} == {
            tp(3): OffsetRegressionError
        }
        group.flush(group.factory.managers("g"), 5.0)
        assert (group.holds(3), group.holds(4)) == (at(8), at(9))

    def test_a_round_after_a_single_submit_is_compared_with_that(self, group: Core) -> None:
        """Its floor is no longer that of the round before."""
        group.factory.submit("g", offsets(6))
        group.factory.managers("g")[3].submit(20)
        assert list(group.factory.submit("g", offsets(10))) == [tp(3)]
        group.flush(group.factory.managers("g"), 5.0)
        assert (group.holds(3), group.holds(4)) == (at(20), at(10))

    def test_a_single_submit_after_a_round_is_compared_with_that(self, group: Core) -> None:
        """Though nobody has handed it out."""
        group.factory.submit("g", offsets(20))
        handle = group.factory.managers("g")[3]
        with pytest.raises(OffsetRegressionError, match="lower than 20"):
            handle.submit(19)
        handle.rewind(19)
        assert group.factory.submit("g", offsets(20)) == {}

    def test_a_round_after_a_stop_is_refused_there(self, group: Core) -> None:
        """And what came before the stop is committed by it."""
        handle = group.factory.managers("g")[3]
        group.factory.submit("g", offsets(20))
        assert handle.stop(5.0) == StopResult(at(20))
        refused = group.factory.submit("g", offsets(21))
        assert {where: type(error) for where, error in refused.items()} == {
            tp(3): ManagerStoppedError
        }

    def test_a_round_before_the_initial_offset_is_known_is_compared_with_it(self) -> None:
        """A lower one is dropped and told, the others are committed."""
        core = Core()
        core.put(at(10), 1)
        core.factory.spawn_many("g", [tp(0), tp(1)])
        for value in (4, 5):
            assert core.factory.submit("g", offsets(value, 2)) == {}
        core.advance(3.0)
        assert (core.holds(0), core.holds(1)) == (at(5), at(10))
        assert list(core.factory.submit("g", offsets(6, 2))) == [tp(1)]

    def test_without_a_manager_all_are_refused(self, core: Core) -> None:
        """A group that is not there has none."""
        refused = core.factory.submit("nobody", offsets(1, 2))
        assert [type(error) for error in refused.values()] == [ManagerStoppedError] * 2
        assert "nobody/t/0 has no manager" in str(refused[tp(0)])

    def test_nothing_is_nothing(self, group: Core) -> None:
        """An empty submit is no round."""
        assert group.factory.submit("g", {}) == {}
        assert group.factory.submit("g", offsets(6)) == {}

    @pytest.mark.parametrize("bad", [-1, MAX_OFFSET + 1, True, 1.0, "1", None], ids=repr)
    @pytest.mark.parametrize("settled", [True, False])
    def test_a_bad_value_is_refused_with_its_place_and_nothing_is_taken(
        self, group: Core, *, bad: Any, settled: bool
    ) -> None:
        """At the first round and at any later one."""
        if settled:
            group.factory.managers("g")[0].submit(6)
        with pytest.raises(InvalidValueError) as caught:
            group.factory.submit("g", {**offsets(9), tp(7): bad})
        assert caught.value.field == "offsets[t-7]"
        assert group.factory.managers("g")[1].status().submitted == at(5)

    def test_what_stands_for_a_whole_number_is_one(self, group: Core) -> None:
        """As numerical libraries have them."""

        class Whole:
            def __index__(self) -> int:
                return 9

        whole: Any = Whole()
        assert group.factory.submit("g", {**offsets(9), tp(7): whole}) == {}
        assert group.factory.managers("g")[7].status().submitted == at(9)


class Visitor:
    """A committer's place, at a clock that stands still: what it is told, and when."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self.system = SimSystem(seed=1)
        self.told_at: list[float] = []
        self.bell = Bell(
            self.system.spawn(Told, self, name="committer"),
            self.system.timers,
            self.system.clock,
            interval_s,
        )

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.system.advance(seconds)


class Told(PooledActor):
    """Notes down when it is told something."""

    def __init__(self, visitor: Visitor) -> None:
        super().__init__()
        self._visitor = visitor

    def on_receive(self, message: object) -> None:
        """Whatever it is."""
        assert isinstance(message, Rung)
        self._visitor.told_at.append(self.system.clock.now())


def test_a_committer_that_comes_later_finds_what_was_put_in() -> None:
    """Whoever filled a slot before it was there need not do it again."""
    tray, visitor = Tray("g"), Visitor()
    slot = SubmitSlot(tray, tp(0))
    slot.put(5, "", None)
    tray.attend(visitor.bell)
    visitor.wait(10.0)
    assert visitor.told_at == [10.0]
    assert tray.heard(10.0)
    assert tray.collect(10.0) == ([slot], 0.0)


def test_a_committer_is_told_once_an_interval_after_the_first() -> None:
    """However much is put in meanwhile, and however often the managers come and go."""
    tray, visitor = Tray("g"), Visitor()
    slots = [SubmitSlot(tray, tp(number)) for number in range(3)]
    tray.attend(visitor.bell)
    for slot in slots:
        slot.put(5, "", None)
        visitor.wait(3.0)
        tray.attend(visitor.bell)
    visitor.wait(100.0)
    assert visitor.told_at == [10.0]
    assert tray.heard(10.0)
    assert tray.collect(10.0) == (slots, 0.0)


def test_what_comes_after_a_visit_is_rung_for_at_its_own_time() -> None:
    """The bell of what was collected early rings for nothing, and no second one beside it."""
    tray, visitor = Tray("g"), Visitor()
    early, late = SubmitSlot(tray, tp(0)), SubmitSlot(tray, tp(1))
    tray.attend(visitor.bell)
    early.put(5, "", None)
    visitor.wait(4.0)
    assert tray.collect(4.0) == ([early], 0.0)
    late.put(5, "", None)
    visitor.wait(6.0)
    assert visitor.told_at == [10.0]
    assert not tray.heard(10.0)
    assert tray.filled
    visitor.wait(4.0)
    assert visitor.told_at == [10.0, 14.0]
    assert tray.heard(14.0)
    assert tray.collect(14.0) == ([late], 4.0)
    assert not tray.heard(14.0)


def test_a_successor_is_rung_for_what_its_predecessor_left() -> None:
    """A bell that was under way to the one that is gone is no longer counted on."""
    tray, first, second = Tray("g"), Visitor(), Visitor()
    slot = SubmitSlot(tray, tp(0))
    tray.attend(first.bell)
    slot.put(5, "", None)
    tray.attend(second.bell)
    second.wait(10.0)
    assert second.told_at == [10.0]
    assert tray.heard(10.0)


class TestLookingAtRounds:
    """A committer that finds a round looks at it in one step."""

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["fresh", "settled", "parked", "sent", "waiting", "dropped"]),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def test_it_leaves_what_handing_out_and_looking_would(
        self, histories: list[tuple[str, int]]
    ) -> None:
        """Whatever became of what each slot held before."""
        offsets = [5 + more for _, more in histories]
        at_once, by_hand = held(histories, offsets), held(histories, offsets)
        dirty, since = at_once.collect(1.0)
        last = by_hand.last
        assert last is not None
        assert last.waits
        with by_hand.lock:
            by_hand.hand_out()
            touched = SubmitSlot.look_at(by_hand._touched)
        assert [slot.where for slot in dirty] == [slot.where for slot in touched]
        assert since == 1.0
        assert at_once.last is not None
        for one, other in zip(at_once.last.slots, last.slots, strict=True):
            # Whoever else looks finds the same; what is in flight may be looked at later.
            assert one.newest == other.newest
            assert one.outlook() == other.outlook()
            assert (one.floor, one.armed, one.settled) == (other.floor, other.armed, other.settled)


def held(histories: list[tuple[str, int]], offsets: list[int]) -> Tray:
    """A tray whose slots have these histories, with a round of ``offsets`` in it."""
    tray = Tray("g")
    slots = [SubmitSlot(tray, tp(number)) for number in range(len(histories))]
    for slot, (history, _) in zip(slots, histories, strict=True):
        if history == "dropped":
            slot.put(3, "", None)
        slot.establish(at(4) if history == "dropped" else None)
        if history not in {"fresh", "dropped"}:
            slot.put(5, "", None)
    tray.collect(0.0)
    for slot, (history, _) in zip(slots, histories, strict=True):
        if history == "settled":
            slot.settle(1)
        elif history == "parked":
            slot.park(1)
        elif history == "waiting":
            slot.put(6, "", None)
    with tray.lock:
        tray.remember([slot.where for slot in slots], slots, [0] * len(slots))
    assert tray.repeat({slot.where: offset for slot, offset in zip(slots, offsets, strict=True)})
    return tray
