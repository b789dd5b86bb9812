"""Holds a group against the checkpoint that it mirrors.

After a crash between Spark's commit log and its progress event, or for a job that never had the
listener, the group is not where the checkpoint is; the checkpoint is the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.spark.checkpoint import checkpoint_files, last_finished
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from offsetmgr.client import OffsetClient
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

TIMEOUT_S = 30.0


class Standing(NamedTuple):
    """A partition in the checkpoint and in the group."""

    checkpoint: int
    """The next offset to read."""
    committed: int | None
    """What the group has; None where nothing is committed."""

    @property
    def differs(self) -> bool:
        """Whether the group is not where the checkpoint is."""
        return self.checkpoint != self.committed


class Reconciliation(NamedTuple):
    """How a group stands to a checkpoint."""

    group: str
    batch_id: int | None
    """The last batch that is finished; None where there is none yet."""
    standings: Mapping[TopicPartition, Standing]
    """Every partition of the checkpoint; others that the group has committed are no concern."""

    @property
    def differences(self) -> dict[TopicPartition, Standing]:
        """The partitions where the two differ."""
        return {where: each for where, each in self.standings.items() if each.differs}

    def execute(self, client: OffsetClient, timeout: float = TIMEOUT_S) -> None:
        """Commit what the checkpoint says, also where the group was further.

        Raises ManagerExistsError where a running job commits for the group (its own offsets are
        newer), and what else a submit with ``sync`` raises.
        """
        offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {
            where: each.checkpoint for where, each in self.differences.items()
        }
        if not offsets:
            return
        client.claim(self.group, offsets, timeout=timeout)
        try:
            client.submit(self.group, offsets, rewind=True, sync=True, timeout=timeout)
        finally:
            client.stop_managers(timeout, group=self.group, partitions=offsets)


def reconcile(
    client: OffsetClient,
    group: str,
    checkpoint: str,
    *,
    spark: SparkSession | None = None,
    timeout: float = TIMEOUT_S,
) -> Reconciliation:
    """Compare what ``group`` has committed with the last finished batch of ``checkpoint``.

    Changes nothing; ``execute`` of the result does.  With ``spark`` the checkpoint may lie wherever
    the session reaches; without, on this machine.  Raises InvalidValueError where it is not a
    checkpoint that can be read, and what ``client.committed`` raises.
    """
    check_group(group)
    finished = last_finished(checkpoint_files(checkpoint, spark))
    if finished is None:
        return Reconciliation(group, None, {})
    committed = client.committed(group, timeout=timeout)
    standings = {
        where: Standing(offset, committed[where].offset if where in committed else None)
        for where, offset in sorted(finished.offsets.items())
    }
    return Reconciliation(group, finished.batch_id, standings)
