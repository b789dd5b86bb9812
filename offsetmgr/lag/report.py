"""Groups and their lag as JSON: what the commands print, and what the service answers.

docs/operator.md describes the shape.  What is not known is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.kafka.cluster import GroupListing
    from offsetmgr.lag.measure import GroupLag, PartitionLag
    from offsetmgr.types import TopicPartition

PartitionField = Literal[
    "topic",
    "partition",
    "submitted",
    "committed",
    "start",
    "end",
    "lag",
    "lag_seconds",
    "lag_seconds_unknown",
    "committed_at",
    "pending_acks",
    "metadata",
    "member_id",
    "client_id",
    "host",
    "committer",
    "phase",
    "status",
    "rate_in",
    "rate_out",
    "catch_up_seconds",
    "error",
]
PARTITION_FIELDS: Final[tuple[PartitionField, ...]] = get_args(PartitionField)
"""Of a partition, in the order of the columns of ``--csv``."""


class OwningClient(NamedTuple):
    """The client that commits a partition through a service."""

    client: str
    error: OffsetManagerError | None
    """Why its newest offset is not committed."""
    submitted: int | None = None
    committed_at: float | None = None
    """When Kafka acknowledged its last commit, in seconds since 1970."""
    phase: str | None = None
    """Of its manager: fetching, ready, stopping or stopped."""


def listing_report(
    groups: Iterable[GroupListing], errors: Iterable[OffsetManagerError] = ()
) -> dict[str, Any]:
    """Return a list of groups, and why some may be missing."""
    return {
        "groups": [each._asdict() for each in groups],
        "errors": [_error(each) for each in errors],
    }


def lag_report(
    groups: Iterable[GroupLag],
    committers: Mapping[tuple[str, TopicPartition], OwningClient] | None = None,
    fields: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the lag of groups, and which clients of a service commit them.

    With ``fields`` each partition is a list of these, which a browser reads in half the time.
    """
    found = [_group(each, committers or {}) for each in groups]
    for group in found if fields else ():
        group["partitions"] = [[each[name] for name in fields] for each in group["partitions"]]
    return {"groups": found}


def with_watch(group: GroupLag, watched: GroupLag | None) -> GroupLag:
    """Return a group as it was measured now, with what the watcher's last round knows of it."""
    if watched is None or watched.error is not None:  # what it knows is of an earlier round
        return group
    seen = {each.partition: each for each in watched.partitions}
    partitions = []
    for now in group.partitions:
        each = seen.get(now.partition, now)
        partitions.append(
            now._replace(
                status=each.status,
                commits=each.commits,
                rate_in=each.rate_in,
                rate_out=each.rate_out,
            )
        )
    return group._replace(partitions=tuple(partitions), status=watched.status)


def group_summary(group: GroupLag) -> dict[str, Any]:
    """Return a watched group without its members and partitions, but with their numbers."""
    described = group.description
    return _sums(group) | {
        "state": described.state if described else None,
        "members": len(described.members) if described else None,
        "partitions": len(group.partitions),
        "lag_points": list(group.lag_points),
    }


def _sums(group: GroupLag) -> dict[str, Any]:
    """Return the sums of a group's partitions, and the longest time to catch up."""
    times = [each.catch_up_s for each in group.partitions if each.lag is not None]
    catch_up = [each for each in times if each is not None]
    return {
        "status": None if group.status is None else group.status.text,
        "lag": group.total,
        "lag_seconds": _rounded(group.seconds),
        "rate_in": _sum(each.rate_in for each in group.partitions),
        "rate_out": _sum(each.rate_out for each in group.partitions),
        "catch_up_seconds": _rounded(max(catch_up)) if times and catch_up == times else None,
        "pending_acks": sum(each.pending_acks or 0 for each in group.partitions),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return _rounded(sum(known)) if known else None


def _group(
    group: GroupLag, committers: Mapping[tuple[str, TopicPartition], OwningClient]
) -> dict[str, Any]:
    described = group.description
    return {
        "name": group.name,
        "state": described.state if described else None,
        "type": described.type if described else None,
        "coordinator": described.coordinator if described else None,
        "assignor": described.assignor if described else None,
        **_sums(group),
        "lag_seconds_unknown": sorted({p.seconds_unknown for p in group.partitions} - {""}),
        "error": _error(group.error),
        "members": [
            {
                **each._asdict(),
                "group_instance_id": each.group_instance_id or None,
                "partitions": [partition._asdict() for partition in each.partitions],
            }
            for each in group.members
        ],
        "partitions": [
            _partition(each, committers.get((group.name, each.partition)))
            for each in group.partitions
        ],
    }


def _partition(lag: PartitionLag, committer: OwningClient | None) -> dict[str, Any]:
    committed, member = lag.committed, lag.member
    times = [committer.committed_at] if committer else []
    times += [lag.commits[-1].timestamp_ms / 1_000] if lag.commits else []
    values = (
        *lag.partition,
        committer.submitted if committer else None,
        committed.offset if committed else None,
        lag.start,
        lag.end,
        lag.lag,
        _rounded(lag.seconds),
        lag.seconds_unknown or None,
        _rounded(max((each for each in times if each is not None), default=None)),
        lag.pending_acks,
        committed.metadata if committed else None,
        member.member_id if member else None,
        member.client_id if member else None,
        member.host if member else None,
        committer.client if committer else None,
        committer.phase if committer else None,
        None if lag.status is None else lag.status.text,
        _rounded(lag.rate_in),
        _rounded(lag.rate_out),
        _rounded(lag.catch_up_s),
        _error(lag.error) or _out_of_range(lag) or _error(committer.error if committer else None),
    )
    return dict(zip(PARTITION_FIELDS, values, strict=True))


def _out_of_range(lag: PartitionLag) -> dict[str, str | None] | None:
    if not lag.out_of_range:
        return None
    if lag.is_beyond_end:
        text = "the committed offset lies above the end of the log: was the topic recreated?"
    else:
        text = "the committed offset lies below the start of the log: records expired unread"
    hint = "look at history; then reset the group, to an end of the log or to a time"
    return {"code": "OFFSET_OUTSIDE_LOG", "message": text, "fault": "operator", "hint": hint}


def _error(error: OffsetManagerError | None) -> dict[str, str | None] | None:
    if error is None:
        return None
    info = getattr(error, "info", None)
    return {
        "code": error.code,
        "message": str(error),
        "fault": info.fault.value if info else None,
        "hint": getattr(error, "hint", None),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
