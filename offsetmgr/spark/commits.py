"""Commits the offsets of a session's streaming queries to their consumer groups."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final

from offsetmgr.client.handle import BoundedStream
from offsetmgr.client.offsets import Deadline
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetManagerError,
    OffsetTimeoutError,
)
from offsetmgr.spark.committer import CommitCounts, Committer, by_group
from offsetmgr.spark.group_state import Groups
from offsetmgr.spark.progress import Run, read_snapshot
from offsetmgr.spark.starting import check_client
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    Uncommitted,
    check_callable,
    check_group,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import Stream

_log = logging.getLogger("offsetmgr.spark")

DETACH_S: Final = 10.0
"""Seconds that leaving a ``with`` block waits for the last commits."""

AT_EXIT_S: Final = 2.0
"""Seconds that the interpreter's exit waits for the last commits of listeners still attached."""


def commit_offsets(
    spark: SparkSession,
    client: Offsets,
    *,
    group: str | None = None,
    groups: Mapping[str, str] | None = None,
    query_name: str | None = None,
    on_error: Callable[[OffsetManagerError], object] | None = None,
) -> OffsetCommits:
    """Commit the offsets of streaming queries of ``spark`` to their groups, from now on.

    Give ``group`` for all topics, or ``groups`` as topic → group; topics without a group are not
    committed.  By default every query of the session with a Kafka source is committed, also those
    that run already; with ``query_name`` only the query of that name.  If no query has that name
    when another one reports a batch, a warning is logged.

    No query is slowed or failed if the service is down or Kafka refuses commits.  ``client`` keeps
    the offsets, also after the end of a query, and sends them when the service is back.  Then the
    managers of an ended query are stopped.

    Failures are logged once for each cause and group, and so is their end.  ``on_error`` is called
    with each error on a thread of its own; the first exception it raises is logged.

    If several queries read a topic for one group, the lowest of their offsets is committed.  A
    stopped query still counts until it runs again (with the same id or, under a new checkpoint,
    with the same name) or is removed by ``release``.

    Raises InvalidValueError.
    """
    wanted = _checked_groups(group, groups)
    if not hasattr(spark, "streams"):
        raise InvalidValueError("spark", spark, "is no SparkSession", "give the session")
    check_client(client)
    _check_options(query_name, on_error)
    return OffsetCommits(spark, client, wanted, query_name, on_error)


