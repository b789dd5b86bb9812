"""Reads the offsets in the checkpoint of a streaming query, and compares a group with them.

Spark keeps there, for each batch N::

    offsets/N        how far each source is read when the batch is over; written before it runs
    commits/N        that the batch is over
    sources/I/0      where the I-th source began

The first two are lines of text behind a version; a Kafka source's line is its position as JSON.

The group differs from its checkpoint after a crash between Spark's commit log and its progress
event, or if the job never had the listener.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import read_offsets
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_VERSION: Final = "v1"
_BATCH_TIME: Final = re.compile(r'"batchTimestampMs":\s*(\d+)')
_TIMEOUT_S: Final = 30.0
_FIX: Final = "give the checkpointLocation of a streaming query of Spark 3 or 4"


class OffsetRange(NamedTuple):
    """Offsets of a partition from ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets; of a compacted topic not all of them have a record."""
        return self.end - self.start


class FinishedBatch(NamedTuple):
    """The last batch that a query has finished."""

    batch_id: int
    offsets: Mapping[TopicPartition, int]
    """The next offset to read of each partition of each Kafka source; where two sources read the
    same one, the lower."""


class BegunBatch(NamedTuple):
    """The newest batch of a query, finished or not."""

    batch_id: int
    at_s: float | None
    """When Spark planned it, in seconds since 1970; None if the file does not say."""


class Checkpoint:
    """A checkpoint on this machine."""

    def __init__(self, location: str) -> None:
        """``location`` is a path or a ``file:`` URL.  Raises InvalidValueError."""
        parts = urlsplit(location)
        if parts.scheme not in {"", "file"}:
            fix = (
                "give a path on this machine or, in a driver, spark= with the session that reads it"
            )
            raise InvalidValueError("checkpoint", location, f"lies on {parts.scheme}:", fix)
        self.location = location
        self._root = Path(unquote(parts.path) if parts.scheme else location)

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if there is none."""
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            return [path.name for path in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []

    def write(self, name: str, text: str) -> None:
        """Replace a file; a reader finds the old text, the new one or, for a moment, none."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        # Hadoop's checksum of the old text.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        new.replace(path)

    def remove(self, name: str) -> None:
        """Delete a file if it is there."""
        (self._root / name).unlink(missing_ok=True)

    def has_offsets(self) -> bool:
        """Return True if the query has begun a batch.

        If not, Spark takes its start from the source's options, even if the folder exists.
        """
        return bool(self._batches("offsets"))

    def last_finished(self) -> FinishedBatch | None:
        """Return the last finished batch; None if there is none.

        Raises InvalidValueError if this is no checkpoint, or cannot be read.
        """
        if self.read("metadata") is None:
            raise InvalidValueError("checkpoint", self.location, "has no file named metadata", _FIX)
        batch_id = max(self._batches("commits"), default=None)
        if batch_id is None:
            return None
        lowest: dict[TopicPartition, int] = {}
        for position in self._positions(batch_id):
            for partition, offset in position.items():
                lowest[partition] = min(offset, lowest.get(partition, offset))
        return FinishedBatch(batch_id, lowest)

    def last_begun(self) -> BegunBatch | None:
        """Return the newest batch; None if there is none.  Raises InvalidValueError."""
        batch_id = max(self._batches("offsets"), default=None)
        if batch_id is None:
            return None
        lines = self._lines(f"offsets/{batch_id}")
        found = _BATCH_TIME.search(lines[0]) if lines else None
        return BegunBatch(batch_id, None if found is None else int(found[1]) / 1_000)

    def ranges(self, batch_id: int) -> dict[TopicPartition, OffsetRange]:
        """Return what a batch reads of each partition; all of both if two sources read it.

        Raises InvalidValueError if the checkpoint does not have it.
        """
        ends = self._positions(batch_id)
        before = self._positions(batch_id - 1) if batch_id > 0 else []
        ranges: dict[TopicPartition, OffsetRange] = {}
        for source, position in enumerate(ends):
            starts = before[source] if source < len(before) else {}
            if position and not starts:
                starts = read_offsets("\n".join(self._lines(f"sources/{source}/0")))
            for partition, end in position.items():
                # Spark reads a partition that has come since from its beginning.
                start = starts.get(partition, 0)
                known = ranges.get(partition, OffsetRange(start, end))
                ranges[partition] = OffsetRange(min(start, known.start), max(end, known.end))
        return ranges

    def _batches(self, folder: str) -> list[int]:
        """Return the numbers of the batches in ``offsets`` or ``commits``."""
        return [int(name) for name in self.names(folder) if name.isdecimal()]

    def _positions(self, batch_id: int) -> list[dict[TopicPartition, int]]:
        """Return each source's position at the end of a batch; empty for other than Kafka's."""
        # The second line is about the batch: its watermark and settings.
        return [_position(line) for line in self._lines(f"offsets/{batch_id}")[1:]]

    def _lines(self, name: str) -> list[str]:
        text = self.read(name)
        if text is None:
            problem = "is not there: purged, or another checkpoint"
            raise InvalidValueError("checkpoint file", name, problem, _FIX)
        # Spark 2.1 wanted a NUL before the version in some of them.
        version, *lines = text.lstrip("\0").splitlines() or [""]
        if version.strip() != _VERSION:
            problem = f"has the version {version[:20]!r}, not {_VERSION}"
            fix = "update offsetmgr, or report it"
            raise InvalidValueError("checkpoint file", name, problem, fix)
        return [line.strip() for line in lines]


class _SparkCheckpoint(Checkpoint):
    """A checkpoint wherever the session keeps it: HDFS, an object store, a disk."""

    def __init__(self, spark: SparkSession, jvm: Any, location: str) -> None:
        self.location = location
        self._jvm = jvm
        self._settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 -- PySpark offers no files

    def read(self, name: str) -> str | None:
        path, files = self._open(name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text = self._jvm.java.util.Scanner(stream, "UTF-8").useDelimiter("\\A")
            return str(text.next()) if text.hasNext() else ""
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        path, files = self._open(folder)
        if not files.exists(path):
            return []
        return [str(each.getPath().getName()) for each in files.listStatus(path)]

    def write(self, name: str, text: str) -> None:
        path, files = self._open(name)
        new = self._jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}.new")
        stream = files.create(new, True)  # noqa: FBT003 -- Hadoop's
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.remove(name)  # HDFS and object stores do not rename to a name that exists
        if not files.rename(new, path):
            raise OSError(f"{new} cannot be renamed to {path}")

    def remove(self, name: str) -> None:
        path, files = self._open(name)
        files.delete(path, False)  # noqa: FBT003 -- the same

    def _open(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")
        return path, path.getFileSystem(self._settings)


def open_checkpoint(location: object, spark: SparkSession | None) -> Checkpoint:
    """Return the checkpoint, read by the session, or without one on this machine.

    Sessions of Spark Connect read no files.  Raises InvalidValueError for a location that is no
    text, or that only a session could read.
    """
    _check_location(location)
    jvm = getattr(spark, "_jvm", None)
    if spark is None or jvm is None:
        return Checkpoint(str(location))
    return _SparkCheckpoint(spark, jvm, str(location))


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

    @property
    def differences(self) -> dict[TopicPartition, OffsetPair]:
        """The partitions where the two differ."""
        return {partition: pair for partition, pair in self.partitions.items() if pair.differs}

    def execute(self, client: Offsets, timeout: float = _TIMEOUT_S) -> None:
        """Commit the offsets of the checkpoint, even if the group is ahead of them.

        Raises ManagerExistsError if a running job commits for the group, and what a submit with
        ``sync`` raises.
        """
        offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {
            partition: pair.checkpoint for partition, pair in self.differences.items()
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
    read, and what ``client.committed`` raises.
    """
    check_group(group)
    finished = open_checkpoint(checkpoint, spark).last_finished()
    if finished is None:
        return Reconciliation(group, None, {})
    committed = client.committed(group, timeout=timeout)
    pairs = {
        partition: OffsetPair(
            offset, committed[partition].offset if partition in committed else None
        )
        for partition, offset in sorted(finished.offsets.items())
    }
    return Reconciliation(group, finished.batch_id, pairs)


def batch_ranges(
    checkpoint: str,
) -> Callable[
    [Callable[[DataFrame, int, Mapping[TopicPartition, OffsetRange]], object]],
    Callable[[DataFrame, int], None],
]:
    """Pass the offsets of each batch to a ``foreachBatch`` function.

    ::

        @batch_ranges(checkpoint)
        def write(batch, batch_id, ranges): ...

        stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()

    A batch that Spark repeats after a failure has the same number and the same ranges, so a sink
    that stores one of them with its data can write each record once.  Do not commit the offsets in
    the function: a batch is finished only when Spark has written so, and then ``commit_offsets``
    commits it.  If the function raises an exception, the batch fails and is not committed.

    ``checkpoint`` is the query's checkpointLocation.  Raises InvalidValueError if it is no path,
    and (in the query) if it is the checkpoint of another query.
    """
    _check_location(checkpoint)

    def decorate(
        function: Callable[[DataFrame, int, Mapping[TopicPartition, OffsetRange]], object],
    ) -> Callable[[DataFrame, int], None]:
        @functools.wraps(function)
        def run(batch: DataFrame, batch_id: int) -> None:
            files = open_checkpoint(checkpoint, batch.sparkSession)
            function(batch, batch_id, files.ranges(batch_id))

        return run

    return decorate


def _check_location(location: object) -> None:
    if not isinstance(location, str) or not location:
        fix = "give the query's checkpointLocation as text"
        raise InvalidValueError("checkpoint", location, "is no path", fix)


def _position(line: str) -> dict[TopicPartition, int]:
    try:
        return read_offsets(line)
    except InvalidValueError:
        return {}  # "-" if there is none; files, tables and rates have forms of their own
