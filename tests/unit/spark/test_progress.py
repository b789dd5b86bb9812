"""A snapshot has each Kafka source of a report, or the reason why it cannot be read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import Run, read_offsets, read_snapshot
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


def as_object(report: dict[str, Any]) -> SimpleNamespace:
    """Return a report as PySpark 4 has it, whose own fields nobody reads."""
    return SimpleNamespace(json=json.dumps(report), sources="{'orders': {'0': 23}}")


@pytest.mark.parametrize("kind", [dict, as_object])
def test_every_kafka_source_is_read_in_its_place(kind: Any) -> None:
    """A source of another kind is none, and no problem."""
    positions = {
        "KafkaV2[Subscribe[orders]]": {"orders": {"0": 23, "7": 0}},
        "RateStreamV2[rowsPerSecond=1]": 5,
        "KafkaSourceV1[SubscribePattern[o.*]]": None,
        "KafkaSource[Assign[x]]": '{"orders": {"1": 5}}',
        "File[/Kafka[x]": {"orders": {"0": 1}},
    }
    sources = [{"description": name, "endOffset": each} for name, each in positions.items()]
    snapshot = read_snapshot(kind(fields(sources)))
    read = {TopicPartition("orders", 0): 23, TopicPartition("orders", 7): 0}
    assert snapshot.sources == (read, {}, {TopicPartition("orders", 1): 5})
    assert snapshot.problems == {}


def test_figures_of_a_batch() -> None:
    """JSON leaves out a rate of no time."""
    report = fields([], processedRowsPerSecond=12.5, numInputRows=30)
    assert read_snapshot(report).figures == {
        "batch_ms": None,
        "input_rows": 30,
        "input_rows_per_second": None,
        "processed_rows_per_second": 12.5,
    }
    report["durationMs"] = {"addBatch": 5, "triggerExecution": 9}  # in all releases of Spark
    assert read_snapshot(report).figures["batch_ms"] == 9


@pytest.mark.parametrize(
    "junk",
    [
        '{"orders":{"0":23',
        '{"orders":23}',
        '{"orders":{"0":"23"}}',
        '{"orders":{"0":-1}}',
        '{"orders":{"0":true}}',
        '{"orders":{"0":1.0}}',
        '{"orders":{"0":NaN}}',
        '{"orders":{"0":9223372036854775808}}',
        '{"orders":{"x":1}}',
        '{"orders":{"99999999999":1}}',
        '{"no topic":{"0":1}}',
        "2026-01-01",
        "17",
        "{'orders': {'0': 1}}",
    ],
)
def test_junk_is_refused_as_a_position(junk: object) -> None:
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
    (problem,) = snapshot.problems.items()
    assert problem[0] == "source KafkaV2[Subscribe[b]]"
    assert "is not JSON" in problem[1]


ODD: dict[str, list[Any]] = {
    "id": [None, 7, [], "x" * 256],
    "runId": [None, 7, [], "x" * 256],
    "name": [7, [], True],
    "timestamp": [None, 1.5, "2" * 41],
    "batchId": [None, "7", 1.5, True, -1, 2**63],
    "sources": [None, {}, "[]"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in ODD.items() for value in values]
)
def test_a_report_with_an_odd_field_is_refused_by_name(field: str, value: object) -> None:
    """The kind: the service would refuse it, and with it the reports of all queries."""
    report = fields([]) | {field: value}
    with pytest.raises(InvalidValueError, match=f"progress {field}"):
        read_snapshot(report)
    del report[field]
    with pytest.raises(InvalidValueError, match=field):
        read_snapshot(report)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "[]", "5"])
def test_a_report_of_another_form_is_refused(text: str) -> None:
    """A flush reads it, too: it raises no error of the JSON parser."""
    with pytest.raises(InvalidValueError, match=r"progress .* is (not JSON|unknown)"):
        read_snapshot(SimpleNamespace(json=text))


@pytest.mark.parametrize("value", [[], "many", True, -1, float("nan"), 1e16, 10**400])
def test_an_odd_figure_is_a_problem_and_spoils_no_position(value: object) -> None:
    """Its offsets are committed all the same."""
    named = ["durationMs", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond"]
    snapshot = read_snapshot(fields([], **dict.fromkeys(named, value)))
    assert set(snapshot.figures.values()) == {None}
    assert list(snapshot.problems) == named
