"""The plan of a reset: its edges, and the parsing of files and options.

That the plans of the modes which Kafka's own tool has are the same as its own is shown on a real
broker, in ``tests/kafka/test_resets.py``.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from offsetmgr.admin.changes import GroupChanges, GroupHeldError, check_unowned
from offsetmgr.admin.reset import (
    PlannedOffset,
    in_scope,
    parse_csv,
    parse_offsets,
    parse_scope,
    parse_value,
    plan,
    plan_rows,
    targets,
    to_csv,
)
from offsetmgr.admin.service import rewind_failures
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

P0, P1 = (TopicPartition("orders", number) for number in range(2))
LOGS = {P0: PartitionRange(10, 20), P1: PartitionRange(0, 20)}


def new(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata)


COMMITTED = {P0: new(15), P1: new(50)}


def planned(
    mode: str,
    number: int,
    *partitions: TopicPartition,
    committed: Mapping[TopicPartition, OffsetAndMetadata] = COMMITTED,
) -> list[PlannedOffset]:
    logs = {where: log for where, log in LOGS.items() if where in partitions}
    wanted = targets(mode, number, f"--{mode}", committed, logs)
    within_logs = mode != "to-current"
    return plan(partitions, wanted, committed, logs, within_logs=within_logs)


def test_an_offset_outside_its_log_is_held_within_it_and_the_row_says_so() -> None:
    """Both ways; an operator sees that it is not the offset asked for, and the lag after it."""
    low, high = planned("to-offset", 5, P1, P0)
    assert low == PlannedOffset(P0, 15, new(10), "5 is before the log: its start", 10)
    assert high == PlannedOffset(P1, 50, new(5), lag=15)
    (row,) = planned("shift-by", 1, P1)
    assert row == PlannedOffset(P1, 50, new(20), "51 is beyond the end of the log: its end", 0)


def test_a_shift_without_a_committed_offset_is_refused_whole() -> None:
    """As Kafka's tool does, with the partitions named."""
    with pytest.raises(InvalidValueError, match="none of orders-1; leave these partitions out"):
        planned("shift-by", 1, P0, P1, committed={P0: new(15)})


def test_the_end_of_the_log_stands_in_where_nothing_is_committed_and_the_row_says_so() -> None:
    """The committed offset and its metadata are committed again, also outside its log."""
    bare, beyond = planned("to-current", 0, P0, P1, committed={P1: new(50, "m")})
    assert bare == PlannedOffset(P0, None, new(20), "nothing committed: end of the log", 0)
    assert beyond == PlannedOffset(P1, 50, new(50, "m"), lag=0)


def test_a_partition_that_is_gone_is_left_as_it_is() -> None:
    """The rest of the group is planned."""
    gone = TopicPartition("gone", 0)
    left, there = planned("to-earliest", 0, gone, P0, committed={**COMMITTED, gone: new(3)})
    assert left == PlannedOffset(gone, 3, None, "does not exist; left as it is")
    assert there.new == new(10)
    (left,) = plan([P0], {}, COMMITTED, {P0: PartitionRange(0, 9)})
    assert left.note == "no offset is given for it; left as it is"


@pytest.mark.parametrize(
    "names", [("=a", "'=a"), ("a\nb", "a\\nb"), ("a\\\nb", "a\\\\nb"), ("'\n", "'\\n")]
)
def test_groups_of_similar_names_keep_their_own_offsets(names: tuple[str, str]) -> None:
    """The kind: the escaped name of one group taken for the name of another."""
    plans = {
        name: [PlannedOffset(where, 1, new(where.partition))]
        for name, where in zip(names, (P0, P1), strict=True)
    }
    exported = to_csv(plans).encode()
    assert [parse_csv(exported, name) for name in names] == [{P0: new(0)}, {P1: new(1)}]
    assert parse_csv(b"'=a,orders,0,1\n=a,orders,1,2\n", "'=a") == {P0: new(1)}
    # A spreadsheet's file begins with a byte order mark, and its lines end as those of Windows.
    assert parse_csv(b"\xef\xbb\xbforders,0,5\r\n", "etl") == {P0: new(5)}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"orders,0\n", "line 1 'orders,0' has 2 columns"),
        (b"orders,0,1\norders,x,1\n", "line 2, partition 'x'"),
        (b"orders,0,-1\n", "line 1, offset -1 is negative"),
        (b"orders,0,1\norders,1,1\netl,orders,0,2\n", "line 3 'orders-0' is given twice"),
        (b"audit,orders,0,1\n", "'etl' is a group that no line names"),
        ("orders,0,1\n".encode("utf-16"), "line 1, topic"),
        (b"caf\xe9,0,1\n", "line 1, topic"),
        (b"x" * 200_000 + b",0,1\n", "line 1 'xxx"),
    ],
)
def test_a_wrong_file_is_refused_whole_with_the_line(data: bytes, named: str) -> None:
    """Nothing of it is planned."""
    with pytest.raises(InvalidValueError, match=named):
        parse_csv(data, "etl")


