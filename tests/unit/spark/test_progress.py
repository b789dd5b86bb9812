"""Whatever Spark may report, a snapshot holds each Kafka source or says what is wrong with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import BatchFigures, Run, read_offsets, read_snapshot
from offsetmgr.types import TopicPartition


def fields(sources: list[Any], **changes: Any) -> dict[str, Any]:
    """Return a report's fields, one of which nobody here knows."""
    report = {
        "id": "q",
        "runId": "r",
        "name": "orders",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 7,
        "somethingNew": {"nested": [1]},
        "sources": sources,
    }
    return report | changes


@pytest.mark.parametrize(
    "end",
    [
        {"orders": {"0": 23, "7": 0}},
        {"orders": {0: 23, 7: 0}},
        "{'orders': {'0': 23, '7': 0}}",  # as Spark Connect prints it
        "{'orders': {0: 23, 7: 0}}",
        ' {"orders": {"0": 23,\n "7": 0}}\n',
    ],
)
@pytest.mark.parametrize("kind", [dict, SimpleNamespace], ids=["mapping", "object"])
def test_every_kafka_source_is_read_in_its_place(kind: Any, end: object) -> None:
    """In whatever shape Spark reports it; a source of another kind is none, and no problem."""
    positions = {
        "KafkaV2[Subscribe[orders]]": end,
        "RateStreamV2[rowsPerSecond=1]": 5,
        "KafkaSourceV1[SubscribePattern[o.*]]": None,
        "KafkaSource[Assign[x]]": "None",
        "File[/Kafka[x]": {"orders": {"0": 1}},
    }
    sources = [kind(description=name, endOffset=each) for name, each in positions.items()]
    snapshot = read_snapshot(kind(**fields(sources)))
    read = {TopicPartition("orders", 0): 23, TopicPartition("orders", 7): 0}
    assert snapshot.sources == (read, {}, {})
    assert snapshot.problems == {}


def test_figures_that_are_none_spoil_no_report() -> None:
    """A rate of no time, a figure of another release; JSON has no number for them."""
    rates = {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": "12.5"}
    report = fields([], **rates, durationMs=None, numInputRows=30)
    assert read_snapshot(report).figures == BatchFigures(None, 30, None, 12.5)
    report["durationMs"] = {"addBatch": 5, "triggerExecution": 9}  # in all releases of Spark
    assert read_snapshot(report).figures.batch_ms == 9


@pytest.mark.parametrize(
    "junk",
    [
        '{"orders":{"0":23',
        '{"orders":23}',
        '{"orders":{"0":"23"}}',
        '{"orders":{"0":-1}}',
        '{"orders":{"0":true}}',
        '{"orders":{"0":1.0}}',
        '{"orders":{"x":1}}',
        '{"orders":{"00":1}}',
        '{"orders":{"99999999999":1}}',
        {"orders": {"0": 1, 0: 2}},
        '{"no topic":{"0":1}}',
        "2026-01-01",
        "__import__('os')",
        # What would break a parser.
        "[" * 100_000,
        "-" * 100_000 + "1",
        "{'t':" * 5_000 + "1" + "}" * 5_000,
        '{"t":' * 5_000 + "1" + "}" * 5_000,
        '{"orders":{"0":' + "9" * 10_000 + "}}",
        "{'orders': {'0': " + "9" * 10_000 + "}}",
        '{"orders":{"0":NaN}}',
        '{"orders":{"0":1}}\0',
        '{"\\ud800":{"0":1}}',
        "{'orders': {'0': 1 + 1j}}",
        "{'orders': {b'0': 1}}",
        "{{}: 1}",
        "{'a': 1, **{}}",
    ],
    ids=lambda junk: str(junk)[:30],
)
def test_what_is_no_position_is_refused(junk: object) -> None:
    """A position that is half understood is not used: an error in words, and no other one."""
    with pytest.raises(InvalidValueError, match="endOffset"):
        read_offsets(junk)


def test_a_snapshot_keeps_the_identity_of_its_query() -> None:
    snapshot = read_snapshot(fields([]))
    assert (snapshot.run, snapshot.name) == (Run("q", "r"), "orders")
    assert (snapshot.timestamp, snapshot.batch_id) == ("2026-01-01T00:00:00.000Z", 7)
    assert snapshot.label == "query 'orders'"
    assert read_snapshot(fields([], name=None)).label == "query q"


def test_one_unreadable_source_spoils_no_other() -> None:
    """The readable sources are kept, and the other is a problem that names it."""
    broken = {"description": "KafkaV2[Subscribe[b]]", "endOffset": "?"}
    right = {"description": "KafkaV2[Subscribe[t]]", "endOffset": {"t": {"1": 2}}}
    snapshot = read_snapshot(fields([broken, right]))
    assert list(snapshot.sources) == [{TopicPartition("t", 1): 2}]
    assert list(snapshot.problems) == ["KafkaV2[Subscribe[b]]"]
    assert "neither JSON nor a printed dict" in snapshot.problems["KafkaV2[Subscribe[b]]"]


@pytest.mark.parametrize("missing", ["id", "runId", "name", "timestamp", "batchId", "sources"])
def test_a_report_without_identity_is_refused(missing: str) -> None:
    report = fields([])
    del report[missing]
    with pytest.raises(InvalidValueError, match=missing):
        read_snapshot(report)


@pytest.mark.parametrize(("field", "value"), [("sources", "x"), ("batchId", "7")])
def test_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidValueError, match=field):
        read_snapshot({**fields([]), field: value})
