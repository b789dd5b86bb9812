"""Commits the offsets of a session's streaming queries to their consumer groups."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from offsetmgr.client import FlushResult, OffsetClient, Uncommitted
from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetTimeoutError
from offsetmgr.spark.committer import CommitCounts, Committer, Notices
from offsetmgr.spark.groups import check_groups
from offsetmgr.spark.inbox import Run
from offsetmgr.spark.progress import read_snapshot
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.spark.groups import Groups
    from offsetmgr.spark.progress import Snapshot

_log = logging.getLogger("offsetmgr.spark")

DETACH_S: Final = 10.0
"""How long leaving a ``with`` block waits for the last commits."""


def commit_offsets(
    spark: SparkSession,
    client: OffsetClient,
    *,
    group: str | None = None,
    groups: Mapping[str, str] | None = None,
    query_name: str | None = None,
) -> OffsetCommits:
    """Commit what the streaming queries of ``spark`` read, from now on, to their groups.

    Give ``group`` where all topics belong to one, or ``groups`` as topic → group, where a topic
    that is not named is left alone.  ``query_name`` commits the query of that name alone; without
    it every query of the session with a Kafka source is committed, also those that run already.

    A query notices nothing of it: not where the service is away, nor where Kafka refuses the
    commits.  Raises InvalidValueError naming the argument that is wrong.
    """
    wanted = check_groups(group, groups)
    _check(spark, client, query_name)
    commits = OffsetCommits(spark, client, wanted, query_name)
    commits.attach()
    return commits


def _check(spark: object, client: object, query_name: object) -> None:
    if not hasattr(spark, "streams"):
        raise InvalidValueError("spark", spark, "is no SparkSession", "give the session")
    if not isinstance(client, OffsetClient):
        fix = 'give OffsetClient("http://127.0.0.1:8741", name="...")'
        raise InvalidValueError("client", client, "is no OffsetClient", fix)
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        fix = "give the queryName of the query, or leave it out for every query"
        raise InvalidValueError("query_name", query_name, "is not the name of a query", fix)


class OffsetCommits:
    """The offsets of a session's queries on their way to their groups; see ``commit_offsets``.

    As a context manager it detaches at the end of the block.
    """

    def __init__(
        self, spark: SparkSession, client: OffsetClient, groups: Groups, query_name: str | None
    ) -> None:
        """Prepare; ``commit_offsets`` makes and attaches it."""
        self._spark = spark
        self._client = client
        self._query_name = query_name
        self._notices = Notices()
        self._committer = Committer(client, groups, self._notices)
        # Whoever reads a checkpoint or pins a batch by this package needs no pyspark.
        from offsetmgr.spark.listener import CommitListener  # noqa: PLC0415

        self._listener = CommitListener(self)
        self._unreadable = 0
        self._detached = False

    @property
    def counts(self) -> CommitCounts:
        """How many offsets were submitted, taken back, refused, and not readable."""
        return self._committer.counts._replace(unreadable=self._unreadable)

    def attach(self) -> None:
        """Listen to the session, and take up the queries that run already."""
        self._committer.start()
        # In this order nothing falls between: what comes twice is the same batch.
        self._spark.streams.addListener(self._listener)
        for query in self._spark.streams.active:
            try:
                self._seed(query)
            except Exception:  # noqa: BLE001 -- a query's trouble is its own
                # It may have ended meanwhile, which is no reason to leave the others.
                _log.exception("the offsets of a running query were not taken up")

    def started(self, run: Run, name: str | None) -> None:
        """A run has begun: what its checkpoint holds is committed, also where nothing new comes."""
        if self._is_wanted(name):
            # Looked up while Spark waits: a run with nothing to do may be over in a moment.
            query = self._spark.streams.get(run.query_id)
            if query is not None:
                self._expect(run, query)

    def take(self, progress: object) -> None:
        """Hand a progress report over; one that cannot be read is told in the log."""
        snapshot = self._read(progress)
        if snapshot is not None:
            self._committer.submit(snapshot)

    def _read(self, progress: object) -> Snapshot | None:
        """The report, where it can be read and is of a query that is committed here."""
        try:
            snapshot = read_snapshot(progress)
        except InvalidValueError as error:
            self._unreadable += 1
            self._notices.warn(("report",), f"a query's progress is not understood: {error}")
            return None
        if not self._is_wanted(snapshot.name):
            return None
        for source, problem in snapshot.problems.items():
            self._unreadable += 1
            self._notices.warn(
                (snapshot.query_id, source), f"{snapshot.label}, source {source}: {problem}"
            )
        return snapshot

    def _expect(self, run: Run, query: StreamingQuery) -> None:
        def ask() -> Snapshot | None:
            progress = query.lastProgress
            if progress is None:
                return None
            self._committer.heard(run)
            return self._read(progress)

        self._committer.expect(run, ask)

    def _is_wanted(self, name: str | None) -> bool:
        return self._query_name is None or name == self._query_name

    def ended(self, run: Run) -> None:
        """A run has ended: commit its last offsets and release its managers, soon."""
        self._committer.end(run)

    def flush(self, query: StreamingQuery, timeout: float = 10.0) -> FlushResult:
        """Commit what ``query`` has read last and say what was acknowledged.

        To be called after ``query.awaitTermination()``: Spark's last event may be lost, its
        ``lastProgress`` is not.  Waits up to ``timeout`` seconds; what was not acknowledged by
        then is in the answer, with the reason.  Raises InvalidValueError for a query that is not
        committed here, ManagerStoppedError after ``detach``.
        """
        deadline = time.monotonic() + timeout
        if self._detached:
            message = "these commits are detached: flush the query first, inside the with block"
            raise ManagerStoppedError(message)
        if not self._is_wanted(query.name):
            fix = f"flush the query named {self._query_name!r}"
            raise InvalidValueError("query", query.name, "is not committed here", fix)
        progress = query.lastProgress
        if progress is None:
            return FlushResult({}, {})
        snapshot = read_snapshot(progress)
        wanted = self._committer.positions(snapshot)
        try:
            if self._committer.wait(self._committer.submit(snapshot), deadline):
                result = self._flushed(wanted, deadline)
                return self._with_released(result, wanted, query, deadline)
            error = OffsetTimeoutError(
                f"the service did not answer within {timeout} s: the offsets are on their way still"
            )
            left = {
                key: Uncommitted(OffsetAndMetadata(offset), error) for key, offset in wanted.items()
            }
            return FlushResult({}, left)
        finally:
            if not query.isActive:
                self.ended(Run(str(query.id), str(query.runId)))

    def _with_released(
        self,
        result: FlushResult,
        wanted: Mapping[ManagerKey, int],
        query: StreamingQuery,
        deadline: float,
    ) -> FlushResult:
        """Add what managers ended with that were released meanwhile, and what none has taken."""
        missing = wanted.keys() - result.committed.keys() - result.uncommitted.keys()
        if not missing:
            return result
        if query.isActive:
            left = {key: _untaken(key, wanted[key]) for key in missing}
            return FlushResult(result.committed, {**result.uncommitted, **left})
        run = Run(str(query.id), str(query.runId))
        released = self._committer.wait(self._committer.end(run), deadline)
        committed, uncommitted = dict(result.committed), dict(result.uncommitted)
        for key in missing:
            # Until this run is released, what is known of the key may be an earlier run's.
            end = self._committer.end_of(key)
            if not released:
                error = OffsetTimeoutError(f"{key} is being released still; its end is not known")
                end = Uncommitted(OffsetAndMetadata(wanted[key]), error)
            if isinstance(end, Uncommitted):
                uncommitted[key] = end
            elif end is not None:
                committed[key] = end
            else:
                uncommitted[key] = _untaken(key, wanted[key])
        return FlushResult(committed, uncommitted)

    def _flushed(self, wanted: Iterable[ManagerKey], deadline: float) -> FlushResult:
        """Wait for what one query reads, and for nothing else of the client."""
        by_group: dict[str, list[TopicPartition]] = {}
        for key in wanted:
            by_group.setdefault(key.group, []).append(key.topic_partition)
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        for group, partitions in by_group.items():
            left_s = max(0.0, deadline - time.monotonic())
            result = self._client.flush(left_s, group=group, partitions=partitions)
            committed.update(result.committed)
            uncommitted.update(result.uncommitted)
        return FlushResult(committed, uncommitted)

    def detach(self, timeout: float = DETACH_S) -> None:
        """Stop listening, commit what is left and release the managers; harmless when repeated.

        The client stays open.  Waits up to ``timeout`` seconds.
        """
        if self._detached:
            return
        self._detached = True
        try:
            self._spark.streams.removeListener(self._listener)
        except Exception:  # noqa: BLE001 -- of py4j or of Spark Connect
            # A session that was stopped before has no listeners any more.
            _log.debug("the listener was not removed", exc_info=True)
        if not self._committer.close(time.monotonic() + timeout):
            _log.warning("not everything was committed within %s s of detaching", timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.detach()

    def _seed(self, query: StreamingQuery) -> None:
        run, progress = Run(str(query.id), str(query.runId)), query.lastProgress
        if progress is not None:
            self.take(progress)
        elif self._is_wanted(query.name):
            self._expect(run, query)
        if not query.isActive:
            # Its end may have been told before its progress was taken: nobody tells it again.
            self.ended(run)


def _untaken(key: ManagerKey, offset: int) -> Uncommitted:
    message = f"{key} was not taken: its manager is being stopped, or the client was closed"
    return Uncommitted(OffsetAndMetadata(offset), ManagerStoppedError(message))
