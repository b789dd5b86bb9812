"""``foreachBatch`` with the batch's own offset ranges."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.checkpoint import checkpoint_files, ranges_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from offsetmgr.spark.checkpoint import OffsetRange
    from offsetmgr.types import TopicPartition


def batch_ranges(
    checkpoint: str,
) -> Callable[
    [Callable[[DataFrame, int, Mapping[TopicPartition, OffsetRange]], object]],
    Callable[[DataFrame, int], None],
]:
    """Hand a ``foreachBatch`` function what its batch reads of each Kafka partition.

    ::

        @batch_ranges(checkpoint)
        def write(batch, batch_id, ranges): ...

        stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()

    A batch that Spark runs again after a failure has the same number and the same ranges, so a
    sink that keeps one of them beside its data writes each record once.  The offsets are not to
    be committed in the function: a batch is over only when Spark has written so, which is what
    ``commit_offsets`` waits for.  An exception of the function fails the batch, and nothing of it
    is committed.

    ``checkpoint`` is the query's checkpointLocation.  Raises InvalidValueError where it is no
    path, and (in the query) where it is not this query's.
    """
    location = _checked(checkpoint)

    def decorate(
        function: Callable[[DataFrame, int, Mapping[TopicPartition, OffsetRange]], object],
    ) -> Callable[[DataFrame, int], None]:
        @functools.wraps(function)
        def run(batch: DataFrame, batch_id: int) -> None:
            files = checkpoint_files(location, batch.sparkSession)
            function(batch, batch_id, ranges_of(files, batch_id))

        return run

    return decorate


def _checked(checkpoint: object) -> str:
    if not isinstance(checkpoint, str) or not checkpoint:
        fix = "give the query's checkpointLocation"
        raise InvalidValueError("checkpoint", checkpoint, "is no path", fix)
    return checkpoint
