"""The steps of a group's commits, and its offsets at an earlier time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.admin.history import (
    Cause,
    CommitStep,
    Move,
    cause_of,
    history_report,
    steps,
    targets_at,
)
from offsetmgr.admin.reset import Target
from offsetmgr.errors import KafkaRequestError, OffsetManagerError, error_info
from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.kafka.log_reader import NextRecord
from offsetmgr.types import ManagerKey, OffsetAndMetadata, PartitionRange, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def commit(
    at_s: float, offset: int | None, where: TopicPartition = P0, text: str = ""
) -> CommitRecord:
    return CommitRecord(ManagerKey("etl", *where), offset, text, at_s)


def test_each_step_has_both_offsets_and_its_move() -> None:
    """Each partition by itself, in the order of the log."""
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


NO_TOPIC = KafkaRequestError("log of orders-0", error_info(3))
NOT_READ = OffsetManagerError("not read within 5 s")
OLD, YOUNG = NextRecord(0, 1.0), NextRecord(0, 100.0)


@pytest.mark.parametrize(
    ("log", "first", "cause"),
    [
        (NO_TOPIC, None, Cause.TOPIC_DELETED),
        (PartitionRange(0, 49), OLD, Cause.TOPIC_RECREATED),
        (PartitionRange(0, 0), None, Cause.TOPIC_RECREATED),
        (PartitionRange(0, 900), YOUNG, Cause.TOPIC_RECREATED),
        (PartitionRange(0, 900), OLD, Cause.OTHER),
        (PartitionRange(0, 900), NextRecord(7, 100.0), Cause.OTHER),  # a compacted log
        (PartitionRange(0, 900), NOT_READ, NOT_READ),
        (PartitionRange(30, 900), None, Cause.OTHER),
        (NOT_READ, None, NOT_READ),
    ],
)
def test_the_log_tells_the_cause_of_a_deletion(
    log: PartitionRange | OffsetManagerError,
    first: NextRecord | OffsetManagerError | None,
    cause: Cause | OffsetManagerError,
) -> None:
    """A log that is shorter than the offset, or begins after its deletion, is another one."""
    *_, deletion = steps([commit(1, 50), commit(10, None)])
    assert cause_of(deletion, log, first) is cause


def test_a_report_undoes_no_deletion_of_a_topic() -> None:
    """Steps before the end of a partition's topic are of a former log, too."""
    log = [commit(0, 9, P1), commit(0, 90), commit(1, 50), commit(2, None), commit(3, 40)]
    log += [commit(4, None), commit(5, 7, P1)]
    walked = list(steps(log))
    last, first = walked[5], walked[3]
    both = {first: Cause.TOPIC_RECREATED, last: Cause.TOPIC_RECREATED}
    report = history_report("etl", walked, both)
    causes = [step["cause"] for step in report["steps"] if step["change"] == "deleted"]
    assert causes == ["the topic was recreated"] * 2
    assert report["undo_to"] == "1970-01-01T00:00:04.999Z"  # of the other partition
    assert history_report("etl", walked[:6], both)["undo_to"] is None
    by_hand = history_report("etl", walked[:6], {first: Cause.TOPIC_RECREATED, last: Cause.OTHER})
    assert by_hand["undo_to"] == "1970-01-01T00:00:03.999Z"


def at(offset: int, text: str = "") -> Target:
    return Target(OffsetAndMetadata(offset, text))


def test_the_group_stands_where_the_last_commit_up_to_then_put_it() -> None:
    """A commit of that very moment counts; so does its metadata, without a consumer's NUL."""
    log = [commit(1, 5, text="a\0"), commit(2, 9, text="b")]
    assert targets_at(steps(log), 1, "T") == targets_at(steps(log), 1.5, "T") == {P0: at(5, "a")}
    assert targets_at(steps(log), 2, "T") == {P0: at(9, "b")}


def test_an_unknown_offset_differs_from_no_offset() -> None:
    """Compaction may have removed what was before the oldest record that is left."""
    log = [commit(1, 5), commit(2, None), commit(3, 7, P1)]
    assert targets_at(steps(log), 2.5, "T") == {
        P0: Target(None, "nothing was committed at T; left as it is"),
        P1: Target(None, "its commits of before T are compacted away; left as it is"),
    }


def test_an_offset_of_a_former_log_is_not_restored() -> None:
    """Any deletion since then may have ended the log, also one before another's.

    So may one whose cause could not be read.
    """
    log = [commit(1, 12), commit(1, 13, P1)]
    first, last = (CommitStep(at_s, P0, 12, None, "", Move.DELETED) for at_s in (5.0, 9.0))
    causes = {first: Cause.TOPIC_RECREATED, last: Cause.OTHER}
    causes |= {last._replace(partition=P1): Cause.OTHER}
    assert targets_at(steps(log), 2, "T", causes) == {
        P0: Target(None, "the topic was recreated since then; left as it is"),
        P1: at(13),
    }
    unread = targets_at(steps(log), 2, "T", {first: NOT_READ})[P0]
    assert unread.offset is None
    assert "recreated since then is not known: not read within 5 s; left" in unread.note
    report = history_report("etl", list(steps([*log, commit(5, None)])), {first: NOT_READ})
    assert report["steps"][-1]["cause"] == "not known: not read within 5 s"


def test_a_commit_behind_an_open_transaction_is_shown_as_hidden() -> None:
    """Kafka shows no record behind it, whoever began it; a history ended there in silence."""
    log = [commit(1, 5), commit(2, 7, P1), commit(3, 9)]
    committed = {P0: OffsetAndMetadata(4, "m"), P1: OffsetAndMetadata(7)}
    *shown, hidden = walked = list(steps(log, committed, 10))
    assert (shown, hidden) == (list(steps(log)), CommitStep(10, P0, 9, 4, "m", Move.HIDDEN))
    left = Target(None, f"{Cause.TRANSACTION.value}; left as it is")
    assert targets_at(walked, 3, "T") == {P0: left, P1: at(7)}
    assert targets_at(walked, 2, "T") == {P0: at(5), P1: at(7)}


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
    whole = targets_at(steps(log), asked_s, "T")
    for where, target in targets_at(steps([*kept.values(), *dirty]), asked_s, "T").items():
        if "compacted away" not in target.note:
            assert target == whole[where]
