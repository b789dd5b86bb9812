"""The base of OffsetClient and LocalOffsets: their public methods, which check all arguments."""

from __future__ import annotations

import atexit
import os
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from offsetmgr.backoff import Backoff
from offsetmgr.client.calls import InterruptedCallError
from offsetmgr.client.failure_log import log_uncommitted
from offsetmgr.codes import ERRORS, NO_SUCH_PARTITION, Fault
from offsetmgr.deadlines import Deadline, Latch
from offsetmgr.errors import (
    CoordinatorError,
    InvalidValueError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
    ServiceError,
    ServiceUnavailableError,
    listed,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    OffsetManagerHandle,
    PartitionRange,
    TopicPartition,
    UnfinishedResult,
    check_callable,
    check_flag,
    check_group,
    check_key,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_offsets,
    check_topic_partitions,
    check_topics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from typing_extensions import Self

    from offsetmgr.client.failure_log import FailureLog

    Named = list[TopicPartition] | None
    """Partitions of a group; None stands for all."""

    Values = Mapping[ManagerKey, OffsetAndMetadata]
    Refusals = dict[ManagerKey, OffsetManagerError]
    SubmitResult = tuple[Refusals, Refusals]
    """Offsets that are refused for good, and those that are not committed yet."""

_T = TypeVar("_T")

log = SafeLogger("offsetmgr.client")

AT_EXIT_S: Final = 2.0
"""Seconds that all open instances together may delay the interpreter's exit."""

FIRST_PAUSE_S: Final = 0.05
"""Pause after the first request of a wait; it doubles with each, up to the longest."""

LONGEST_PAUSE_S: Final = 1.0

_BAD_GATEWAY: Final = 502
_MISSING: Final = frozenset(ERRORS[code].name for code in NO_SUCH_PARTITION)

open_offsets: set[Offsets] = set()
"""Instances that are not closed: they live on until the interpreter exits."""


class LogEnds(NamedTuple):
    """The ends of a partition's log; the two optional ones only if they were asked for."""

    log_start_offset: int
    high_watermark: int
    offset_at: int | None = None
    """The first offset at a time or later; None if no record is that young."""
    last_stable_offset: int | None = None
    topic_id: str = ""
    """Changes when the topic is deleted and recreated; empty if it is not known."""


Logs: TypeAlias = dict[TopicPartition, LogEnds]


class QueryReport(NamedTuple):
    """A streaming query, as the service shows it; None is what Spark has not said."""

    id: str
    run_id: str
    state: str
    """running, ended or failed."""
    name: str | None = None
    groups: tuple[str, ...] = ()
    batch_id: int | None = None
    time: str | None = None
    """When the batch began."""
    batch_ms: int | None = None
    input_rows: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    error: str | None = None


class Offsets(ABC):
    """Committed offsets of any groups; the base of OffsetClient and LocalOffsets.

    Any thread may use it.  As a context manager it closes at the end of the block.  Otherwise it
    runs until the interpreter exits, and then commits its last offsets for at most 2 s.

    Any method may raise InvalidValueError, with nothing done.  Those that submit or ask raise
    ManagerStoppedError once it is closed, and ClientFencedError once a newer client of the same
    name has taken over.  In the child of a fork all but ``close`` raise ManagerStoppedError: make
    one in each process.
    """

    def __init__(self, url: str, name: str, failures: FailureLog, ended: Latch) -> None:
        """`ended` is set when nothing can be asked any more."""
        self._url = url
        self._name = name
        self._failures = failures
        self._ended = ended
        self._pid = os.getpid()
        self._close_lock = threading.RLock()  # a signal handler may close in the middle of a close
        self._result: FlushResult | None = None
        self._is_ended = False
        """Nothing of the close is left to do."""
        self.committer: object = None
        """The Spark bridge's committer of streaming queries; None without one."""
        open_offsets.add(self)

    @property
    def url(self) -> str:
        """Address of the service or cluster, such as ``http://127.0.0.1:8741``."""
        return self._url

    @property
    def name(self) -> str:
        """Name that others see as the owner of the managers."""
        return self._name

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True once ``close`` was called, here or at the interpreter's exit."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, name={self._name!r})"

    # Managers

    def spawn(self, group: str, topic: str, partition: int) -> OffsetManagerHandle:
        """Return a manager for a partition of a group, without waiting.

        Raises ManagerExistsError if this client has the manager already and has not stopped it.  If
        another client has it, ``errors()`` of the handle says so.
        """
        return self._spawn(check_key((group, topic, partition)))

    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]], *, timeout: float = 10.0
    ) -> None:
        """Spawn managers for all of ``partitions``, or for none of them.

        Submit their offsets with ``submit``, and stop them with ``stop_managers``.  Raises
        ManagerExistsError if this or another client has one of them; OverloadedError if a limit of
        the service is reached; OffsetTimeoutError if it does not answer in ``timeout`` s.
        """
        deadline = Deadline(timeout)
        check_group(group)
        named = check_topic_partitions(partitions)
        self._claim([ManagerKey(group, *where) for where in named], deadline)

    def submit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        rewind: bool = False,
        sync: bool = False,
        timeout: float = 10.0,
    ) -> None:
        """Make ``offsets`` (the next ones to read, by topic and partition) the newest to commit.

        Spawns the managers that do not exist yet.  With ``sync`` it waits up to ``timeout`` seconds
        until Kafka has the offsets.  With ``rewind`` an offset may be lower than the last one.

        Raises OffsetRegressionError if one is lower than the last one submitted.  With ``sync``
        also if it is lower than the committed offset; OffsetTimeoutError after ``timeout`` (the
        offsets are kept, and tried again); OffsetCommitError if Kafka refuses one for good;
        ManagerExistsError if another client has a manager, OverloadedError if a limit of the
        service is reached.  OffsetsUncommittedError has the errors of several offsets; an offset
        with an error does not delay the others.
        """
        deadline = Deadline(timeout)
        check_group(group)
        check_flag(rewind, "rewind")
        check_flag(sync, "sync")
        values = {ManagerKey(group, *where): each for where, each in check_offsets(offsets).items()}
        refused, late = self._submit(values, rewind=rewind, wait=deadline if sync else None)
        if refused:
            rest = {key: _not_committed([key], deadline, late[key]) for key in late}
            raise OffsetsUncommittedError.one_of({**refused, **rest})
        if late:
            raise _not_committed(late, deadline, next(iter(late.values())))

    def flush(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        """Commit what was submitted, and return what was committed within ``timeout`` seconds.

        Of all managers, or those of ``group``, or those of its ``partitions``.  What was not
        committed is in the result, with the reason.
        """
        deadline = Deadline(timeout)
        return self._settle(*_checked(group, partitions), deadline, stop=False)

    def stop_managers(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        """Flush the managers, then stop them; any client can then spawn them again.

        If Ctrl-C ends the wait, they are stopped all the same, but for those whose newest offset
        the service has not got yet: stop them again.
        """
        deadline = Deadline(timeout)
        return self._settle(*_checked(group, partitions), deadline, stop=True)

    def watch_errors(
        self, on_error: Callable[[ManagerKey | None, OffsetManagerError], None]
    ) -> Callable[[], None]:
        """Call ``on_error`` with each error and its manager, until the returned function is called.

        The manager is None if the error is about the client as a whole.  ``on_error`` is called on
        threads that must not wait, so it must not block; what it raises is logged.
        """
        check_callable(on_error, "on_error")
        self._listen()
        return self._failures.watch(on_error)

    def report_query(self, report: QueryReport) -> None:  # noqa: B027 -- the default
        """Report a streaming query to the service, if there is one, without waiting."""

    # Questions to Kafka

    def committed(
        self, group: str, *, timeout: float = 10.0
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of ``group``; partitions without one are left out.

        Raises ServiceError with Kafka's name of the error as its ``code``; ServiceUnavailableError
        if the service does not answer.
        """
        check_group(group)
        return self._persist(lambda deadline: self._committed(group, deadline), timeout)

    def topics(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[str, dict[int, PartitionRange]]:
        """Return the partitions of ``topics``, each with the start and end of its log.

        Raises as ``committed``; a topic that does not exist is a ServiceError that names it.
        """
        names = check_topics(topics)
        found: dict[str, dict[int, PartitionRange]] = {name: {} for name in names}
        for (name, number), ends in sorted(self.logs(names, timeout=timeout).items()):
            found[name][number] = PartitionRange(*ends[:2])
        return found

    def logs(self, topics: Iterable[str], *, timeout: float = 10.0) -> Logs:
        """Return the logs of ``topics``, with the topics' ids.  Raises as ``topics``."""
        ask = partial(self._logs, check_topics(topics), at_ms=None, stable=False)
        return self._persist(ask, timeout)

    def offsets_at(
        self, topics: Iterable[str], at_ms: int, *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        """Return the first offset at ``at_ms`` (milliseconds since 1970) or later.

        It is the end of the log if there is no such record.  Raises as ``topics``.
        """
        since_ms = check_offset(at_ms, "at_ms")
        ask = partial(self._logs, check_topics(topics), at_ms=since_ms, stable=False)
        logs = self._persist(ask, timeout)
        return {
            where: ends.high_watermark if ends.offset_at is None else ends.offset_at
            for where, ends in logs.items()
        }

    def stable_ends(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        """Return the end of each partition for a reader of committed transactions only."""
        ask = partial(self._logs, check_topics(topics), at_ms=None, stable=True)
        logs = self._persist(ask, timeout)
        return {where: ends.last_stable_offset or 0 for where, ends in logs.items()}

    def topic_names(self, *, timeout: float = 10.0) -> list[str]:
        """Return the topics of the cluster except Kafka's own, sorted."""
        return self._persist(self._topic_names, timeout)

    @abstractmethod
    def topic_ids_of(self, keys: Iterable[ManagerKey]) -> dict[ManagerKey, str]:
        """Return the topic's id that each manager's newest offset was read under, where known."""

    def _persist(self, ask: Callable[[Deadline], _T], timeout: float) -> _T:
        """Ask until there is an answer: the service may be starting, or Kafka electing a leader."""
        deadline = Deadline(timeout)
        reason: OffsetManagerError | None = None
        for _ in pauses(self._ended, deadline):
            self._check_open()
            try:
                return ask(deadline)
            except OffsetManagerError as error:
                reason = better_reason(reason, error, deadline)
                if not isinstance(error, (ServiceUnavailableError, PassingError)):
                    break
        self._check_open()
        reason = reason or ServiceUnavailableError("the service was not asked")
        # The message says it all; the frames of the connection would hide it.
        raise reason.with_traceback(None) from reason.__cause__

    # The end

    def close(self, *, timeout: float = 10.0) -> FlushResult:
        """Flush, stop all managers and end; within ``timeout`` seconds.

        Each call returns the same result, also one in a signal handler that interrupts another.  If
        that is not known in time, the result says so and is not ``ok``.
        """
        deadline = Deadline(timeout)
        if self._pid != os.getpid():
            return FlushResult({}, {})  # the parent process closes it
        if self._close_lock.acquire(timeout=deadline.left_s):
            try:
                if not self._is_ended:  # again where a signal handler has raised in one
                    self._close(deadline)
                    self._is_ended = self._result is not None
            finally:
                self._close_lock.release()
        if self._result is not None:
            return self._result
        error = OffsetTimeoutError(f"{self!r} is still being closed")
        return UnfinishedResult(*self._unsettled(error))

    def _closed_with(self, result: FlushResult) -> None:
        """Keep the result of the close, unless a signal handler was quicker."""
        if self._result is None:
            self._result = result
            open_offsets.discard(self)
            log_uncommitted(repr(self), result.uncommitted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_process(self) -> None:
        """Raise ManagerStoppedError in the child of a fork, which has no threads of the parent."""
        if self._pid != os.getpid():
            text = f"{self!r} was made by another process; make one in each process"
            raise ManagerStoppedError(text)

    def _check_open(self) -> None:
        """Raise ManagerStoppedError once it is closed, or in the child of a fork."""
        self.check_process()
        if self.closed:
            raise ManagerStoppedError(f"{self!r} is closed; make a new one")

    # What differs; all arguments are checked

    @abstractmethod
    def _spawn(self, key: ManagerKey) -> OffsetManagerHandle: ...

    @abstractmethod
    def _claim(self, keys: list[ManagerKey], deadline: Deadline) -> None: ...

    @abstractmethod
    def _submit(self, offsets: Values, *, rewind: bool, wait: Deadline | None) -> SubmitResult:
        """Submit offsets of one group, and wait for Kafka if there is a deadline."""

    @abstractmethod
    def _settle(
        self, group: str | None, partitions: Named, deadline: Deadline, *, stop: bool
    ) -> FlushResult: ...

    def _listen(self) -> None:  # noqa: B027 -- the default
        """Have errors reported from now on."""

    @abstractmethod
    def _committed(self, group: str, deadline: Deadline) -> dict[TopicPartition, OffsetAndMetadata]:
        """Raise ServiceUnavailableError or PassingError to be asked again, as the next two."""

    @abstractmethod
    def _logs(
        self, topics: list[str], deadline: Deadline, *, at_ms: int | None, stable: bool
    ) -> Logs: ...

    @abstractmethod
    def _topic_names(self, deadline: Deadline) -> list[str]: ...

    @abstractmethod
    def _close(self, deadline: Deadline) -> None:
        """Close, and hand the result to ``_closed_with``; again if a signal handler asks for it."""

    @abstractmethod
    def _unsettled(self, error: OffsetManagerError) -> FlushResult:
        """Return what is held now; what is not known to be committed has ``error``."""


class Handle(OffsetManagerHandle):
    """A handle of OffsetClient or LocalOffsets, which differ in the rest of it."""

    __slots__ = ("_key",)

    def __init__(self, key: ManagerKey) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key})"

    @property
    def key(self) -> ManagerKey:
        return self._key

    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        self._submit(offset, metadata, leader_epoch, rewind=False)

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        self._submit(offset, metadata, leader_epoch, rewind=True)

    def _submit(
        self, offset: int, metadata: str, leader_epoch: int | None, *, rewind: bool
    ) -> None:
        value = OffsetAndMetadata(
            check_offset(offset), check_metadata(metadata), check_leader_epoch(leader_epoch)
        )
        with suppress(InterruptedCallError):
            for error in self._put(value, rewind=rewind).values():
                raise error

    @abstractmethod
    def _put(self, value: OffsetAndMetadata, *, rewind: bool) -> Refusals: ...


def close_all() -> None:
    found = list(open_offsets)
    for each in found:
        close = partial(each.close, timeout=AT_EXIT_S / len(found))
        log.guard(f"{each!r} could not be closed at the exit", close)


atexit.register(close_all)


class PassingError(ServiceError):
    """An answer of Kafka that will change soon, such as that a new partition has no leader yet."""


def kafka_refusal(
    what: str, code: str, message: str, fault: str | None, *, retriable: bool
) -> ServiceError:
    """Return the error for what Kafka has refused, with Kafka's name of the error as `code`."""
    passing = retriable and fault == Fault.BROKER.value
    # A missing topic may be created, but nobody wants to wait for that.
    if code in _MISSING:
        message = f"{what} does not exist in the cluster; create it, or correct its name"
    return (PassingError if passing else ServiceError)(_BAD_GATEWAY, message, code)


def pauses(ended: Latch, deadline: Deadline) -> Iterator[None]:
    """Yield, and wait longer and longer before the next, until the deadline or `ended`."""
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        yield
        if deadline.over or ended.wait(deadline.within_s(backoff.failed())):
            return


def better_reason(
    before: OffsetManagerError | None, error: OffsetManagerError, deadline: Deadline
) -> OffsetManagerError:
    """Return the first reason after the deadline, whose end causes later errors."""
    return before if before is not None and deadline.over else error


def timed_out(
    what: str, deadline: Deadline, reason: OffsetManagerError | None, aside: str = ""
) -> OffsetTimeoutError:
    """Return the end of a wait; a `reason` that carries more than its message is its cause."""
    why = reason or "the service did not answer"
    failure = OffsetTimeoutError(f"{what} within {deadline.timeout} s{aside}: {why}")
    if isinstance(reason, (CoordinatorError, ManagerExistsError)):
        failure.__cause__ = reason
    return failure


def by_group(keys: Iterable[ManagerKey]) -> dict[str, list[TopicPartition]]:
    groups: dict[str, list[TopicPartition]] = {}
    for key in keys:
        groups.setdefault(key.group, []).append(key.topic_partition)
    return groups


def named(keys: Collection[ManagerKey]) -> str:
    group = next(iter(keys)).group
    return f"{listed([key.topic_partition for key in keys])} of group {group}"


def _not_committed(
    keys: Collection[ManagerKey], deadline: Deadline, reason: OffsetManagerError
) -> OffsetTimeoutError:
    what = f"could not commit {named(keys)}"
    return timed_out(what, deadline, reason, " (kept, and tried again)")


def _checked(
    group: str | None, partitions: Iterable[tuple[str, int]] | None
) -> tuple[str | None, Named]:
    if group is None and partitions is not None:
        fix = "name the group as well"
        raise InvalidValueError("partitions", partitions, "are given without a group", fix)
    return (
        None if group is None else check_group(group),
        None if partitions is None else check_topic_partitions(partitions),
    )
