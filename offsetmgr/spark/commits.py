"""Commits the offsets of a session's streaming queries to their consumer groups."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final

from offsetmgr.client.core import ERROR_LIMIT
from offsetmgr.client.offsets import by_group
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetManagerError,
    OffsetTimeoutError,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.mailboxes import Mailbox
from offsetmgr.spark.committer import CommitCounts, Committer
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
    from offsetmgr.spark.progress import Snapshot
    from offsetmgr.types import Stream

_log = SafeLogger("offsetmgr.spark")

DETACH_S: Final = 10.0
"""Seconds that leaving a ``with`` block waits for the last commits."""


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

    No query is slowed or failed if the service is down or Kafka refuses commits.  ``client``
    keeps the offsets, even after a query has ended, and sends them when the service is back.  Then
    it stops the managers of ended queries.

    The start and the end of a failure are logged once for each cause and group.  ``on_error`` is
    called with each error on its own thread; the first exception that it raises is logged.

    If several queries read a topic for one group, the lowest of their offsets is committed.  A
    stopped query still counts until it runs again (with the same id or, under a new checkpoint,
    with the same name) or is removed by ``release``.

    Raises InvalidValueError.
    """
    wanted = _checked_groups(group, groups)
    if not hasattr(spark, "streams"):
        raise InvalidValueError("spark", spark, "is no SparkSession", "give the session")
    check_client(client)
    if on_error is not None:
        check_callable(on_error, "on_error")
    return OffsetCommits(spark, client, wanted, query_name, on_error)


class OffsetCommits:
    """The commits of a session's queries; made by ``commit_offsets``.

    As a context manager it detaches at the end of the block.  If it is never detached, closing the
    client commits the last offsets.
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
        self._errors = Mailbox[OffsetManagerError]("commit_offsets", ERROR_LIMIT)
        self._to_call = Mailbox[OffsetManagerError]("commit_offsets", ERROR_LIMIT)
        self._detached = False
        self._committer = Committer(client, groups)
        self._listener = CommitListener(spark, self._committer, query_name)
        if on_error is not None:
            name, args = "offsetmgr-errors", (on_error,)
            threading.Thread(target=self._call, args=args, name=name, daemon=True).start()
        self._unwatch = client.watch_errors(self._failed)
        # In this order nothing falls between: what comes twice is the same batch.
        spark.streams.addListener(self._listener)
        for query in spark.streams.active:
            self._listener.take_up(query)

    @property
    def counts(self) -> CommitCounts:
        return CommitCounts(**self._committer.counts)

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
        try:
            return self._flushed(snapshot, deadline)
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
        name = query if isinstance(query, str) else str(getattr(query, "id", query))
        if not getattr(query, "isActive", True):
            self._committer.end(Run.of(query))
        answered = wait([self._committer.release(name)], timeout).done
        if not all(each.result() for each in answered):
            fix = "give a query of this session, its queryName or its id"
            raise InvalidValueError("query", name, "has not been committed here", fix)

    def detach(self, timeout: float = DETACH_S) -> None:
        """Stop listening, commit what is left and stop the managers; a second call does nothing.

        Waits up to ``timeout`` seconds.  What is not committed by then is logged, with the command
        that commits it later, and still sent while the client is open.
        """
        if self._detached:
            return
        self._detached = True
        try:
            self._spark.streams.removeListener(self._listener)
        except Exception:  # noqa: BLE001 -- of py4j or of Spark Connect
            # A session that was stopped before has no listeners any more.
            _log.debug("the listener was not removed", exc_info=True)
        self._committer.close(timeout)
        self._unwatch()
        self._errors.close()
        self._to_call.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _failed(self, key: ManagerKey | None, error: OffsetManagerError) -> None:
        """Take an error from the client's threads; it is logged by the client."""
        if key is None or self._groups.include(key.group):
            self._committer.counts["refused"] += isinstance(error, OffsetCommitError)
            self._errors.put(error)
            if self._on_error is not None:
                self._to_call.put(error)

    def _call(self, on_error: Callable[[OffsetManagerError], object]) -> None:
        for error in self._to_call:
            try:
                on_error(error)
            except Exception as raised:  # noqa: BLE001 -- the user's function may raise anything
                text = f"on_error of commit_offsets raised {type(raised).__name__}: {raised}"
                self._committer.warn_once(("on_error",), text)

    def _flushed(self, snapshot: Snapshot, deadline: Deadline) -> FlushResult:
        wanted = self._committer.offsets(snapshot)
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        is_submitted = bool(wait([self._committer.put(snapshot)], deadline.left_s).done)
        for group, partitions in by_group(wanted if is_submitted else ()).items():
            left_s = deadline.left_s
            result = self._client.flush(timeout=left_s, group=group, partitions=partitions)
            committed.update(result.committed)
            uncommitted.update(result.uncommitted)
        left = [key for key in wanted if key not in committed and key not in uncommitted]
        # A manager may have been stopped meanwhile, since Kafka has its offset.
        known = self._committer.look_up(by_group(left), deadline.left_s)
        for key in left:
            offset = OffsetAndMetadata(wanted[key])
            if known.get(key, -1) >= offset.offset:
                committed[key] = OffsetAndMetadata(known[key])
            elif is_submitted:
                why = "the client is closed" if self._client.closed else "the log says why"
                error = ManagerStoppedError(f"{key} at {wanted[key]} was not submitted: {why}")
                uncommitted[key] = Uncommitted(offset, error)
            else:
                text = f"the service did not answer within {deadline.timeout} s; it is still sent"
                uncommitted[key] = Uncommitted(offset, OffsetTimeoutError(text))
        return FlushResult(committed, uncommitted)


def _checked_groups(group: object, groups: object) -> Groups:
    """Return the groups as the caller named them: exactly one of the two arguments."""
    if (group is None) == (groups is None):
        problem = "is missing" if group is None else "was given beside groups"
        fix = 'give either group="..." or groups={"topic": "group"}'
        raise InvalidValueError("group", group, problem, fix)
    if groups is None:
        return Groups(check_group(group))
    if not isinstance(groups, Mapping) or not groups:
        fix = 'give a mapping such as {"orders": "orders-etl"}'
        raise InvalidValueError("groups", groups, "is no mapping of topics to groups", fix)
    by_topic = {
        check_topic(topic, "groups topic"): check_group(name, f"groups[{topic!r}]")
        for topic, name in groups.items()
    }
    return Groups(None, by_topic)
