"""Reads the offsets in the checkpoint of a streaming query.

Spark keeps there, for each batch N::

    metadata         the query's id
    offsets/N        how far each source is read when the batch is over; written before it runs
    commits/N        that the batch is over
    sources/I/0      where the I-th source began

The files of batches are lines of text behind a version; a Kafka source's line is its position as
JSON.  The epochs of a continuous trigger are written alike.  With asynchronous progress tracking
not every batch has its files, and a killed driver leaves one of the two without the other.  An
empty file, or one that is cut off, is left by a crash of the file system; Spark refuses it.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.files import check_location, open_files
from offsetmgr.spark.progress import lowest, read_offsets
from offsetmgr.text import error_text, visible
from offsetmgr.types import MAX_OFFSET, check_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from offsetmgr.spark.progress import Positions
    from offsetmgr.types import TopicPartition

_VERSION: Final = "v1"
_BATCH_TIME: Final = re.compile(r'"batchTimestampMs":\s*(\d{1,14})\b')
"""Up to the year 5138; a later one is as good as none."""
_KAFKA_POSITION: Final = re.compile(r'\s*\{\s*"[^"]*"\s*:\s*\{\s*"-?\d+"\s*:')
_ID_CHARS: Final = 255
"""The service takes no longer ones; those of Spark have 36."""
_HINT: Final = "give the checkpointLocation of a streaming query of Spark 3 or 4"


class OffsetRange(NamedTuple):
    """Offsets of a partition from ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets; of a compacted topic not all of them have a record."""
        return self.end - self.start


class Batch(NamedTuple):
    """A batch that a query has begun, or finished."""

    batch_id: int
    positions: tuple[Positions, ...]
    """Of each source; empty for one that is not Kafka's."""
    at_s: float | None
    """When Spark planned it, in seconds since 1970; None if the file does not say."""

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition; where two sources read it, the lower."""
        return lowest(self.positions)


class _DamageError(InvalidValueError):
    """A file is missing, or was damaged by a crash."""


class Checkpoint:
    """The checkpoint of a query."""

    def __init__(
        self,
        location: object,
        spark: SparkSession | None = None,
        requests: Counter[str] | None = None,
    ) -> None:
        """``location`` is a path or a URL, read by the session if there is one.

        ``requests`` counts those for a file (``read``) and for the names in a folder (``list``).
        Raises InvalidValueError.
        """
        self.files = open_files(location, spark)
        self.location = self.files.location
        self.write, self.remove = self.files.write, self.files.remove
        self._requests = Counter() if requests is None else requests

    def names(self, folder: str) -> list[str]:
        self._requests["list"] += 1
        return self.files.names(folder)

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it does not exist.

        Empty also for a file of NULs, of which a crash has left the length alone.
        """
        self._requests["read"] += 1
        text = self.files.read(name)
        return text if text is None or text.strip("\0\n") else ""

    def query_id(self) -> str:
        """Return the query's id.  Raises InvalidValueError if this is not a checkpoint."""
        text = self._metadata()
        try:
            return visible(str(json.loads(text)["id"]))[:_ID_CHARS]
        except (ValueError, KeyError, TypeError, RecursionError):
            problem = f"has a metadata file that cannot be read ({text[:80]!r})"
            raise InvalidValueError("checkpoint", self.location, problem, _HINT) from None

    def has_offsets(self, topics: Collection[str] = ()) -> bool:
        """Return True if Spark begins from here; False if it takes the options of its sources.

        Where the query has begun no batch, the noted start of a source counts; with ``topics`` only
        that of one which reads any of them.
        """
        notes = [self.read(f"sources/{each}/0") or "" for each in self.names("sources")]
        noted = {place.topic for note in notes for place in _position(note.rpartition("\n")[2])}
        return bool(self._batches("offsets") or noted.intersection(topics or noted))

    def last_finished(self) -> Batch | None:
        """Return the newest finished batch whose files are whole; None if none is finished.

        Raises InvalidValueError if this is not a checkpoint, or cannot be read.
        """
        self._metadata()
        newest: _DamageError | None = None
        for batch_id in filter(self.is_finished, sorted(self._batches("commits"), reverse=True)):
            try:
                batch = self.batch(batch_id)
            except _DamageError as error:
                newest = newest or error
            else:
                # In a checkpoint that was replaced meanwhile, it may be a batch that has begun.
                if self.is_finished(batch_id):
                    return batch
        if newest is not None:
            raise newest
        return None

    def is_finished(self, batch_id: int) -> bool:
        """Return True if Spark has written that the batch is over; asks for this file alone."""
        text = self.read(f"commits/{batch_id}")
        return text is not None and not _damage(text)

    def batch(self, batch_id: int) -> Batch:
        """Return a batch.  Raises InvalidValueError if the checkpoint does not have it."""
        head, *positions = self._lines(f"offsets/{batch_id}", 2)
        return Batch(batch_id, tuple(map(_position, positions)), _batch_time(head))

    def last_begun(self) -> Batch | None:
        """Return the newest batch that has its offsets, without them; None if there is none."""
        for batch_id in sorted(self._batches("offsets"), reverse=True):
            text = self.read(f"offsets/{batch_id}")
            if text is not None and not _damage(text):
                return Batch(batch_id, (), _batch_time(text))
        return None

    def problems(self) -> list[str]:
        """Return why Spark does not start from the checkpoint; empty if nothing is known."""
        newest = {name: max(self._batches(name), default=-1) for name in ("offsets", "commits")}
        is_new = newest["offsets"] <= 0 and newest["commits"] < 0
        first = "before it and offsets/0 are removed, and then begins where startingOffsets says"
        later = "with the trigger availableNow before it is removed"
        needs = {"metadata": "with it"} | {
            f"{folder}/{batch}": f"before it is removed, and then runs batch {batch} again"
            for folder, batch in newest.items()
            if batch >= 0
        }
        needs |= {f"sources/{each}/0": first if is_new else later for each in self.names("sources")}
        problems = [
            f"{name} is {damage}, as after a crash of its file system: Spark does not start {need}"
            for name, need in needs.items()
            if (damage := _damage(self.read(name)))
        ]
        batch = newest["commits"]
        if batch > newest["offsets"]:
            problems.append(
                f"offsets/{batch} is missing: Spark does not go on before commits/{batch} is "
                f"removed, too, and then runs batch {batch} again"
            )
        return problems

    def ranges(self, batch_id: int) -> dict[TopicPartition, OffsetRange]:
        """Return what a batch reads of each partition; all of both if two sources read it.

        Raises InvalidValueError if the checkpoint does not have it.
        """
        ends, before = self.batch(batch_id).positions, self._positions_before(batch_id)
        ranges: dict[TopicPartition, OffsetRange] = {}
        for source, position in enumerate(ends):
            starts = before[source] if source < len(before) else {}
            if position and not starts:
                starts = read_offsets("\n".join(self._lines(f"sources/{source}/0")))
            for partition, end in position.items():
                # Spark reads a partition that has come since from its beginning.
                # A lower end is of another log, as after the topic was recreated: it reads nothing.
                start = min(starts.get(partition, 0), end)
                known = ranges.get(partition, OffsetRange(start, end))
                ranges[partition] = OffsetRange(min(start, known.start), max(end, known.end))
        return ranges

    def _metadata(self) -> str:
        text = self.read("metadata")
        if text is None:
            problem = "has no file named metadata"
            raise InvalidValueError("checkpoint", self.location, problem, _HINT)
        return text

    def _batches(self, folder: str) -> list[int]:
        numbers = [int(name) for name in self.names(folder) if name.isdecimal()]
        return [number for number in numbers if number <= MAX_OFFSET]  # Spark reads longs

    def _positions_before(self, batch_id: int) -> tuple[Positions, ...]:
        """Return the sources' positions at the beginning of a batch; empty for the first."""
        before = batch_id - 1
        if not self.read(f"offsets/{before}"):  # as the progress is tracked asynchronously
            before = max((each for each in self._batches("offsets") if each < batch_id), default=-1)
        return () if before < 0 else self.batch(before).positions

    def _lines(self, name: str, least: int = 1) -> list[str]:
        """Return the lines of a file behind its version, which are ``least`` if Spark wrote it.

        Raises InvalidValueError for what is not there, damaged, or of another version.
        """
        text = self.read(name)
        if text is None:
            problem = "is not there: purged, or another checkpoint"
            raise _DamageError("checkpoint file", name, problem, _HINT)
        # Spark 2.1 wanted a NUL before the version in some of them; other ends of lines than these
        # may be in a text.
        version, *lines = text.lstrip("\0").removesuffix("\n").split("\n")
        if text and version.strip() != _VERSION:
            problem = f"has the version {version[:20]!r}, not {_VERSION}"
            hint = "update offsetmgr, or report it"
            raise InvalidValueError("checkpoint file", name, problem, hint)
        damage = _damage(text) or ("cut off" if len(lines) < least else "")
        if damage:
            problem = f"is {damage}, as after a crash of its file system"
            hint = "remove it: Spark refuses it, and then runs the batch again"
            raise _DamageError("checkpoint file", name, problem, hint)
        return [line.strip() for line in lines]


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

    ``checkpoint`` is the query's checkpointLocation.  Raises InvalidValueError if it is not a path,
    for a coroutine or a generator, and (in the query) if it is the checkpoint of another query.
    """
    check_location(checkpoint)

    def decorate(
        function: Callable[[DataFrame, int, Mapping[TopicPartition, OffsetRange]], object],
    ) -> Callable[[DataFrame, int], None]:
        check_callable(function, "function")

        @functools.wraps(function)
        def run(batch: DataFrame, batch_id: int) -> None:
            files = Checkpoint(checkpoint, batch.sparkSession)
            _check_query(files, batch.sparkSession)
            try:
                function(batch, batch_id, files.ranges(batch_id))
            except Exception:
                raise
            except BaseException as error:
                # It would end PySpark's thread, and the query would wait for an answer forever.
                raise RuntimeError(f"{function!r} exits: {error_text(error)}") from error

        return run

    return decorate


def _check_query(files: Checkpoint, spark: Any) -> None:
    """Refuse the checkpoint of another query than runs here; Spark Connect does not name that."""
    context = getattr(spark, "_sc", None)
    # Spark sets it on the thread of a query.
    running = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if running is not None and running != files.query_id():
        problem = f"is of query {files.query_id()}; the one that runs is {running}"
        hint = "give the query's own checkpointLocation"
        raise InvalidValueError("checkpoint", files.location, problem, hint)


def _batch_time(text: str) -> float | None:
    found = _BATCH_TIME.search(text)
    return None if found is None else int(found[1]) / 1_000


def _damage(text: str | None) -> str:
    """Return what a crash of the file system has left of a file; empty if it is whole or missing.

    Cut off is a last line that is the beginning of a JSON object without its end.
    """
    if not text:
        return "" if text is None else "empty"
    line = text.removesuffix("\n").rpartition("\n")[2]
    try:
        json.loads(line)
    except ValueError:
        return "cut off" if line.startswith("{") else ""
    except RecursionError:  # of nobody's, but whole
        return ""
    return ""


def _position(line: str) -> dict[TopicPartition, int]:
    """Raises InvalidValueError for a position of Kafka's that is not understood."""
    try:
        return read_offsets(line)
    except InvalidValueError:
        if _KAFKA_POSITION.match(line):
            raise
        return {}  # "-" if there is none; files, tables and rates have forms of their own
