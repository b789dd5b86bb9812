"""Parse the progress of a streaming query, in every format that Spark reports it.

Spark writes a Kafka source's position ``{"orders": {"0": 23}}`` as JSON text, as a dict, as the
text ``None`` where the source has no position yet, and under Spark Connect as a *printed* dict
with single quotes.  Any other format is reported, never dropped.  Nothing here needs pyspark.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.types import TopicPartition, check_offset, check_partition, check_topic

if TYPE_CHECKING:
    from typing_extensions import Self

_KAFKA_SOURCE: Final = re.compile(r"Kafka\w*\[")
"""KafkaV2[Subscribe[orders]], KafkaSourceV1[...] and the continuous KafkaSource[...]."""

_Number = TypeVar("_Number", int, float)

_ENDLESS: Final = 1e15

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_FIX: Final = "report it with your version of Spark; this source is not committed meanwhile"


class Run(NamedTuple):
    """One start of a query."""

    query_id: str
    """Stays the same while the query keeps its checkpoint."""
    run_id: str
    """New at each start."""

    @classmethod
    def of(cls, query: Any) -> Self:
        return cls(str(query.id), str(query.runId))


class BatchFigures(NamedTuple):
    """Figures of a batch; None for what Spark does not say."""

    batch_ms: int | None = None
    input_rows: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None


class Snapshot(NamedTuple):
    """The position of a query, from one progress report."""

    run: Run
    name: str | None
    timestamp: str
    """When the trigger began, ISO 8601 in UTC: later reports sort behind earlier ones."""
    batch_id: int
    sources: tuple[Mapping[TopicPartition, int], ...]
    """Of each Kafka source, in Spark's order: the next offset to read of each partition.  Empty
    where it has no position yet."""
    problems: Mapping[str, str]
    """Kafka sources whose position could not be read: description → what is wrong."""
    figures: BatchFigures = BatchFigures()

    @property
    def label(self) -> str:
        return f"query {shown(self.name)}" if self.name else f"query {self.run.query_id}"


def read_snapshot(progress: object) -> Snapshot:
    """Read a progress report: a listener event's ``progress`` or ``query.lastProgress``.

    It may be an object or a mapping.  A source that cannot be read is a problem of the
    snapshot and spoils no other.  Raises InvalidValueError where the report has no identity.
    """
    sources: list[Mapping[TopicPartition, int]] = []
    problems: dict[str, str] = {}
    reported = _field(progress, "sources")
    if not isinstance(reported, (list, tuple)):
        raise InvalidValueError("sources", reported, "is not a list", _FIX)
    for source in reported:
        description = str(_field(source, "description"))
        if not _KAFKA_SOURCE.match(description):
            continue
        try:
            sources.append(read_offsets(_field(source, "endOffset")))
        except InvalidValueError as error:
            problems[description] = str(error)
    name = _field(progress, "name")
    batch_id = _field(progress, "batchId")
    if not isinstance(batch_id, int):
        raise InvalidValueError("batchId", batch_id, "is not a number", _FIX)
    return Snapshot(
        run=Run(str(_field(progress, "id")), str(_field(progress, "runId"))),
        name=None if name is None else str(name),
        timestamp=str(_field(progress, "timestamp")),
        batch_id=batch_id,
        sources=tuple(sources),
        problems=problems,
        figures=BatchFigures(
            batch_ms=_number(progress, "durationMs.triggerExecution", int),
            input_rows=_number(progress, "numInputRows", int),
            input_rows_per_second=_number(progress, "inputRowsPerSecond", float),
            processed_rows_per_second=_number(progress, "processedRowsPerSecond", float),
        ),
    )


def _number(progress: object, name: str, kind: type[_Number]) -> _Number | None:
    """Return a number from 0 up; None where there is none.  A dot leads into a mapping."""
    try:
        for part in name.split("."):
            progress = _field(progress, part)
        value = kind(str(progress))
    except (InvalidValueError, ValueError):
        return None
    return value if 0 <= value < _ENDLESS else None


def read_offsets(position: object) -> dict[TopicPartition, int]:
    """Read the position of one Kafka source; empty if it has none yet.

    Raises InvalidValueError for what is not a position of a Kafka source.
    """
    topics = _decoded(position)
    if topics is None:
        return {}
    if not isinstance(topics, Mapping):
        raise InvalidValueError("endOffset", position, "is no mapping of topics", _FIX)
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        checked = check_topic(topic, "endOffset topic")
        if not isinstance(partitions, Mapping):
            field = f"endOffset of {checked}"
            raise InvalidValueError(field, partitions, "is no mapping of partitions", _FIX)
        for partition, offset in partitions.items():
            place = TopicPartition(checked, _partition(partition))
            if place in offsets:
                raise InvalidValueError("endOffset partition", partition, "is named twice", _FIX)
            offsets[place] = check_offset(offset, f"{place} endOffset")
    return offsets


def _field(record: object, name: str) -> object:
    if isinstance(record, Mapping):
        if name in record:
            return record[name]
    elif hasattr(record, name):
        return getattr(record, name)
    raise InvalidValueError(name, None, "is missing in the query's progress", _FIX)


def _decoded(position: object) -> object:
    if not isinstance(position, str):
        return position
    text = position.strip()
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass  # not JSON: Spark Connect prints a Python dict instead
    problem = "is neither JSON nor a printed dict"
    raise InvalidValueError("endOffset", position, problem, _FIX)


def _partition(value: object) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    return check_partition(value, "endOffset partition")
