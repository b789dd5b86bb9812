"""The steps of a group's commits, and its offsets at an earlier time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.admin.history import GroupAt, Move, group_at, steps
from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def commit(
    at_s: float, offset: int | None, where: TopicPartition = P0, text: str = ""
) -> CommitRecord:
    return CommitRecord(ManagerKey("etl", *where), offset, text, at_s)


def test_each_step_says_from_where_to_where_and_marks_what_went_wrong() -> None:
    """Of each partition by itself, in the order of the log."""
    log = [commit(1, 5), commit(2, 9), commit(3, 7, P1), commit(4, 9), commit(5, 3)]
    log += [commit(6, None), commit(7, 4)]
    assert [(step.before, step.after, step.move) for step in steps(log)] == [
        (None, 5, Move.FIRST),
        (5, 9, Move.FORWARD),
        (None, 7, Move.FIRST),
        (9, 9, Move.SAME),
        (9, 3, Move.BACKWARD),
        (3, None, Move.DELETED),
        (None, 4, Move.FORWARD),
    ]


def test_the_group_stands_where_the_last_commit_up_to_then_put_it() -> None:
    """A commit of that very moment counts; so does its metadata, without a consumer's NUL."""
    log = [commit(1, 5, text="a\0"), commit(2, 9, text="b")]
    assert group_at(log, 1).offsets == {P0: OffsetAndMetadata(5, "a")}
    assert group_at(log, 1.5).offsets == {P0: OffsetAndMetadata(5, "a")}
    assert group_at(log, 2).offsets == {P0: OffsetAndMetadata(9, "b")}


def test_what_is_not_known_is_told_apart_from_what_was_not_committed() -> None:
    """Compaction may have removed what was before the oldest record that is left."""
    log = [commit(1, 5), commit(2, None), commit(3, 7, P1)]
    assert group_at(log, 2.5) == GroupAt({}, {P0}, {P1: 3})


@given(
    st.lists(
        st.tuples(
            st.sampled_from([P0, P1]),
            st.none() | st.integers(0, 9),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
    st.integers(0, 30),
    st.integers(0, 12),
)
def test_compaction_never_makes_a_wrong_answer(
    commits: list[tuple[TopicPartition, int | None, int]], asked_s: int, cleaned: int
) -> None:
    """An answer from a compacted log, if there is one, agrees with the whole log.

    Of the cleaned part the last record of each partition is left.
    """
    log, now_s = [], 0
    for where, offset, pause_s in commits:
        now_s += pause_s
        log.append(commit(now_s, offset, where))
    dirty = log[cleaned:]
    kept = {record.key: record for record in log[:cleaned]}
    whole, left = group_at(log, asked_s), group_at([*kept.values(), *dirty], asked_s)
    for where in (P0, P1):
        if where not in left.unknown:
            assert left.offsets.get(where) == whole.offsets.get(where)
            assert (where in left.nothing) == (where in whole.nothing)
