"""Messages of a bucket: visits of any content, and deferred commits."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from offsetmgr.retry_headers import CUT, ERROR
from offsetmgr.streams import ProcessingError, buckets, codecs
from offsetmgr.streams.engine import Engine
from offsetmgr.streams.errors import ProcessorError, TopicsError
from offsetmgr.streams.graph import define_group, input, lookup, output, persist, visitor
from offsetmgr.streams.messages import VISIT_HEADER, Record, kafka_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.streams import Context

C = codecs.String()
DEEP = b"[" * 100_000


def keep(context: Context, value: str) -> None:
    context.set_value(value)


def report(context: Context, meta: str) -> None:
    context.emit("out", context.key, f"{meta} {context.value()}")


def plan(callback: Callable[[Context, str], object], **changed: Any) -> buckets.Plan:
    text = codecs.String()
    edges = [input("in", text, callback), persist(text), output("out", text)]
    graph = define_group("g", edges, visitor("v", report))
    made = buckets.Plan(
        engine=Engine(graph),
        buckets=1,
        sources=[buckets.Source("stream", "in"), buckets.Source("stream", "g-loop")],
        joins={},
        targets=["g-table", "dead", "out"],
        partitions={"g-table": 1, "dead": 1, "out": 1},
        lookup_kafka={},
        lookup_views={},
        dead_letters="dead",
        record_ids=False,
        bucket_bytes=1_000,
        defer_timeout_s=60.0,
    )
    return made._replace(**changed)


def new_state() -> GroupState:
    """Return the state of a bucket that has none yet, as Spark hands it over."""
    values: Any = (None, 0, 0, "NoTimeout", *[False] * 5, -1, b"", StructType())
    return GroupState(*values)


def processed(
    made: buckets.Plan,
    *rows: tuple[object, ...],
    bucket: int | None = None,
    state: GroupState | None = None,
) -> list[Any]:
    """Return the records that the messages of one frame write, without state or in a bucket."""
    frame = pd.DataFrame(rows, columns=buckets.INPUT_COLUMNS)
    if bucket is None:
        frames = buckets.process_stateless(made, [frame])
    else:
        frames = buckets.process_bucket(made, (bucket,), [frame], state or new_state())
    return [record for written in frames for record in written.itertuples()]


@pytest.mark.parametrize("meta", [b"{", b"\xff", b'"\xff"', DEEP])
@pytest.mark.parametrize("name", [b"\xff", b"unknown", b"v", b"", None])
def test_an_impossible_visit_is_one_failed_message(name: bytes | None, meta: bytes) -> None:
    """Anybody may write to the loop's topic: bad JSON, any depth, any name."""
    visit = [{"key": VISIT_HEADER, "value": name}]
    rows = [(0, 0, 0, 1, b"k", b"row", None), (1, 0, 0, 1, b"0", meta, visit)]
    # A visit comes to all buckets; one of them refuses it.
    assert not processed(plan(keep), rows[1], bucket=1)
    dead, row = processed(plan(keep), *rows, bucket=0)
    assert (dead.target, dead.value) == (1, meta)
    assert b"the visit cannot be made" in dict(dead.headers)[ERROR]
    assert (row.target, row.key, row.value) == (0, b"k", b"row")


def test_messages_of_a_removed_loop_are_forgotten() -> None:
    """Its topic is read on for visits: what waits there has no callback any more."""
    left = (1, 0, 0, 1, b"k", b"later", None)
    assert not processed(plan(keep, dead_letters=None), left)


def test_each_record_of_a_visit_has_an_id_of_its_own() -> None:
    """It is the same when the batch is repeated, and readers drop no other record for it."""
    rows = [(0, 0, n, 1, b"k%d" % n, b"row", None) for n in range(3)]
    visit = (1, 0, 9, 1, b"", b'"seen"', [{"key": VISIT_HEADER, "value": b"v"}])

    def ids() -> dict[bytes, bytes]:
        written = processed(plan(keep, record_ids=True), *rows, visit, bucket=0)
        records = [record for record in written if record.target == 2]
        assert [record.value for record in records] == [b"seen row"] * 3
        return {record.key: dict(record.headers)[buckets.ID_HEADER] for record in records}

    made = ids()
    assert len({*made.values()}) == 3
    assert all(ident.startswith(b"v/0/9/") for ident in made.values())
    assert made == ids()


@pytest.mark.parametrize("limit", [1_000_000, 20_000, 5_000, 3_000])
def test_a_letter_fits_its_topic(limit: int) -> None:
    """The kind: a message that can be neither processed nor written stops the processor for good.

    Of a letter that is too large value, headers, and the ends of key and error are left out.
    """

    def fail(context: Context, value: str) -> None:
        context.fail("ü" * 10_000)

    made = plan(fail)
    made.engine.limits = {"dead": limit}
    own = [{"key": "own", "value": b"h" * 8_000}]
    (letter,) = processed(made, (0, 0, 7, 1, b"k" * 4_000, b"v" * 500_000, own))
    record = Record("dead", letter.key, letter.value, letter.headers)
    assert kafka_bytes(record) <= limit
    headers = dict(letter.headers)
    assert b"callback test_a_letter_fits_its_topic" in headers[ERROR]
    assert headers.get(CUT) == (None if letter.value else b"500000")
    assert ("own" in headers) is (limit >= 20_000)


def test_a_lookup_table_that_becomes_unreadable_fails_no_single_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch fails, even if the callback goes on; no message becomes a dead letter."""

    def look_up(context: Context, value: str) -> None:
        with suppress(Exception):
            context.lookup("rates", value)

    graph = define_group("g", input("in", C, look_up), lookup("rates", C))
    rows = Mock(get=Mock(side_effect=TopicsError("the lookup table rates cannot be read: gone")))
    monkeypatch.setattr("offsetmgr.streams.lookups.rows_of", lambda *_: rows)
    with pytest.raises(ProcessingError, match=r"cannot read key b'v' of lookup .*: gone \(in/0 at"):
        processed(plan(print, engine=Engine(graph)), (0, 0, 7, 1, b"k", b"v", None))


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
    state = new_state()

    def process(count: int, **changed: Any) -> None:
        rows = [(0, 0, n, 1, b"%d" % n, b"x" * 10, None) for n in range(count)]
        assert processed(plan(keep, **changed), *rows, bucket=0, state=state)

    process(2)
    before = state.get
    with pytest.raises(
        ProcessorError, match=r"has grown to .* with 200 keys, .* more buckets than 1"
    ):
        process(200)
    with pytest.raises(ProcessorError, match="has 1 buckets in format 1, the processor 2 in "):
        process(2, buckets=2)
    assert state.get == before