def test_scopes_and_single_offsets_are_read_from_options() -> None:
    """A topic, some of its partitions, both."""
    scope = parse_scope(["orders:0,2", "audit", "orders:1"])
    assert scope == {"orders": [0, 2, 1], "audit": None}
    assert in_scope(P0, scope)
    assert in_scope(TopicPartition("audit", 9), scope)
    assert not in_scope(TopicPartition("orders", 3), scope)
    assert in_scope(P0, None)
    assert parse_offsets(["orders:0=42"]) == {P0: new(42)}
    for wrong in (
        "orders",
        "orders=3",
        "orders:x=3",
        "orders:0=x",
        "orders:0=-1",
        "orders:0=\u0663",
    ):
        with pytest.raises(InvalidValueError, match="write TOPIC:PARTITION=OFFSET"):
            parse_offsets([wrong])


@pytest.mark.parametrize("text", ["1_0", "\u0663", "1.0", "", "9" * 5_000])
def test_a_number_in_another_spelling_is_refused(text: str) -> None:
    """Python reads 1_0 as 10; a file or a command that says so is mistaken."""
    for parse in (
        lambda: parse_scope([f"orders:{text}"]),
        lambda: parse_value("to-offset", text, "--to-offset", 0.0),
        lambda: parse_csv(f"orders,0,{text}".encode(), "etl"),
    ):
        with pytest.raises(InvalidValueError, match="where a number stands; give a whole") as error:
            parse()
        assert len(str(error.value)) < 300
    assert parse_value("shift-by", " -5 ", "--shift-by", 0.0) == -5


@pytest.mark.parametrize(
    ("owners", "holder"),
    [
        ({"b", "a"}, "by client 'a', 'b' of the service at http://s, whose job would commit"),
        ({"follow"}, r"by the service at http://s, which follows a checkpoint .*\[follow.NAME\]"),
    ],
)
def test_the_holder_of_a_group_is_named(owners: set[str], holder: str) -> None:
    """A followed checkpoint is not a client that could be stopped."""
    with pytest.raises(GroupHeldError, match=f"group etl is held {holder}.* reset --live"):
        check_unowned("etl", owners, "http://s")


def test_a_deletion_has_the_whole_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a request that librdkafka ends after its own 10 s."""
    admin, done = Mock(), Future[None]()
    done.set_result(None)
    admin.delete_consumer_groups.return_value = {"etl": done}
    monkeypatch.setattr(ClusterReader, "admin", admin)
    with GroupChanges({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=30.0) as change:
        change.delete_group("etl")
    assert admin.delete_consumer_groups.call_args.kwargs["request_timeout"] > 30.0


def test_an_unknown_outcome_is_not_called_failed() -> None:
    """The service goes on with what Kafka has not answered: it may be committed, or will be."""
    left = {"topic": "t", "partition": 0, "error": {"message": "Kafka did not answer in time"}}
    refused = {"topic": "t", "partition": 1, "error": {"message": "no client holds it"}}
    answer = {"refused": [refused], "uncommitted": [left], "committed": []}
    failures = rewind_failures(answer, {})
    rows = [PlannedOffset(where, 9, OffsetAndMetadata(3)) for where in sorted(failures)]
    assert [row[-1] for row in plan_rows({"g": rows}, {"g": failures})] == [
        "not known: Kafka did not answer in time; the service goes on trying",
        "not done: no client holds it",
    ]
