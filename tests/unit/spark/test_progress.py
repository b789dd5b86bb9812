"""Whatever Spark may report, a snapshot holds each Kafka source or says what is wrong with it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import Run, read_offsets, read_snapshot
from offsetmgr.types import MAX_OFFSET, MAX_PARTITION, TopicPartition

NAMES = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}", fullmatch=True)
POSITIONS = st.dictionaries(
    NAMES,
    st.dictionaries(st.integers(0, MAX_PARTITION), st.integers(0, MAX_OFFSET), max_size=4),
    max_size=3,
)
NOTHING: st.SearchStrategy[object] = st.sampled_from([None, "None", "null", " None ", "{}", {}])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | NAMES, inner, max_size=3)
        | st.dictionaries(st.integers(-2, 3), inner, max_size=3)
    ),
    max_leaves=8,
)
KAFKA = st.builds(
    "{}[{}[{}]]".format,
    st.sampled_from(["KafkaV2", "KafkaSourceV1", "KafkaSource"]),
    st.sampled_from(["Subscribe", "SubscribePattern", "Assign"]),
    st.text(max_size=8),
)
OTHERS = st.sampled_from(["RateStreamV2[rowsPerSecond=1]", "MemoryStream[x]", "File[/Kafka[x]"])


class Reported(NamedTuple):
    """A source as Spark reports it, and what is to be read of it."""

    description: str
    end: object
    expected: dict[TopicPartition, int] | None
    """None where it is no Kafka source."""


def named(position: dict[str, dict[int, int]]) -> dict[str, dict[str, int]]:
    """Return the position with its partitions as JSON names them."""
    return {topic: {str(p): o for p, o in ps.items()} for topic, ps in position.items()}


@st.composite
def kafka_sources(draw: st.DrawFn) -> Reported:
    """Draw a Kafka source with its position in one of the shapes, or without one."""
    if draw(st.booleans()):
        return Reported(draw(KAFKA), draw(NOTHING), {})
    position = draw(POSITIONS)
    flat = {TopicPartition(t, p): o for t, ps in position.items() for p, o in ps.items()}
    shapes = [
        position,
        named(position),
        str(position),
        str(named(position)),
        json.dumps(named(position)),
        json.dumps(named(position), separators=(",", ":")),
        f" {json.dumps(named(position), indent=1)}\n",
    ]
    return Reported(draw(KAFKA), draw(st.sampled_from(shapes)), flat)


OTHER_SOURCES = st.builds(Reported, OTHERS, JSON, st.none())


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


@given(st.lists(kafka_sources() | OTHER_SOURCES, max_size=5), st.booleans())
def test_every_source_is_read_in_its_place(sources: list[Reported], objects: bool) -> None:  # noqa: FBT001 -- drawn
    """Kafka's in Spark's order, whatever stands between them; no other is one or a problem.

    A report is all objects, as events have it, or all mappings.
    """
    report: list[Any] = [
        {"description": each.description, "endOffset": each.end} for each in sources
    ]
    if objects:
        snapshot = read_snapshot(SimpleNamespace(**fields([SimpleNamespace(**s) for s in report])))
    else:
        snapshot = read_snapshot(fields(report))
    expected = [each.expected for each in sources if each.expected is not None]
    assert list(snapshot.sources) == expected
    assert snapshot.problems == {}


@given(st.lists(st.tuples(KAFKA, JSON | JSON.map(json.dumps) | JSON.map(str)), max_size=4))
def test_no_kafka_source_is_dropped_in_silence(sources: list[tuple[str, object]]) -> None:
    """Whatever stands there instead of a position, the source is read or told by its name."""
    report = [{"description": description, "endOffset": end} for description, end in sources]
    snapshot = read_snapshot(fields(report))
    unread = [each for each, _ in sources if each in snapshot.problems]
    assert len(snapshot.sources) + len(unread) >= len(sources)
    assert all("endOffset" in problem for problem in snapshot.problems.values())


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
