"""What the checkpoint of a streaming query says of its offsets; read only.

Spark keeps there, for each batch N::

    offsets/N        how far each source is read when the batch is over; written before it runs
    commits/N        that the batch is over
    sources/I/0      where the I-th source began

The first two are lines of text behind a version; a Kafka source's line is its position as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import read_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from offsetmgr.types import TopicPartition

_VERSION: Final = "v1"
_NOTHING: Final = "-"
"""Stands for a source without a position."""

_FIX: Final = "give the checkpointLocation of a streaming query of Spark 3 or 4"


class OffsetRange(NamedTuple):
    """What of a partition is read: from ``start`` up to before ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets that is; of a compacted topic not all of them have a record."""
        return self.end - self.start


class Files(Protocol):
    """Where a checkpoint lies."""

    @property
    def location(self) -> str:
        """As its people know it."""

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""


class LocalFiles:
    """A checkpoint on this machine."""

    def __init__(self, location: str) -> None:
        """``location`` is a path or a ``file:`` URL.  Raises InvalidValueError."""
        parts = urlsplit(location)
        if parts.scheme not in {"", "file"}:
            fix = "give a path on this machine, or call offsetmgr.spark.reconcile with the session"
            raise InvalidValueError("checkpoint", location, f"lies on {parts.scheme}:", fix)
        self.location = location
        self._root = Path(unquote(parts.path) if parts.scheme else location)

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none."""
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""
        try:
            return [path.name for path in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []


class SparkFiles:
    """A checkpoint wherever the session keeps it: HDFS, an object store, a disk."""

    def __init__(self, spark: SparkSession, jvm: Any, location: str) -> None:
        """``jvm`` is the session's way to Java."""
        self._jvm = jvm
        self.location = location
        self._settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 -- PySpark offers no files

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none."""
        path = self._path(name)
        files = path.getFileSystem(self._settings)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text = self._jvm.java.util.Scanner(stream, "UTF-8").useDelimiter("\\A")
            return str(text.next()) if text.hasNext() else ""
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""
        path = self._path(folder)
        files = path.getFileSystem(self._settings)
        if not files.exists(path):
            return []
        return [str(each.getPath().getName()) for each in files.listStatus(path)]

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")


def checkpoint_files(location: str, spark: SparkSession | None) -> Files:
    """A checkpoint as the session reaches it; on this machine without one.

    So it is under Spark Connect too, whose sessions reach no files.  Raises InvalidValueError
    where the location is not on this machine and no session can be asked.
    """
    jvm = getattr(spark, "_jvm", None)
    if spark is None or jvm is None:
        return LocalFiles(location)
    return SparkFiles(spark, jvm, location)


class Finished(NamedTuple):
    """The last batch that a query has finished."""

    batch_id: int
    offsets: Mapping[TopicPartition, int]
    """The next offset to read of each partition of each Kafka source; where two sources read the
    same one, the lower."""


def last_finished(files: Files) -> Finished | None:
    """What the query has finished; None where it has not finished a batch yet.

    Raises InvalidValueError where this is no checkpoint, or none that can be understood.
    """
    if files.read("metadata") is None:
        raise InvalidValueError("checkpoint", files.location, "has no file named metadata", _FIX)
    finished = [int(name) for name in files.names("commits") if _is_number(name)]
    if not finished:
        return None
    batch_id = max(finished)
    lowest: dict[TopicPartition, int] = {}
    for position in _positions(files, batch_id):
        for where, offset in position.items():
            lowest[where] = min(offset, lowest.get(where, offset))
    return Finished(batch_id, lowest)


def ranges_of(files: Files, batch_id: int) -> dict[TopicPartition, OffsetRange]:
    """What a batch reads of each partition; of one that two sources read, all of both.

    Raises InvalidValueError where the checkpoint does not say it.
    """
    ends = _positions(files, batch_id)
    before = _positions(files, batch_id - 1) if batch_id > 0 else []
    ranges: dict[TopicPartition, OffsetRange] = {}
    for source, position in enumerate(ends):
        starts = before[source] if source < len(before) else {}
        if position and not starts:
            starts = _began(files, source)
        for where, end in position.items():
            # Spark reads a partition that has come since from its beginning.
            start = starts.get(where, 0)
            known = ranges.get(where, OffsetRange(start, end))
            ranges[where] = OffsetRange(min(start, known.start), max(end, known.end))
    return ranges


def _positions(files: Files, batch_id: int) -> list[dict[TopicPartition, int]]:
    """The position of each source at the end of a batch; empty where it is no Kafka source."""
    name = f"offsets/{batch_id}"
    # The second line is about the batch: its watermark and settings.
    return [_position(line) for line in _lines(files, name)[1:]]


def _position(line: str) -> dict[TopicPartition, int]:
    if line == _NOTHING:
        return {}
    try:
        return read_offsets(line)
    except InvalidValueError:
        return {}  # of a rate, a file, a table: each kind of source has a form of its own


def _began(files: Files, source: int) -> dict[TopicPartition, int]:
    lines = _lines(files, f"sources/{source}/0")
    return read_offsets("\n".join(lines))


def _lines(files: Files, name: str) -> list[str]:
    text = files.read(name)
    if text is None:
        problem = "is not there: purged, or another checkpoint"
        raise InvalidValueError("checkpoint file", name, problem, _FIX)
    # Spark 2.1 wanted a NUL before the version in some of them.
    version, *lines = text.lstrip("\0").splitlines() or [""]
    if version.strip() != _VERSION:
        problem = f"has the version {version[:20]!r}, not {_VERSION}"
        raise InvalidValueError("checkpoint file", name, problem, "update offsetmgr, or report it")
    return [line.strip() for line in lines]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
