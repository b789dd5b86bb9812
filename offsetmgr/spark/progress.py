"""Parses the progress of a streaming query.

All releases of Spark write it as the same JSON, and a Kafka source's position in it as
``{"orders": {"0": 23}}``, or null if it has none yet.  Nothing here needs pyspark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from offsetmgr.config import is_number
from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.text import visible
from offsetmgr.types import TopicPartition, check_offset, check_partition, check_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from typing_extensions import Self

Positions: TypeAlias = Mapping[TopicPartition, int]
"""The next offset to read of each partition."""

_KAFKA_SOURCE: Final = re.compile(r"Kafka\w*\[")
"""KafkaV2[Subscribe[orders]], KafkaSourceV1[...] and the continuous KafkaSource[...]."""

_NUMBER: Final = re.compile(r"[0-9]{1,10}")

_FIELDS: Final[dict[str, tuple[type | tuple[type, ...], float]]] = {
    "id": (str, 255),
    "runId": (str, 255),
    "timestamp": (str, 40),
    "name": ((str, type(None)), inf),
    "sources": (list, inf),
}
"""Fields of a report: types, and the characters that the service takes; Spark needs fewer."""

_FIGURES: Final[dict[str, tuple[str, type | tuple[type, ...]]]] = {
    "batch_ms": ("durationMs", int),
    "input_rows": ("numInputRows", int),
    "input_rows_per_second": ("inputRowsPerSecond", (int, float)),
    "processed_rows_per_second": ("processedRowsPerSecond", (int, float)),
}
"""Figures of a QueryReport, each with Spark's name and type."""

_MAX_FIGURE: Final = 1e15

_FIX: Final = "report it with your version of Spark; this source is not committed meanwhile"


class Run(NamedTuple):
    """One start of a query."""

    query_id: str
    """Stays the same while the query keeps its checkpoint."""
    run_id: str
    """New at each start."""

    @classmethod
    def of(cls, query: Any) -> Self:
        """Return the run of a query or an event; raises InvalidValueError for anything else."""
        if not hasattr(query, "runId"):
            raise InvalidValueError("query", query, "is not a query", "give what start() returned")
        return cls(str(query.id), str(query.runId))


class Snapshot(NamedTuple):
    """The position of a query, from one progress report."""

    run: Run
    name: str | None
    timestamp: str
    """When the trigger began, ISO 8601 in UTC: later reports sort behind earlier ones."""
    batch_id: int
    sources: tuple[Positions, ...]
    """Of each Kafka source, in Spark's order: the next offset to read of each partition.  Empty
    where it has no position yet."""
    problems: Mapping[str, str]
    """Sources of Kafka and figures that could not be read, each with the reason."""
    figures: Mapping[str, Any] = {}
    """Of the batch, by the names of a QueryReport."""
    is_whole: bool = False
    """True if the query reads no other partitions, as their topics were deleted."""

    def without(self, partitions: Collection[TopicPartition]) -> Snapshot:
        sources = [
            {place: offset for place, offset in source.items() if place not in partitions}
            for source in self.sources
        ]
        return self._replace(sources=tuple(sources), is_whole=False)

    @property
    def label(self) -> str:
        return f"query {shown(self.name)}" if self.name else f"query {self.run.query_id}"


def lowest(positions: Iterable[Positions]) -> dict[TopicPartition, int]:
    """Return the offset of each partition; the lowest where several sources read it."""
    offsets: dict[TopicPartition, int] = {}
    for position in positions:
        for partition, offset in position.items():
            offsets[partition] = min(offset, offsets.get(partition, offset))
    return offsets


def finished_batch(
    run: Run, name: str | None, batch_id: int, offsets: Positions, at_s: float, **figures: object
) -> Snapshot:
    """Return the position of a query that reports none; its checkpoint was read at ``at_s``."""
    at = datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds")
    at = at.replace("+00:00", "Z")
    return Snapshot(run, name, at, batch_id, (offsets,), {}, figures, is_whole=True)


def read_snapshot(progress: Any) -> Snapshot:
    """Read a progress event's ``progress`` or ``query.lastProgress``, or its JSON as a mapping.

    A source or a figure that cannot be read is a problem of the snapshot and spoils no other.
    Raises InvalidValueError for a report that cannot be read, or that the service would refuse.
    """
    try:
        report = report_of(progress)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError("progress", progress, f"is not JSON ({error})", _FIX) from None
    sources: list[Positions] = []
    problems: dict[str, str] = {}
    try:
        for field, (kind, most) in _FIELDS.items():
            if not isinstance(report[field], kind) or len(report[field] or "") > most:
                raise InvalidValueError(f"progress {field}", report[field], "is unknown", _FIX)
        batch_id = check_offset(report["batchId"], "progress batchId")
        for source in report["sources"]:
            description = source["description"]
            if not _KAFKA_SOURCE.match(description):
                continue
            try:
                sources.append(read_offsets(source["endOffset"]))
            except InvalidValueError as error:
                problems[f"source {visible(description)}"] = str(error)
        return Snapshot(
            run=Run(report["id"], report["runId"]),
            name=report["name"],
            timestamp=report["timestamp"],
            batch_id=batch_id,
            sources=tuple(sources),
            problems=problems,
            is_whole=not problems,
            figures=_figures(report, problems),
        )
    except (KeyError, TypeError) as error:
        raise InvalidValueError("progress", report, f"is unknown ({error!r})", _FIX) from None


def _figures(report: Mapping[str, Any], problems: dict[str, str]) -> dict[str, Any]:
    """Return the figures of a report; None for one that it does not have, or that is a problem."""
    figures: dict[str, Any] = {}
    for name, (field, kind) in _FIGURES.items():
        value = report.get(field)
        if field == "durationMs" and isinstance(value, Mapping):
            value = value.get("triggerExecution")
        is_shown = is_number(value, kind) and 0 <= value <= _MAX_FIGURE
        figures[name] = value if is_shown else None
        if value is not None and not is_shown:
            problems[field] = f"{shown(value)} is not a number that the service can show"
    return figures


def report_of(progress: Any) -> Any:
    """Return ``query.lastProgress``, or that of an event, as plain values; a mapping as it is."""
    # PySpark 4 prints the positions in its own objects as Python would; the JSON has them as sent.
    text = getattr(progress, "json", None)
    return progress if text is None else json.loads(text)


def read_offsets(position: object) -> dict[TopicPartition, int]:
    """Read the position of one Kafka source, JSON or decoded; empty if it has none yet.

    Raises InvalidValueError for what is not a position of a Kafka source.
    """
    try:
        topics = json.loads(position) if isinstance(position, str) else position
    except (ValueError, RecursionError) as error:
        raise InvalidValueError("endOffset", position, f"is not JSON ({error})", _FIX) from None
    if topics is None:
        return {}
    if not isinstance(topics, Mapping):
        raise InvalidValueError("endOffset", position, "is not a mapping of topics", _FIX)
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        check_topic(topic, "endOffset topic")
        if not isinstance(partitions, Mapping):
            field = f"endOffset of {topic}"
            raise InvalidValueError(field, partitions, "is not a mapping of partitions", _FIX)
        for partition, offset in partitions.items():
            number = int(partition) if _NUMBER.fullmatch(str(partition)) else partition
            place = TopicPartition(topic, check_partition(number, "endOffset partition"))
            offsets[place] = check_offset(offset, f"{place} endOffset")
    return offsets
