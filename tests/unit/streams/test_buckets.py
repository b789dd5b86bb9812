"""Messages of a bucket: visits of any content, and deferred commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from offsetmgr.retry_headers import ERROR
from offsetmgr.streams import (
    ProcessingError,
    buckets,
    codecs,
    define_group,
    input,
    persist,
    visitor,
)
from offsetmgr.streams.engine import Engine
from offsetmgr.streams.errors import BucketError

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.streams import Context

DEEP = b"[" * 100_000


def keep(context: Context, value: str) -> None:
    context.set_value(value)


def plan(callback: Callable[[Context, str], object], **changed: Any) -> buckets.Plan:
    text = codecs.String()
    graph = define_group("g", input("in", text, callback), persist(text), visitor("v", keep))
    made = buckets.Plan(
        engine=Engine(graph),
        buckets=1,
        sources=[buckets.Source("stream", "in"), buckets.Source("stream", "g-loop")],
        joins={},
        targets=["g-table", "dead"],
        partitions={"g-table": 1, "dead": 1},
        lookup_kafka={},
        lookup_views={},
        dead_letters="dead",
        record_ids=False,
        bucket_bytes=1_000,
        defer_timeout_s=60.0,
    )
    return made._replace(**changed)


def processed(made: buckets.Plan, *rows: tuple[object, ...]) -> list[Any]:
    """Return the records that the messages of one frame write."""
    frame = pd.DataFrame(rows, columns=buckets.INPUT_COLUMNS)
    frames = buckets.process_stateless(made, [frame])
    return [record for written in frames for record in written.itertuples()]


@pytest.mark.parametrize("meta", [b"{", b"\xff", b'"\xff"', DEEP])
@pytest.mark.parametrize("name", [b"\xff", b"unknown", b"v"])
def test_an_impossible_visit_is_one_failed_message(name: bytes, meta: bytes) -> None:
    """Anybody may write to the loop's topic: bad JSON, any depth, any name."""
    visit = [{"key": buckets.VISIT_HEADER, "value": name}]
    rows = [(0, 0, 0, 1, b"k", b"row", None), (1, 0, 0, 1, b"0", meta, visit)]
    dead, row = processed(plan(keep), *rows)
    assert (dead.target, dead.value) == (1, meta)
    assert b"the visit cannot be made" in dict(dead.headers)[ERROR]
    assert (row.target, row.key, row.value) == (0, b"k", b"row")


def defer(context: Context, value: str) -> None:
    done = context.defer_commit()
    error = ValueError("not stored") if value == "bad" else None
    if value != "never":
        threading.Thread(target=done, args=(error,)).start()
    context.set_value(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("good", ""),
        ("bad", "a deferred commit failed: ValueError: not stored"),
        ("never", "not done within 0.1 s: on Spark a batch ends once its own are done, so call "),
    ],
)
def test_a_batch_waits_for_its_deferred_commits(value: str, problem: str) -> None:
    """One that fails or never comes stops the processor: its row is in the table already."""
    made = plan(defer, defer_timeout_s=0.1 if value == "never" else 60.0)
    message = (0, 0, 7, 1, b"k", value.encode(), None)
    if not problem:
        assert [row.value for row in processed(made, message)] == [b"good"]
        return
    with pytest.raises(ProcessingError) as failed:
        processed(made, message)
    assert problem in str(failed.value)
    assert "in/0 at offset 7, key 'k'" in str(failed.value)


def test_a_state_that_is_too_large_or_of_other_buckets_is_refused() -> None:
    """The state stays as it was, and the error says what to do."""
    state = GroupState(
        None, 0, 0, "NoTimeout", False, False, False, False, False, -1, b"", StructType()  # type: ignore[arg-type]  # noqa: FBT003
    )  # fmt: skip

    def process(count: int, **changed: Any) -> None:
        rows = [(0, 0, n, 1, b"%d" % n, b"x" * 10, None) for n in range(count)]
        frame = pd.DataFrame(rows, columns=buckets.INPUT_COLUMNS)
        assert list(buckets.process_bucket(plan(keep, **changed), 0, [frame], state))

    process(2)
    kept = state.get
    with pytest.raises(BucketError, match=r"has grown to .* with 200 keys, .* more buckets than 1"):
        process(200)
    with pytest.raises(BucketError, match="has 1 buckets in format 1, the processor 2 in format 1"):
        process(2, buckets=2)
    assert state.get == kept
