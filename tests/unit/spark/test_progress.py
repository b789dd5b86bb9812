"""Reading a query's progress in every shape that Spark gives it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import read_offsets, read_snapshot
from offsetmgr.types import MAX_OFFSET, TopicPartition

POSITIONS = st.dictionaries(
    st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}", fullmatch=True),
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, MAX_OFFSET), max_size=5),
    max_size=4,
)


def flat(position: dict[str, dict[int, int]]) -> dict[TopicPartition, int]:
    """The position as it is to be read."""
    return {TopicPartition(t, p): o for t, ps in position.items() for p, o in ps.items()}


def progress(**changes: Any) -> dict[str, Any]:
    """A report as Spark's lastProgress is."""
    report: dict[str, Any] = {
        "id": "q",
        "runId": "r",
        "name": "orders",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 7,
        "sources": [
            {"description": "KafkaV2[Subscribe[orders]]", "endOffset": '{"orders":{"0":23}}'}
        ],
    }
    return report | changes


@given(POSITIONS)
def test_every_shape_says_the_same(position: dict[str, dict[int, int]]) -> None:
    """JSON text, the dict itself and a printed dict are read to the same offsets."""
    named = {topic: {str(p): o for p, o in ps.items()} for topic, ps in position.items()}
    expected = flat(position)
    assert read_offsets(json.dumps(named)) == expected
    assert read_offsets(named) == expected
    assert read_offsets(str(named)) == expected
    assert read_offsets(position) == expected
    assert read_offsets(str(position)) == expected


@given(st.one_of(st.text(), st.integers(), st.lists(st.integers()), st.floats(), st.booleans()))
def test_anything_else_is_told(junk: object) -> None:
    """What is no position is refused in words, or means that there is none; it never escapes."""
    try:
        offsets = read_offsets(junk)
    except InvalidValueError as error:
        told = str(error)
    else:
        told = "endOffset" if offsets == {} else ""
    assert "endOffset" in told


@pytest.mark.parametrize("nothing", [None, "None", "null", " None ", "{}", {}], ids=repr)
def test_no_position_yet(nothing: object) -> None:
    """A source without a position has no offsets, which is no error."""
    assert read_offsets(nothing) == {}


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
        "[" * 100_000,
        "2026-01-01",
        "__import__('os')",
    ],
)
def test_what_is_no_position_is_refused(junk: object) -> None:
    """A position that is half understood is not used: all of it is refused."""
    with pytest.raises(InvalidValueError, match="endOffset"):
        read_offsets(junk)


@pytest.mark.parametrize("name", ['"1" "0"', '"1""0"', "'1'\n'0'", "'1' r'0'", r"'\x31'"])
def test_a_name_in_pieces_is_refused(name: str) -> None:
    """Python would put them together, to the name of a partition that nobody meant."""
    with pytest.raises(InvalidValueError, match="neither JSON nor a printed dict"):
        read_offsets(f"{{'orders': {{{name}: 7}}}}")


def test_a_report_may_be_an_object() -> None:
    """A report is read by attributes where it is no mapping."""
    source = SimpleNamespace(description="KafkaV2[Subscribe[t]]", endOffset={"t": {"1": 2}})
    report = SimpleNamespace(**progress(sources=[source]))
    assert read_snapshot(report).sources[0].offsets == {TopicPartition("t", 1): 2}


def test_a_snapshot_keeps_the_identity_of_its_query() -> None:
    """Query, run, name, time and batch are as Spark says them."""
    snapshot = read_snapshot(progress())
    assert (snapshot.query_id, snapshot.run_id, snapshot.name) == ("q", "r", "orders")
    assert (snapshot.timestamp, snapshot.batch_id) == ("2026-01-01T00:00:00.000Z", 7)
    assert snapshot.label == "query 'orders'"
    assert read_snapshot(progress(name=None)).label == "query q"


@pytest.mark.parametrize(
    "description",
    ["RateStreamV2[rowsPerSecond=1]", "FileStreamSource[file:/tmp/Kafka[x]", "MemoryStream[value]"],
)
def test_other_sources_are_no_concern(description: str) -> None:
    """What is not Kafka's is neither read nor a problem, whatever its position looks like."""
    source = {"description": description, "endOffset": "12"}
    snapshot = read_snapshot(progress(sources=[source]))
    assert snapshot.sources == ()
    assert snapshot.problems == {}


@pytest.mark.parametrize("kind", ["KafkaV2", "KafkaSourceV1", "KafkaSource"])
def test_every_kafka_source_is_known(kind: str) -> None:
    """Micro-batch, old and continuous Kafka sources are all read."""
    source = {"description": f"{kind}[SubscribePattern[o.*]]", "endOffset": {"o1": {"0": 1}}}
    assert len(read_snapshot(progress(sources=[source])).sources) == 1


def test_one_unreadable_source_spoils_no_other() -> None:
    """The readable sources are kept, and the other is a problem that names it."""
    broken = {"description": "KafkaV2[Subscribe[b]]", "endOffset": "?"}
    snapshot = read_snapshot(progress(sources=[broken, *progress()["sources"]]))
    assert [source.description for source in snapshot.sources] == ["KafkaV2[Subscribe[orders]]"]
    assert list(snapshot.problems) == ["KafkaV2[Subscribe[b]]"]
    assert "neither JSON nor a printed dict" in snapshot.problems["KafkaV2[Subscribe[b]]"]


@pytest.mark.parametrize("missing", ["id", "runId", "name", "timestamp", "batchId", "sources"])
def test_a_report_without_identity_is_refused(missing: str) -> None:
    """A report that lacks a field is refused by the field's name."""
    report = progress()
    del report[missing]
    with pytest.raises(InvalidValueError, match=missing):
        read_snapshot(report)


@pytest.mark.parametrize(("field", "value"), [("sources", "x"), ("batchId", "7")])
def test_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    """A field of a kind that is not expected is refused by its name."""
    with pytest.raises(InvalidValueError, match=field):
        read_snapshot(progress(**{field: value}))
