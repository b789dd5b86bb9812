"""Where a group stands in its topics, as numbers that the topics hold."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from offsetmgr.errors import InvalidValueError
from offsetmgr.types import TopicPartition, check_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.client import OffsetClient, PartitionRange
    from offsetmgr.types import OffsetAndMetadata

_log = logging.getLogger("offsetmgr.spark")

Missing: TypeAlias = "Literal['earliest', 'latest', 'error'] | datetime"
"""Where a partition starts for which nothing is committed: at an end of its log, at the first
record of a time, or nowhere, as an error."""

_NAMED: Final = frozenset({"earliest", "latest", "error"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SHOWN: Final = 10


class Place(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    """The next one to read; the partition holds it, or ends with it."""
    committed: OffsetAndMetadata | None
    """What the group has committed; None where nothing is."""


def check_topics(topics: object) -> list[str]:
    """Topics as the caller named them, each once.  Raises InvalidValueError."""
    if isinstance(topics, str) or not isinstance(topics, (list, tuple, set, frozenset)):
        raise InvalidValueError("topics", topics, "is no list of topics", 'give ["orders"]')
    if not topics:
        raise InvalidValueError("topics", topics, "is empty", 'give at least one, as ["orders"]')
    names = [check_topic(topic, f"topics[{index}]") for index, topic in enumerate(topics)]
    return list(dict.fromkeys(names))


def check_missing(missing: object) -> Missing:
    """What to do about partitions with nothing committed.  Raises InvalidValueError."""
    if isinstance(missing, datetime):
        milliseconds(missing, "missing")
        return missing
    if not isinstance(missing, str) or missing not in _NAMED:
        fix = "give 'earliest', 'latest', 'error' or a datetime with its time zone"
        raise InvalidValueError("missing", missing, "is unknown", fix)
    return missing  # type: ignore[return-value]  # one of the three


def milliseconds(moment: datetime, field: str) -> int:
    """A point in time as Kafka counts it.  Raises InvalidValueError."""
    if moment.tzinfo is None:
        fix = "give it one, such as datetime.now(timezone.utc)"
        raise InvalidValueError(field, moment.isoformat(), "has no time zone", fix)
    since = moment - _EPOCH
    if since.days < 0:
        fix = "Kafka's records begin there; give a later time, or 'earliest'"
        raise InvalidValueError(field, moment.isoformat(), "lies before 1970", fix)
    # Not by way of a float, which would lose the last millisecond.
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def places(
    client: OffsetClient,
    group: str,
    ranges: Mapping[str, Mapping[int, PartitionRange]],
    missing: Missing,
    timeout: float = 10.0,
) -> dict[TopicPartition, Place]:
    """Where ``group`` goes on in every partition of ``ranges``.

    A committed offset that the partition no longer holds becomes the nearest that it does, with
    a warning.  Raises InvalidValueError where ``missing`` is ``error`` and something is.
    """
    committed = client.committed(group, timeout=timeout)
    found: dict[TopicPartition, Place] = {}
    absent: list[TopicPartition] = []
    for topic, partitions in ranges.items():
        for number, held in sorted(partitions.items()):
            where = TopicPartition(topic, number)
            entry = committed.get(where)
            if entry is None:
                absent.append(where)
                offset = held.log_start_offset if missing == "earliest" else held.high_watermark
            else:
                offset = _clamped(group, where, entry.offset, held)
            found[where] = Place(offset, entry)
    if absent and missing == "error":
        fix = "commit them first, or say where to start with missing='earliest'"
        raise InvalidValueError("group", group, f"has nothing committed for {listed(absent)}", fix)
    if absent and isinstance(missing, datetime):
        topics = list(dict.fromkeys(where.topic for where in absent))
        at = client.offsets_at(topics, milliseconds(missing, "missing"), timeout=timeout)
        # A partition that appeared between the two requests is not among those asked for.
        found |= {where: Place(at.get(where, found[where].offset), None) for where in absent}
    return found


def listed(wheres: Collection[TopicPartition]) -> str:
    """The partitions in words, not more than a line holds."""
    shown = ", ".join(str(where) for where in list(wheres)[:_SHOWN])
    more = len(wheres) - _SHOWN
    return shown if more <= 0 else f"{shown} and {more} more"


def _clamped(group: str, where: TopicPartition, offset: int, held: PartitionRange) -> int:
    nearest = min(max(offset, held.log_start_offset), held.high_watermark)
    if nearest != offset:
        what = (
            "below the first one it holds: what lay between is deleted"
            if offset < nearest
            else "beyond its end: the topic was truncated or made anew"
        )
        _log.warning(
            "group %s has offset %d committed for topic %s partition %d, %s; starting at %d "
            "(the partition holds %d to %d)",
            group,
            offset,
            where.topic,
            where.partition,
            what,
            nearest,
            held.log_start_offset,
            held.high_watermark,
        )
    return nearest
