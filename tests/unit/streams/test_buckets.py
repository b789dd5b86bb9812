"""Messages of a bucket: what fails is one message, whoever has written it."""

from __future__ import annotations

import pandas as pd
import pytest

from offsetmgr.retry_headers import ERROR
from offsetmgr.streams import buckets, codecs, define_group, input, persist, visitor
from offsetmgr.streams.engine import Engine

DEEP = b"[" * 100_000


@pytest.mark.parametrize("meta", [b"{", b"\xff", b'"\xff"', DEEP])
@pytest.mark.parametrize("name", [b"\xff", b"unknown", b"v"])
def test_a_visit_that_cannot_be_made_is_one_failed_message(name: bytes, meta: bytes) -> None:
    """Anybody may write to the loop's topic: bad JSON, any depth, any name."""
    graph = define_group(
        "g",
        input("in", codecs.String(), lambda ctx, value: ctx.set_value(value)),
        persist(codecs.String()),
        visitor("v", lambda ctx, value: ctx.set_value(value)),
    )
    plan = buckets.Plan(
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
        defer_timeout_s=1.0,
    )
    visit = [{"key": buckets.VISIT_HEADER, "value": name}]
    rows = [(0, 0, 0, 1, b"k", b"row", None), (1, 0, 0, 1, b"0", meta, visit)]
    (frame,) = buckets.process_stateless(plan, [pd.DataFrame(rows, columns=buckets.INPUT_COLUMNS)])
    dead, row = frame.itertuples()
    assert (dead.target, dead.value) == (1, meta)
    assert b"the visit cannot be made" in dict(dead.headers)[ERROR]
    assert (row.target, row.key, row.value) == (0, b"k", b"row")