class OffsetCommits:
    """The commits of a session's queries; made by ``commit_offsets``.

    As a context manager it detaches at the end of the block.  If nobody detaches, the exit of the
    interpreter waits up to 2 s for the last commits.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Offsets,
        groups: Groups,
        query_name: str | None,
        on_error: Callable[[OffsetManagerError], object] | None,
    ) -> None:
        # Reading a checkpoint or pinning a batch by this package needs no pyspark.
        from offsetmgr.spark.listener import CommitListener  # noqa: PLC0415

        self._spark = spark
        self._client = client
        self._groups = groups
        self._on_error = on_error
        self._errors = BoundedStream[OffsetManagerError]("commit_offsets")
        self._to_call = BoundedStream[OffsetManagerError]("commit_offsets")
        self._refused = 0
        self._detached = False
        self._committer = Committer(client, groups)
        self._listener = CommitListener(spark, self._committer, query_name)
        if on_error is not None:
            name, args = "offsetmgr-errors", (on_error,)
            threading.Thread(target=self._call, args=args, name=name, daemon=True).start()
        self._unwatch = client.watch_errors(self._failed)
        atexit.register(self._at_exit)
        # In this order nothing falls between: what comes twice is the same batch.
        spark.streams.addListener(self._listener)
        for query in spark.streams.active:
            try:
                self._listener.take_up(query)
            except Exception:  # noqa: BLE001 -- the other queries are taken up all the same
                _log.exception("the offsets of a running query were not taken up")

    @property
    def counts(self) -> CommitCounts:
        counts = self._committer.counts
        return counts._replace(refused=self._refused, unreadable=self._listener.unreadable)

    def errors(self) -> Stream[OffsetManagerError]:
        """Return the unread errors of the groups' commits, until ``detach``.

        The newest 64 are kept; ``dropped`` is the number of the others.
        """
        return self._errors

    def flush(self, query: StreamingQuery, timeout: float = 10.0) -> FlushResult:
        """Commit the last offsets of ``query``; return what was committed in ``timeout`` seconds.

        Call it after ``query.awaitTermination()``, because Spark may not report the last batch.
        What was not committed is in the result, with the reason, and is still sent later.  Raises
        InvalidValueError for a query that is not committed here, ManagerStoppedError after
        ``detach``.
        """
        deadline = Deadline(timeout)
        if self._detached:
            message = "these commits are detached: flush the query first, inside the with block"
            raise ManagerStoppedError(message)
        if not self._listener.is_wanted(query.name):
            fix = f"flush the query named {self._listener.query_name!r}"
            raise InvalidValueError("query", query.name, "is not committed here", fix)
        progress = query.lastProgress
        if progress is None:
            return FlushResult({}, {})
        snapshot = read_snapshot(progress)
        wanted = self._committer.offsets(snapshot)
        try:
            with self._committer.keeping(wanted):
                handed_over = wait([self._committer.put(snapshot)], deadline.left_s)
                if handed_over.done:
                    return self._flushed(wanted, deadline)
            text = f"the service did not answer within {timeout} s; the offsets are still sent"
            error = OffsetTimeoutError(text)
            return FlushResult({}, {key: _left(each, error) for key, each in wanted.items()})
        finally:
            if not query.isActive:
                self._committer.end(Run.of(query))

    def release(self, query: StreamingQuery | str, timeout: float = 10.0) -> None:
        """Remove a stopped query (or its name or id) from the minimum of its groups.

        A query that still runs is removed when it ends.  Waits up to ``timeout`` seconds until the
        offsets of the other queries are submitted.  Raises InvalidValueError if no such query was
        committed here, ManagerStoppedError after ``detach``.
        """
        if self._detached:
            raise ManagerStoppedError("these commits are detached, and keep no group back")
        fix = "give a query of this session, its queryName or its id"
        if isinstance(query, str):
            run = Run(query, "")
        elif not hasattr(query, "runId"):
            raise InvalidValueError("query", query, "is no query", fix)
        else:
            run = Run.of(query)
            if not query.isActive:
                self._committer.end(run)
        answered = wait([self._committer.release(run)], timeout).done
        if not all(each.result() for each in answered):
            raise InvalidValueError("query", run.query_id, "has not been committed here", fix)

    def detach(self, timeout: float = DETACH_S) -> None:
        """Stop listening, commit what is left and stop the managers; a second call does nothing.

        Waits up to ``timeout`` seconds.  What is not committed by then is logged, with the command
        that commits it later, and still sent while the client is open.
        """
        if self._detached:
            return
        self._detached = True
        atexit.unregister(self._at_exit)
        try:
            self._spark.streams.removeListener(self._listener)
        except Exception:  # noqa: BLE001 -- of py4j or of Spark Connect
            # A session that was stopped before has no listeners any more.
            _log.debug("the listener was not removed", exc_info=True)
        self._close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _at_exit(self) -> None:
        """Commit and log what is left; Spark may not answer any more, so it is not asked."""
        self._detached = True
        self._close(AT_EXIT_S)

    def _close(self, timeout: float) -> None:
        self._committer.close(timeout)
        self._unwatch()
        self._errors.close()
        self._to_call.close()

    def _failed(self, key: ManagerKey | None, error: OffsetManagerError) -> None:
        """Take an error from the client's threads; it is logged by the client."""
        if key is None or self._groups.include(key.group):
            self._refused += isinstance(error, OffsetCommitError)
            self._errors.put(error)
            if self._on_error is not None:
                self._to_call.put(error)

    def _call(self, on_error: Callable[[OffsetManagerError], object]) -> None:
        for error in self._to_call:
            try:
                on_error(error)
            except Exception as raised:  # noqa: BLE001 -- the user's function may raise anything
                text = f"on_error of commit_offsets raised {type(raised).__name__}: {raised}"
                self._committer.once.warn(("on_error",), text)

    def _flushed(self, wanted: Mapping[ManagerKey, int], deadline: Deadline) -> FlushResult:
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        for group, partitions in by_group(wanted).items():
            left_s = deadline.left_s
            result = self._client.flush(timeout=left_s, group=group, partitions=partitions)
            committed.update(result.committed)
            uncommitted.update(result.uncommitted)
        why = "the client is closed" if self._client.closed else "the log says why"
        for key in wanted.keys() - committed.keys() - uncommitted.keys():
            error = ManagerStoppedError(f"{key} at {wanted[key]} was not submitted: {why}")
            uncommitted[key] = _left(wanted[key], error)
        return FlushResult(committed, uncommitted)


def _checked_groups(group: object, groups: object) -> Groups:
    """Return the groups as the caller named them: exactly one of the two arguments."""
    if groups is None:
        if group is None:
            fix = 'give group="..." or groups={"topic": "group"}'
            raise InvalidValueError("group", None, "is missing", fix)
        return Groups(check_group(group))
    if group is not None:
        raise InvalidValueError("groups", groups, "was given beside group", "give one of the two")
    if not isinstance(groups, Mapping) or not groups:
        fix = 'give a mapping such as {"orders": "orders-etl"}'
        raise InvalidValueError("groups", groups, "is no mapping of topics to groups", fix)
    by_topic = {
        check_topic(topic, "groups topic"): check_group(name, f"groups[{topic!r}]")
        for topic, name in groups.items()
    }
    return Groups(None, by_topic)


def _check_options(query_name: object, on_error: object) -> None:
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        fix = "give the queryName of the query, or leave it out for every query"
        raise InvalidValueError("query_name", query_name, "is not the name of a query", fix)
    if on_error is not None:
        check_callable(on_error, "on_error")


def _left(offset: int, error: OffsetManagerError) -> Uncommitted:
    return Uncommitted(OffsetAndMetadata(offset), error)
