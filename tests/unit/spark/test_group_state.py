"""The group's offsets from queries' progress: forward in a run, lowest of several queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.spark.group_state import Decision, GroupState, Lower
from offsetmgr.spark.progress import Run, Snapshot
from offsetmgr.types import TopicPartition

KEY = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


class Call:
    def __init__(self, session: str) -> None:
        self.session: object = session


CALL = Call("one")


def snapshot(
    *offsets: dict[int, int],
    query: str = "q",
    run: str = "r1",
    batch: int = 0,
    second: int = 0,
    name: str | None = "",
) -> Snapshot:
    """A snapshot with a source for each of ``offsets``; the query has its id as its name."""
    sources = [{TopicPartition("orders", p): o for p, o in each.items()} for each in offsets]
    time = f"2026-01-01T00:00:{second:02}.000Z"
    shown = query if name == "" else name
    return Snapshot(Run(query, run), shown, time, batch, tuple(sources), {})


@pytest.fixture
def state() -> GroupState:
    return GroupState()


def test_a_lower_offset_in_a_repeated_report_is_refused_alone(state: GroupState) -> None:
    """A partition that goes back within one batch is refused; its peers go on."""
    state.progress(snapshot({0: 23, 1: 5}), {}, CALL)
    decision = state.progress(snapshot({0: 22, 1: 6}), {}, CALL)
    assert decision.lower == {KEY: Lower(22, 23)}
    assert set(decision.commits) == {OTHER}


@pytest.mark.parametrize("idle", [0, 1], ids=["busy", "idle"])
def test_a_lower_offset_in_a_later_batch_is_followed(state: GroupState, idle: int) -> None:
    """The query reads another log, such as of a recreated topic: a rewind, reported once.

    The report of an idle query has the number of its next batch already.
    """
    state.progress(snapshot({0: 100, 1: 5}, batch=idle), {}, CALL)
    decision = state.progress(snapshot({0: 30, 1: 6}, batch=1, second=1), {}, CALL)
    assert (decision.submits, decision.rewinds) == ({OTHER: 6}, {KEY: 30})
    assert decision.other_log == {KEY: Lower(30, 100)}
    following = state.progress(snapshot({0: 40, 1: 6}, batch=3), {}, CALL)
    assert following == Decision({KEY: 40, OTHER: 6})
    assert state.progress(snapshot({0: 35, 1: 6}, batch=2), {}, CALL) == Decision(), "a late report"


def test_a_name_is_unique_in_its_session_alone(state: GroupState) -> None:
    """Running queries of two sessions may have the same name; a stopped one runs again anywhere."""
    first = snapshot({0: 10}, query="p", name="etl")
    second = snapshot({0: 50}, query="q", name="etl")
    state.progress(first, {}, CALL)
    assert state.progress(second, {}, Call("other")).commits[KEY] == 10
    state.end(Run("p", "r1"))
    third = snapshot({0: 60}, query="r", name="etl")
    assert state.progress(third, {}, Call("other")).commits[KEY] == 60


def test_a_new_run_may_go_back_and_says_from_where(state: GroupState) -> None:
    """The first snapshot of a new run is a rewind where it is lower."""
    state.progress(snapshot({0: 23, 1: 5}, batch=9), {}, CALL)
    decision = state.progress(snapshot({0: 10, 1: 6}, run="r2", second=1), {}, CALL)
    assert decision.rewinds[KEY] == 10
    assert decision.back == {KEY: Lower(10, 23)}
    assert decision.rewinds[OTHER] == 6


@pytest.mark.parametrize(
    ("batch", "second", "counts"),
    [
        pytest.param(10, 5, True, id="later"),
        pytest.param(10, 1, True, id="the clock was set back"),
        pytest.param(7, 5, True, id="the checkpoint was set back"),
        pytest.param(8, 1, False, id="an older run that nobody heard of"),
    ],
)
def test_a_late_report_of_another_run_is_known(
    state: GroupState, batch: int, second: int, *, counts: bool
) -> None:
    """Its time and its batch are earlier; the first report of a new run is a rewind."""
    state.progress(snapshot({0: 23}, batch=9, second=4), {}, CALL)
    first = state.progress(snapshot({0: 30}, run="r2", batch=batch, second=second), {}, CALL)
    assert first.rewinds == ({KEY: 30} if counts else {})
    if counts:
        next_one = snapshot({0: 40}, run="r2", batch=batch + 1, second=second + 1)
        assert state.progress(next_one, {}, CALL).submits == {KEY: 40}


def test_sources_of_one_topic_commit_the_lowest(state: GroupState) -> None:
    """Those of one query and of several; one that joins behind takes its group back."""
    first = state.progress(snapshot({0: 53}, {0: 50}), {}, CALL)
    assert (first.commits, first.shared) == ({KEY: 50}, {"orders"})
    joined = state.progress(snapshot({0: 20}, {0: 23}, query="p"), {}, CALL)
    assert (joined.rewinds, joined.shared) == ({KEY: 20}, {"orders"})
    assert state.progress(snapshot({0: 60}, batch=1), {}, CALL).commits[KEY] == 20


def test_an_ended_run_releases_unshared_partitions(state: GroupState) -> None:
    """Partitions are left with their last running query, once."""
    state.progress(snapshot({0: 50, 1: 5}), {}, CALL)
    state.progress(snapshot({0: 20}, query="p"), {}, CALL)
    assert state.end(Run("q", "r1")).unread == {OTHER}
    assert state.end(Run("q", "r1")) == Decision()
    assert state.end(Run("p", "another run")) == Decision()
    assert list(state.running()) == [Run("p", "r1")]
    assert state.end(Run("p", "r1")).unread == {KEY}
    assert not state.running()


@pytest.mark.parametrize("committed", [{}, {KEY: 90}])
def test_the_last_report_of_an_ended_run_is_still_taken(
    state: GroupState, committed: dict[TopicPartition, int]
) -> None:
    """The last read offsets are submitted, but do not undo a later commit by others."""
    state.progress(snapshot({0: 50}), {}, CALL)
    state.end(Run("q", "r1"))
    decision = state.progress(snapshot({0: 60}, batch=1), committed, CALL)
    assert decision.commits == ({} if committed else {KEY: 60})
    assert decision.lower == ({KEY: Lower(60, 90)} if committed else {})
    assert state.end(Run("q", "r1")).unread == (set() if committed else {KEY})


@pytest.fixture
def behind(state: GroupState) -> GroupState:
    """Query q is at 100 and runs, query p has stopped at 10."""
    state.progress(snapshot({0: 100}), {}, CALL)
    state.progress(snapshot({0: 10}, query="p"), {}, CALL)
    assert state.end(Run("p", "r1")) == Decision(held_back="p")
    return state


def test_a_stopped_query_keeps_its_group_back(behind: GroupState) -> None:
    """The others commit no further than it has read; its last report still counts."""
    assert behind.progress(snapshot({0: 200}, batch=1), {}, CALL).commits[KEY] == 10
    assert behind.progress(snapshot({0: 15}, query="p", batch=1), {}, CALL).commits == {KEY: 15}
    assert behind.end(Run("p", "r1")).held_back == "p"
    assert behind.progress(snapshot({0: 300}, batch=2), {}, CALL).commits[KEY] == 15


@pytest.mark.parametrize("query", ["p", "under a new checkpoint"])
def test_a_stopped_query_that_runs_again_goes_on(behind: GroupState, query: str) -> None:
    """It is known by its id or by its name, and counts by what its new run reads."""
    again = snapshot({0: 40}, query="p", run="r2", second=1)._replace(run=Run(query, "r2"))
    assert behind.progress(again, {}, CALL).commits[KEY] == 40
    assert behind.progress(snapshot({0: 200}, batch=1), {}, CALL).commits[KEY] == 40
    assert behind.progress(again._replace(batch_id=1), {}, CALL).commits[KEY] == 40


def test_a_query_without_a_name_is_known_by_its_id_alone(state: GroupState) -> None:
    """Under a new checkpoint it is another query: the one before still counts."""
    state.progress(snapshot({0: 100}), {}, CALL)
    state.progress(snapshot({0: 10}, query="p", name=None), {}, CALL)
    assert state.end(Run("p", "r1")).held_back == "p"
    again = snapshot({0: 40}, query="new", name=None)
    assert state.progress(again, {}, CALL).commits[KEY] == 10


def test_a_group_stays_back_when_all_have_stopped(behind: GroupState) -> None:
    """The managers are released; who runs first again does not pass the other one."""
    assert behind.end(Run("q", "r1")).unread == {KEY}
    again = snapshot({0: 110}, run="r2", second=1)
    assert behind.progress(again, {KEY: 10}, CALL).commits[KEY] == 10


@pytest.mark.parametrize("query", ["p", "its name"])
def test_a_released_query_lets_its_group_go_on(state: GroupState, query: str) -> None:
    """At once, by its id or name, whatever it still reports."""
    state.progress(snapshot({0: 100}), {}, CALL)
    stopped = snapshot({0: 10}, query="p", name="its name")
    state.progress(stopped, {}, CALL)
    state.end(Run("p", "r1"))
    assert state.release(query) == Decision({KEY: 100})
    late = snapshot({0: 150}, query="p", batch=1, name="its name")
    assert not state.progress(late, {}, CALL).commits
    assert state.progress(snapshot({0: 200}, batch=1), {}, CALL).commits[KEY] == 200
    assert state.end(Run("p", "r1")) == Decision()
    assert state.release("unknown") is None


def test_ended_runs_are_remembered_within_bounds(state: GroupState) -> None:
    """A driver that runs queries without end does not grow."""
    for number in range(1_005):
        state.progress(snapshot({0: 1}, query=str(number)), {}, CALL)
        state.end(Run(str(number), "r1"))
    assert len(state._queries) <= 1_000


EVENTS = st.lists(
    st.tuples(st.sampled_from("qp"), st.integers(0, 3), st.integers(0, 100), st.booleans()),
    max_size=20,
)


@given(EVENTS)
def test_never_ahead_of_any_query(events: list[tuple[str, int, int, bool]]) -> None:
    """Nothing is ever submitted ahead of a query that shares the partition.

    Not even of one that has stopped, unless it was alone then.
    """
    state = GroupState()
    runs = dict.fromkeys("qp", 0)
    running: set[str] = set()
    at: dict[str, int] = {}
    for step, (query, restart, offset, ends) in enumerate(events):
        if restart == 0 or query not in running:
            runs[query] += 1
            at.pop(query, None)
        running.add(query)
        at[query] = max(at.get(query, 0), offset)
        run = f"{query}{runs[query]}"
        what = snapshot({0: at[query]}, query=query, run=run, batch=step, second=step)
        assert state.progress(what, {}, CALL).commits[KEY] == min(at.values())
        if ends:
            state.end(Run(query, run))
            running.remove(query)
            if len(at) == 1:
                del at[query]
