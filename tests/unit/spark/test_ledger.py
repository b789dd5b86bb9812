"""What a query's progress comes to: forward within a run, back between runs, lowest of several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.spark.groups import GroupOfTopic, OneGroup
from offsetmgr.spark.ledger import GroupTopic, Ledger, Move, Refusal
from offsetmgr.spark.progress import Snapshot, SourceOffsets
from offsetmgr.types import ManagerKey, TopicPartition

KEY = ManagerKey("etl", "orders", 0)
OTHER = ManagerKey("etl", "orders", 1)


def snapshot(
    *offsets: dict[int, int],
    query: str = "q",
    run: str = "r1",
    batch: int = 0,
    second: int = 0,
    topic: str = "orders",
) -> Snapshot:
    """A snapshot with a source for each of ``offsets``, all reading one topic."""
    sources = [
        SourceOffsets("KafkaV2[...]", {TopicPartition(topic, p): o for p, o in each.items()})
        for each in offsets
    ]
    time = f"2026-01-01T00:00:{second:02}.000Z"
    return Snapshot(query, run, query, time, batch, tuple(sources), {})


@pytest.fixture
def ledger() -> Ledger:
    """One group for every topic."""
    return Ledger(OneGroup("etl"))


def test_end_offsets_are_committed_as_they_are(ledger: Ledger) -> None:
    """Spark's end offset is the next to read already: nothing is added or taken."""
    decision = ledger.observe(snapshot({0: 23}), {})
    assert {key: move.offset for key, move in decision.moves.items()} == {KEY: 23}


def test_a_run_goes_forward_with_plain_submits(ledger: Ledger) -> None:
    """After its first snapshot a run never rewinds."""
    ledger.observe(snapshot({0: 23}), {})
    decision = ledger.observe(snapshot({0: 40}, batch=1), {})
    assert decision.moves == {KEY: Move(40, rewind=False, back_from=None)}


def test_the_same_batch_again_changes_nothing(ledger: Ledger) -> None:
    """A re-run of a batch repeats its end offset, which is submitted and refused nowhere."""
    ledger.observe(snapshot({0: 23}), {})
    decision = ledger.observe(snapshot({0: 23}), {})
    assert decision.moves == {KEY: Move(23, rewind=False, back_from=None)}
    assert not decision.refused


def test_a_lower_offset_in_one_run_is_refused_alone(ledger: Ledger) -> None:
    """A partition that goes back within a run is refused; its peers go on."""
    ledger.observe(snapshot({0: 23, 1: 5}), {})
    decision = ledger.observe(snapshot({0: 22, 1: 6}, batch=1), {})
    assert decision.refused == {KEY: Refusal(22, 23)}
    assert set(decision.moves) == {OTHER}


def test_a_late_report_of_the_run_changes_nothing(ledger: Ledger) -> None:
    """A report of an older batch is neither submitted nor refused."""
    ledger.observe(snapshot({0: 23}, batch=3), {})
    decision = ledger.observe(snapshot({0: 22}, batch=2), {})
    assert not decision.moves
    assert not decision.refused


def test_a_new_run_may_go_back_and_says_from_where(ledger: Ledger) -> None:
    """The first snapshot of a new run is a rewind where it is lower."""
    ledger.observe(snapshot({0: 23, 1: 5}, batch=9), {})
    decision = ledger.observe(snapshot({0: 10, 1: 6}, run="r2", second=1), {})
    assert decision.moves[KEY] == Move(10, rewind=True, back_from=23)
    assert decision.moves[OTHER] == Move(6, rewind=True, back_from=None)


def test_a_first_run_knows_what_the_group_had_committed(ledger: Ledger) -> None:
    """Where the group was ahead of a query that starts, giving that up is said."""
    first = snapshot({0: 10})
    assert ledger.new_groups(first) == {"etl"}
    decision = ledger.observe(first, {KEY: 500})
    assert decision.moves == {KEY: Move(10, rewind=True, back_from=500)}
    assert ledger.new_groups(first) == set()


def test_a_report_of_an_older_run_changes_nothing(ledger: Ledger) -> None:
    """Once a new run has reported, a late report of the older one is no new run."""
    ledger.observe(snapshot({0: 23}, batch=9, second=1), {})
    ledger.observe(snapshot({0: 30}, run="r2", second=2), {})
    assert not ledger.observe(snapshot({0: 24}, batch=10, second=1), {}).moves


def test_a_new_run_counts_whatever_the_clock_says(ledger: Ledger) -> None:
    """A clock that was set back silences no new run, nor makes the run before it a new one."""
    ledger.observe(snapshot({0: 23}, batch=9, second=50), {})
    first = ledger.observe(snapshot({0: 30}, run="r2", batch=10, second=1), {})
    assert first.moves == {KEY: Move(30, rewind=True, back_from=None)}
    assert not ledger.observe(snapshot({0: 23}, batch=9, second=50), {}).moves
    following = ledger.observe(snapshot({0: 40}, run="r2", batch=11, second=2), {})
    assert following.moves == {KEY: Move(40, rewind=False, back_from=None)}


def test_a_run_that_nobody_heard_of_is_known_to_be_older(ledger: Ledger) -> None:
    """A report of an earlier time and an earlier batch is late, also as the first of its run."""
    ledger.observe(snapshot({0: 30}, run="r2", batch=10, second=5), {})
    assert not ledger.observe(snapshot({0: 23}, batch=9, second=1), {}).moves


def test_a_checkpoint_may_be_set_back(ledger: Ledger) -> None:
    """A later run counts also where its batches begin below those of the run before."""
    ledger.observe(snapshot({0: 30}, batch=10, second=1), {})
    decision = ledger.observe(snapshot({0: 23}, run="r2", batch=7, second=5), {})
    assert decision.moves == {KEY: Move(23, rewind=True, back_from=30)}


