"""Commits the offsets of a session's streaming queries to their consumer groups."""

from __future__ import annotations

import os
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from offsetmgr.client.partitions import ERROR_LIMIT
from offsetmgr.codes import TOPIC_RECREATED
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetManagerError,
    OffsetTimeoutError,
    error_info,
    shown,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.mailboxes import Mailbox
from offsetmgr.spark.committer import CommitCounts, Committer
from offsetmgr.spark.files import check_session, java_text
from offsetmgr.spark.group_state import Groups
from offsetmgr.spark.logs import foreign, read_logs
from offsetmgr.spark.starting import check_client
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    Uncommitted,
    check_callable,
)
from offsetmgr.workers import Question, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.progress import Run, Snapshot
    from offsetmgr.types import Stream

_T = TypeVar("_T")

_log = SafeLogger("offsetmgr.spark")

LOOK_S: Final = 5.0
"""The least wait for an answer of Spark."""


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
    that run already; with ``query_name`` only the query of that name.  The queries of
    ``spark.newSession()`` need a call with that session.

    No query is slowed or failed if the service is down or Kafka refuses commits: ``client`` keeps
    the offsets, even after a query has ended, and sends them later.

    The start and the end of a failure are logged once for each cause and group.  ``on_error`` is
    called with each error on its own thread; the first exception that it raises is logged.

    If several queries read a topic for one group, the lowest of their offsets is committed; those
    of all calls with this ``client`` count.  A stopped query still counts until it runs again (with
    the same id or, under a new checkpoint, with the same name) or is removed by ``release``.

    Raises InvalidValueError.
    """
    wanted = Groups.of(group, groups)
    if not hasattr(spark, "streams"):
        raise InvalidValueError("spark", spark, "is not a SparkSession", "give the session")
    check_session(spark)
    check_client(client)
    if query_name is not None and not isinstance(query_name, str):
        raise InvalidValueError("query_name", query_name, "is not text", "give its queryName")
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
        self._pid = os.getpid()
        self._groups = groups
        self._errors = Mailbox[OffsetManagerError]("commit_offsets", ERROR_LIMIT)
        self._to_call = Mailbox[OffsetManagerError]("commit_offsets", ERROR_LIMIT)
        self._is_over = False
        self._committer = Committer.of(client)
        self._listener = CommitListener(self._committer, groups, spark, query_name)
        self._caller: Worker | None = None
        if on_error is not None:
            self._caller = Worker("offsetmgr-errors", partial(self._call, on_error))
        self._unwatch: Callable[[], object] = lambda: None
        try:
            self._unwatch = client.watch_errors(self._failed)
            self._listener.listen()
        except BaseException:
            self.detach(0.0)
            raise

    @property
    def counts(self) -> CommitCounts:
        return CommitCounts(**self._listener.counts)

    def errors(self) -> Stream[OffsetManagerError]:
        """Return the unread errors of the groups' commits, until ``detach``.

        The newest 64 are kept; ``dropped`` is the number of the others.
        """
        return self._errors

    def flush(self, query: StreamingQuery, timeout: float = 10.0) -> FlushResult:
        """Commit the last offsets of ``query``; return what was committed in ``timeout`` seconds.

        Call it after ``query.awaitTermination()``, because Spark may not report the last batch.
        What was not committed is in the result, with the reason, and is still sent later.  Raises
        InvalidValueError for a query that is not committed here, or whose report is not
        understood; OffsetTimeoutError if Spark does not say how far the query is;
        ManagerStoppedError after ``detach`` and in the child of a fork.
        """
        deadline = Deadline(timeout)
        self._check_process()
        if self._listener.is_closed:
            message = "these commits are detached: flush the query first, inside the with block"
            raise ManagerStoppedError(message)
        snapshot, is_active = _answer(partial(self._listener.state_of, query), deadline)
        if snapshot is None:
            return FlushResult({}, {})
        try:
            return self._flushed(snapshot, deadline, is_active=is_active)
        finally:
            Question(partial(self._listener.end_if_over, query)).wait(LOOK_S)

    def release(self, query: StreamingQuery | str, timeout: float = 10.0) -> None:
        """Remove a stopped query (or its name or id) from the minimum of its groups.

        A query that still runs is removed when it ends.  Waits up to ``timeout`` seconds until the
        offsets of the other queries are submitted.  Works after ``detach``, too.  Raises
        InvalidValueError if the groups have no such query, OffsetTimeoutError if Spark does not say
        whether it runs, ManagerStoppedError in the child of a fork.
        """
        deadline = Deadline(timeout)
        self._check_process()
        if isinstance(query, str):
            name = query
        else:
            name = _answer(partial(self._listener.end_if_over, query), deadline)
        answered = wait([self._listener.release(name)], deadline.left_s).done
        if not all(each.result() for each in answered):
            hint = "give a query of this client, its queryName or its id"
            raise InvalidValueError("query", name, "has not been committed to these groups", hint)

    def detach(self, timeout: float = 10.0) -> None:
        """Stop listening, commit what is left and stop the managers; a second call does nothing.

        In the child of a fork it does nothing.  Queries that another call of ``commit_offsets``
        commits go on.  A query that shared its partitions still counts, as one that has stopped.
        Waits up to ``timeout`` seconds: what is not committed by then is logged, and still sent
        while the client is open.
        """
        deadline = Deadline(timeout)
        if self._is_over or self._pid != os.getpid():
            return
        self._listener.is_listening = False
        # A server of Spark Connect that is gone is asked for minutes, a stopped JVM forever.
        Question(lambda: self._spark.streams.removeListener(self._listener)).wait(timeout / 2)
        self._listener.close(deadline.left_s)
        self._unwatch()
        self._errors.close()
        self._to_call.close()
        self._is_over = True  # not before: a detach that Ctrl-C has ended is done again

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            message = "these commits are of another process: flush and release there"
            raise ManagerStoppedError(message)

    def _failed(self, key: ManagerKey | None, error: OffsetManagerError) -> None:
        if key is None or key.group in self._groups.names():
            self._listener.counts["refused"] += isinstance(error, OffsetCommitError)
            self._errors.put(error)
            if self._caller is not None:
                self._to_call.put(error)
                self._caller.ensure()

    def _call(self, on_error: Callable[[OffsetManagerError], object]) -> None:
        for error in self._to_call:
            try:
                on_error(error)
            except BaseException as raised:  # noqa: BLE001 -- the user's function may raise anything
                text = f"on_error of commit_offsets raised {type(raised).__name__}: {shown(raised)}"
                self._listener.warn_once(("on_error", str(id(self))), text)

    def _flushed(self, snapshot: Snapshot, deadline: Deadline, *, is_active: bool) -> FlushResult:
        wanted = self._listener.offsets(snapshot)
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        if not is_active:
            uncommitted = self._of_former_logs(snapshot.run, wanted, deadline)
            snapshot = snapshot.without({key.topic_partition for key in uncommitted})
            wanted = {key: offset for key, offset in wanted.items() if key not in uncommitted}
        error: OffsetManagerError
        if wait([self._listener.put(snapshot)], deadline.left_s).done:
            committed, refused = self._committer.flush(wanted, deadline)
            uncommitted.update(refused)
            why = "the client is closed" if self._client.closed else "the log says why"
            error = ManagerStoppedError(f"the offset was not submitted: {why}")
        else:
            committed = {}
            late = f"the service did not answer within {deadline.timeout} s"
            error = OffsetTimeoutError(f"{self._committer.worker.error or late}; it is still sent")
        for key in wanted.keys() - committed.keys() - uncommitted.keys():
            uncommitted[key] = Uncommitted(OffsetAndMetadata(wanted[key]), error)
        return FlushResult(committed, uncommitted)

    def _of_former_logs(
        self, run: Run, wanted: dict[ManagerKey, int], deadline: Deadline
    ) -> dict[ManagerKey, Uncommitted]:
        """Return the offsets of an ended query that were read from a former log of their topic.

        Spark fails a query whose topic was recreated, and still reports where it was before.  The
        topic's id shows it, or an offset that is not in the log.
        """
        topic_ids = self._committer.topic_ids_of(run, wanted)
        read_from = {key.topic_partition: topic_id for key, topic_id in topic_ids.items()}
        try:
            half = Deadline(deadline.left_s / 2)
            logs, unreadable = read_logs(self._client, {key.topic for key in wanted}, half)
        except OffsetManagerError as error:
            _log.debug("the logs of an ended query are not known: %s", error)
            return {}
        keys = {key.topic_partition: key for key in wanted if key.topic not in unreadable}
        offsets = {partition: wanted[key] for partition, key in keys.items()}
        hint = "start the query with a new checkpoint: starting_offsets begins with the new log"
        found: dict[ManagerKey, Uncommitted] = {}
        for partition, reason in foreign(offsets, logs, read_from).items():
            key, offset, why = keys[partition], offsets[partition], f"{reason}; {hint}"
            refused = OffsetCommitError(*key, offset, error_info(TOPIC_RECREATED), why)
            found[key] = Uncommitted(OffsetAndMetadata(offset), refused)
        return found


def _answer(ask: Callable[[], _T], deadline: Deadline) -> _T:
    """Return what Spark answers; raises OffsetTimeoutError if it hangs, or has ended."""
    question = Question(ask)
    try:
        if question.error is not None:  # a process without room for threads
            return ask()
        if question.wait(max(deadline.left_s, LOOK_S)):
            return question.result()
    except OffsetManagerError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {java_text(error)}"
        raise OffsetTimeoutError(f"Spark does not answer: {why}") from error
    raise OffsetTimeoutError("Spark did not answer in time")
