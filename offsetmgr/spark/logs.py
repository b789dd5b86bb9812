"""Offsets of a query or a group against the logs that they are to be used in."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from offsetmgr.codes import NO_SUCH_PARTITION
from offsetmgr.errors import ServiceError, error_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.client.offsets import Logs, Offsets
    from offsetmgr.deadlines import Deadline
    from offsetmgr.spark.checkpoint import Batch
    from offsetmgr.spark.progress import Positions
    from offsetmgr.types import TopicPartition

MISSING: Final = frozenset(error_info(code).name for code in NO_SUCH_PARTITION)
"""Codes of errors for a partition that does not exist."""


def read_logs(
    client: Offsets, topics: Iterable[str], deadline: Deadline
) -> tuple[Logs, dict[str, ServiceError]]:
    """Return the logs of ``topics``, and the errors of those that Kafka refuses to read.

    As for a missing right, or without a leader.  Topics that do not exist are omitted.  Raises what
    ``client.logs`` raises otherwise.
    """
    names = sorted(set(topics))
    if len(names) > 1:
        with suppress(ServiceError):
            return client.logs(names, timeout=deadline.left_s / 2), {}
    logs: Logs = {}
    unreadable: dict[str, ServiceError] = {}
    for done, name in enumerate(names):
        try:
            logs |= client.logs([name], timeout=deadline.left_s / (len(names) - done))
        except ServiceError as error:
            if error.code not in MISSING:
                unreadable[name] = error
    return logs, unreadable


def usable_logs(
    client: Offsets,
    offsets: Positions,
    deadline: Deadline,
    read_from: Mapping[TopicPartition, str] = {},
) -> tuple[Logs, dict[TopicPartition, str]]:
    """Return the logs of ``offsets``, and which of these are not to be used, as ``foreign``.

    A log that cannot be read is a reason, too, and blocks no other.  Raises as ``client.logs``.
    """
    logs, unreadable = read_logs(client, (partition.topic for partition in offsets), deadline)
    return logs, foreign(offsets, logs, read_from) | {
        partition: f"its log cannot be read: {unreadable[partition.topic]}"
        for partition in offsets
        if partition.topic in unreadable
    }


def foreign(
    offsets: Positions, logs: Logs, read_from: Mapping[TopicPartition, str] = {}
) -> dict[TopicPartition, str]:
    """Return the partitions whose offset is of another log, each with the reason.

    Where the id of the topic that it was ``read_from`` is not known, the ends of a log show it, but
    only while the log is shorter than the former one was.
    """
    reasons: dict[TopicPartition, str] = {}
    for partition, offset in offsets.items():
        log, was = logs.get(partition), read_from.get(partition)
        if log is None:
            reasons[partition] = "the partition does not exist any more"
        elif was and log.topic_id not in {"", was}:
            reasons[partition] = (
                f"the topic was deleted and recreated; its id is {log.topic_id}, it was {was}"
            )
        elif offset > log.high_watermark:
            reasons[partition] = (
                f"offset {offset} is beyond the end of the log, {log.high_watermark}: the topic "
                "was deleted and recreated, or its log was cut"
            )
    return reasons


def newer_logs(
    client: Offsets, batch: Batch, logs: Logs, deadline: Deadline
) -> dict[TopicPartition, str]:
    """Return the partitions whose first record is newer than the batch that has read it.

    It shows most recreated topics whose new log is longer than the former one.  Raises as
    ``client.logs``.
    """
    read: dict[TopicPartition, int] = {}
    for partition, offset in batch.offsets.items():
        log = logs.get(partition)
        if log is not None and log.log_start_offset < offset <= log.high_watermark:
            read[partition] = log.log_start_offset
    if not read or batch.at_s is None:
        return {}
    topics = {partition.topic for partition in read}
    at = client.offsets_at(topics, int(batch.at_s * 1_000), timeout=deadline.left_s)
    return {
        partition: "the log's first record is newer than this batch: was the topic recreated?"
        for partition, start in read.items()
        if at.get(partition, start + 1) <= start
    }