@pytest.mark.parametrize("offsets", [(23, 20), (20, 23)])
def test_two_sources_on_one_topic_commit_the_lowest(
    ledger: Ledger, offsets: tuple[int, int]
) -> None:
    """Of two sources in one query the one behind counts, whichever it is, and it is told."""
    decision = ledger.observe(snapshot(*({0: offset} for offset in offsets)), {})
    assert decision.moves[KEY].offset == 20
    assert decision.shared == {GroupTopic("etl", "orders")}


def test_two_queries_on_one_topic_commit_the_lowest(ledger: Ledger) -> None:
    """Of two queries the one behind counts, also where it joins later."""
    ledger.observe(snapshot({0: 50}), {})
    joined = ledger.observe(snapshot({0: 20}, query="p"), {})
    assert joined.moves == {KEY: Move(20, rewind=True, back_from=50)}
    assert joined.shared == {GroupTopic("etl", "orders")}
    assert ledger.observe(snapshot({0: 60}, batch=1), {}).moves[KEY].offset == 20
    assert ledger.observe(snapshot({0: 90}, query="p", batch=1), {}).moves[KEY].offset == 60


def test_each_topic_goes_to_its_own_group() -> None:
    """With a group per topic, a topic without one is told and left alone."""
    ledger = Ledger(GroupOfTopic({"orders": "etl"}))
    assert set(ledger.observe(snapshot({0: 1}), {}).moves) == {KEY}
    stray = ledger.observe(snapshot({0: 1}, query="p", topic="payments"), {})
    assert not stray.moves
    assert stray.ungrouped == {"payments"}


def test_an_ended_run_releases_what_nobody_else_reads(ledger: Ledger) -> None:
    """Keys are released with their last reader, once."""
    ledger.observe(snapshot({0: 50, 1: 5}), {})
    ledger.observe(snapshot({0: 20}, query="p"), {})
    assert ledger.end("q", "r1") == {OTHER}
    assert ledger.end("q", "r1") == frozenset()
    assert ledger.end("p", "another run") == frozenset()
    assert ledger.end_all() == {KEY}
    assert ledger.end_all() == frozenset()


def test_the_last_report_of_an_ended_run_is_still_taken(ledger: Ledger) -> None:
    """What a finished query read last is submitted, without a licence to go back."""
    ledger.observe(snapshot({0: 50}), {})
    ledger.end("q", "r1")
    last = snapshot({0: 60}, batch=1)
    assert ledger.observe(last, {}).moves == {KEY: Move(60, rewind=False, back_from=None)}
    assert ledger.end("q", "r1") == {KEY}


def test_the_last_report_of_an_ended_run_undoes_nobodys_commit(ledger: Ledger) -> None:
    """What somebody else has committed since is not taken back."""
    ledger.observe(snapshot({0: 50}), {})
    ledger.end("q", "r1")
    decision = ledger.observe(snapshot({0: 60}, batch=1), {KEY: 90})
    assert not decision.moves
    assert decision.refused == {KEY: Refusal(60, 90)}


def test_an_ended_run_holds_nobody_back(ledger: Ledger) -> None:
    """Where another query reads on, the last report of an ended one is not committed."""
    ledger.observe(snapshot({0: 50}), {})
    ledger.observe(snapshot({0: 70}, query="p"), {})
    ledger.end("q", "r1")
    assert not ledger.observe(snapshot({0: 60}, batch=1), {}).moves
    assert ledger.observe(snapshot({0: 80}, query="p", batch=1), {}).moves[KEY].offset == 80


def test_the_end_of_the_query_behind_moves_nothing(ledger: Ledger) -> None:
    """Started again without its checkpoint it begins where the group is: nothing is passed over."""
    ledger.observe(snapshot({0: 100}), {})
    ledger.observe(snapshot({0: 10}, query="p"), {})
    assert not ledger.end("p", "r1")
    assert ledger.end("q", "r1") == {KEY}


def test_a_new_run_releases_what_it_no_longer_reads(ledger: Ledger) -> None:
    """A restart that lost its end event leaves no key behind."""
    ledger.observe(snapshot({0: 50, 1: 5}), {})
    decision = ledger.observe(snapshot({0: 50}, run="r2", second=1), {})
    assert decision.released == {OTHER}


def test_ended_runs_are_remembered_within_bounds(ledger: Ledger) -> None:
    """A driver that runs queries without end does not grow."""
    for number in range(1_500):
        ledger.observe(snapshot({0: 1}, query=str(number)), {})
        ledger.end(str(number), "r1")
    assert len(ledger._runs) <= 1_000


EVENTS = st.lists(
    st.tuples(st.sampled_from("qp"), st.integers(0, 3), st.integers(0, 100), st.booleans()),
    max_size=40,
)


@given(EVENTS)
def test_never_ahead_of_any_reader(events: list[tuple[str, int, int, bool]]) -> None:
    """Whatever queries do, a submitted offset is ahead of no live query that reported it."""
    ledger = Ledger(OneGroup("etl"))
    runs = dict.fromkeys("qp", 0)
    at: dict[str, int] = {}
    for step, (query, restart, offset, ends) in enumerate(events):
        if restart == 0:
            runs[query] += 1
            at.pop(query, None)
        now = max(at.get(query, 0), offset)
        moves = ledger.observe(
            snapshot({0: now}, query=query, run=f"{query}{runs[query]}", batch=step, second=step),
            {},
        ).moves
        if query in at or not moves or KEY in moves:
            at[query] = now
        assert moves[KEY].offset == min(at.values())
        if ends:
            ledger.end(query, f"{query}{runs[query]}")
            runs[query] += 1
            del at[query]
