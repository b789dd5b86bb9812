"""Compares a group with the checkpoint of its job, and brings it there.

They differ after a crash between Spark's commit log and its progress event, or if the job never
had the listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetConflictError, listed
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.logs import newer_logs, usable_logs
from offsetmgr.spark.starting import check_client
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import TopicPartition

_TIMEOUT_S: Final = 30.0


class OffsetPair(NamedTuple):
    """A partition's offset in the checkpoint and in the group."""

    checkpoint: int
    """The next offset to read."""
    committed: int | None
    """The group's; None if nothing is committed."""

    @property
    def differs(self) -> bool:
        """True if the group is not where the checkpoint is."""
        return self.checkpoint != self.committed


class Reconciliation(NamedTuple):
    """A group compared with a checkpoint."""

    group: str
    batch_id: int | None
    """The last batch that is finished; None if there is none yet."""
    partitions: Mapping[TopicPartition, OffsetPair]
    """Every partition of the checkpoint; what else the group has committed is left alone."""
    refused: Mapping[TopicPartition, str] = {}
    """Partitions whose offset in the checkpoint is of a former log, such as of a topic that was
    deleted and recreated, or whose log cannot be read; and the reason."""
    problems: Sequence[str] = ()
    """Reasons why Spark does not start from the checkpoint as it is."""
    warnings: Mapping[TopicPartition, str] = {}
    """Partitions whose offset may be of a former log, though the log is long enough for it."""
    topic_ids: Mapping[TopicPartition, str] = {}
    """Ids of the topics that the checkpoint was compared with; brokers before 2.8 give none."""

    @property
    def differences(self) -> dict[TopicPartition, OffsetPair]:
        """The partitions where the two differ."""
        return {partition: pair for partition, pair in self.partitions.items() if pair.differs}

    def execute(
        self, client: Offsets, timeout: float = _TIMEOUT_S, *, partial: bool = False
    ) -> None:
        """Commit the offsets of the checkpoint, even if the group is ahead of them.

        Raises OffsetConflictError, with nothing done, if a differing partition is ``refused``, or
        its log is another one by now; with ``partial`` the others are committed.  Raises
        ManagerExistsError if a running job commits for the group, and what a submit with ``sync``
        raises.
        """
        wanted = {partition: pair.checkpoint for partition, pair in self.differences.items()}
        _, reasons = usable_logs(client, wanted, Deadline(timeout), self.topic_ids)
        reasons |= self.refused
        refused = [f"{each} ({reasons[each]})" for each in wanted if each in reasons]
        if refused and not partial:
            text = f"group {self.group} cannot take the checkpoint's offsets of {listed(refused)}"
            raise OffsetConflictError(f"{text}; nothing was committed")
        offsets: dict[tuple[str, int], int] = {
            each: offset for each, offset in wanted.items() if each not in reasons
        }
        if not offsets:
            return
        client.claim(self.group, offsets, timeout=timeout)
        try:
            client.submit(self.group, offsets, rewind=True, sync=True, timeout=timeout)
        finally:
            client.stop_managers(timeout=timeout, group=self.group, partitions=offsets)


def reconcile(
    client: Offsets,
    group: str,
    checkpoint: str,
    *,
    spark: SparkSession | None = None,
    timeout: float = _TIMEOUT_S,
) -> Reconciliation:
    """Compare the committed offsets of ``group`` with the last finished batch of ``checkpoint``.

    Changes nothing; ``execute`` of the result does.  The checkpoint is read by the session
    ``spark``; without one it must be on this machine.  Raises InvalidValueError if it cannot be
    read, and what ``client.committed`` and ``client.topics`` raise.
    """
    check_client(client)
    check_group(group)
    files = Checkpoint(checkpoint, spark)
    finished, problems = files.last_finished(), files.problems()
    if finished is None:
        return Reconciliation(group, None, {}, problems=problems)
    deadline = Deadline(timeout)
    committed = client.committed(group, timeout=deadline.left_s)
    logs, refused = usable_logs(client, finished.offsets, deadline)
    pairs: dict[TopicPartition, OffsetPair] = {}
    for partition, offset in sorted(finished.offsets.items()):
        known = committed.get(partition)
        pairs[partition] = OffsetPair(offset, None if known is None else known.offset)
    warnings = newer_logs(client, finished, logs, deadline)
    topic_ids = {partition: log.topic_id for partition, log in logs.items()}
    return Reconciliation(group, finished.batch_id, pairs, refused, problems, warnings, topic_ids)
