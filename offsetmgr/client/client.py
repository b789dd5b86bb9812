"""The client: hands offsets to the service beside it, and never slows whoever submits them."""

from __future__ import annotations

import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar

from offsetmgr.client import blocking, flush, lifetime, wire
from offsetmgr.client.address import parse_url
from offsetmgr.client.backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S
from offsetmgr.client.core import Core
from offsetmgr.client.deadline import Deadline
from offsetmgr.client.flush import Scope
from offsetmgr.client.handle import ManagerHandle
from offsetmgr.client.tracebacks import short_traceback
from offsetmgr.errors import (
    CoordinatorError,
    InvalidValueError,
    OffsetManagerError,
    OffsetsUncommittedError,
    ServiceUnavailableError,
)
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_callable,
    check_flag,
    check_group,
    check_list,
    check_offset,
    check_offsets,
    check_partition,
    check_topic,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.types import PartitionRange

_T = TypeVar("_T")

TOPICS_PER_REQUEST: Final = 50
"""Keeps the request's first line within what HTTP servers take."""

_NAMED: Final = 5

log = logging.getLogger("offsetmgr.client")


class OffsetClient:
    """A client of the service at `url`, `http://host:port` or `unix:///path/of/the.sock`.

    `name` says who owns the managers: a restarted driver of the same name takes them over at
    once, and an older one of that name is fenced.  Without a name the client has one of its own,
    and its successor waits until its lease has lapsed.

    Submitting takes microseconds and never fails because the service is away: the newest offset
    of each partition is held, and sent again to a service that was restarted.  A client that is
    not closed commits for at most 2 s when the interpreter exits.

    Where it is unpickled it is another client: it has a name of its own (this one with an end
    added) and holds nothing yet.  In the child of a fork it only raises ManagerStoppedError: make
    one in each process.

    Raises:
        InvalidValueError: bad url or name.

    """

    def __init__(self, url: str, name: str | None = None) -> None:
        self._url = url
        self._address = parse_url(url)
        self._base_name = "" if name is None else check_group(name, "name")
        self._core = Core(self._url, self._address, self._base_name or lifetime.own_name())
        self._close_lock = threading.Lock()
        self._closed: FlushResult | None = None
        lifetime.watch(self)

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._url

    @property
    def name(self) -> str:
        """Who this client is to the service."""
        return self._core.identity.name

    def __repr__(self) -> str:
        return f"OffsetClient({self._url!r}, name={self.name!r})"

    # Managers

    @short_traceback
    def spawn(self, group: str, topic: str, partition: int) -> ManagerHandle:
        """A manager for a partition of a group; never waits for the service.

        Raises:
            InvalidValueError: a bad name or number.
            ManagerExistsError: this client has handed it out, and it is not stopped.  That
                another client holds it is told later, by the handle's errors.
            ManagerStoppedError: the client is closed.

        """
        where = TopicPartition(check_topic(topic), check_partition(partition))
        key = ManagerKey(check_group(group), *where)
        core = self._core
        return ManagerHandle(key, core.spawn(key), core, self)

    @short_traceback
    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]], *, timeout: float = 10.0
    ) -> None:
        """Spawn managers for `partitions` of `group` and wait until all of them are this client's.

        They take offsets by `submit`, and `stop_managers` gives them back.

        Raises:
            InvalidValueError: bad input.
            ManagerExistsError: this client or another one has one of them; none is held then.
            OffsetTimeoutError: the service did not answer in `timeout` seconds; none is held.
            ManagerStoppedError: the client is closed.
            ClientFencedError: a newer incarnation of this client has taken over.

        """
        check_group(group)
        keys = [ManagerKey(group, *where) for where in check_topic_partitions(partitions)]
        blocking.claim(self._core, keys, Deadline(timeout))

    def submit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        rewind: bool = False,
        sync: bool = False,
        timeout: float = 10.0,
    ) -> None:
        """Make `offsets` (the next ones to read, by topic and partition) the newest to commit.

        Managers that do not exist yet are spawned.  With `rewind`, lower offsets are what the
        caller wants.  With `sync`, it waits up to `timeout` seconds for the coordinator.

        Raises:
            InvalidValueError: bad input; nothing was done with any of it.
            OffsetRegressionError: one is lower than what this client has submitted before, or
                (with `sync`) than what is committed.
            ManagerStoppedError: the client is closed, or a manager is being stopped.
            ClientFencedError: a newer incarnation of this client has taken over.
            OffsetTimeoutError: with `sync`, not all were acknowledged in time; names them.
            OffsetCommitError: with `sync`, Kafka refused one for good.
            ManagerExistsError: with `sync`, another client holds a manager.
            OffsetsUncommittedError: more than one of these; has the reason of each offset.  None
                of them holds back the others.

        """
        try:
            deadline = Deadline(timeout)
            check_group(group)
            check_flag(rewind, "rewind")
            check_flag(sync, "sync")
            found = check_offsets(offsets)
            values = {ManagerKey(group, *where): value for where, value in found.items()}
            core = self._core
            commit = None
            with core.lock:  # nobody stops and forgets them in between
                refused = core.submit(values, rewind=rewind)
                if sync:
                    commit = blocking.Commit(core, group, values, deadline, refused)
            if commit is not None:
                commit.wait()
            elif refused:
                raise OffsetsUncommittedError.one_of(refused)
        except OffsetManagerError as error:  # by hand, as a wrapper would cost each submit a call
            raise error.with_traceback(None) from error.__cause__

    @short_traceback
    def flush(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        """Have what was submitted committed, and say what was not acknowledged by `timeout` s.

        Of all managers, or those of `group`, or those of its `partitions`.  Raises
        InvalidValueError alone: trouble is in the result.
        """
        return flush.flush(self._core, _scope(group, partitions), Deadline(timeout))

    @short_traceback
    def stop_managers(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        """As flush, and stop the managers: they can be spawned anew, by anybody."""
        return flush.stop(self._core, _scope(group, partitions), Deadline(timeout))

    def watch_errors(
        self, told: Callable[[ManagerKey | None, OffsetManagerError], None]
    ) -> Callable[[], None]:
        """Call `told` with each error of this client's managers, until the function returned is.

        With the manager, or None for an error of the client as a whole.  It is called on the
        client's own threads, so it must neither block nor raise.

        Raises:
            InvalidValueError: `told` cannot be called.

        """
        check_callable(told, "told")
        core = self._core
        with core.lock:
            core.watchers = (*core.watchers, told)
        core.listen()

        def end() -> None:
            with core.lock:
                core.watchers = tuple(each for each in core.watchers if each is not told)

        return end

    # Straight from Kafka

    @short_traceback
    def committed(
        self, group: str, *, timeout: float = 10.0
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What Kafka has committed for `group`; a partition with nothing committed is absent.

        Raises:
            InvalidValueError: a bad name.
            ServiceUnavailableError: the service did not answer in `timeout` seconds.
            ServiceError: Kafka refused, or did not answer the service.
            ManagerStoppedError: the client is closed.
            ClientFencedError: a newer incarnation of this client has taken over.

        """
        query = [("group", check_group(group))]

        def read(data: dict[str, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
            return {wire.partition_of(each): wire.offset_of(each) for each in data["offsets"]}

        return self._get(wire.OFFSETS, query, Deadline(timeout), "the committed offsets", read)

    @short_traceback
    def topics(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[str, dict[int, PartitionRange]]:
        """The partitions of `topics`, each with the offsets it holds.

        Raises as `committed`; a topic that does not exist is a ServiceError that names it.
        """
        return dict(self._ask_topics(topics, Deadline(timeout), wire.topic_of))

    @short_traceback
    def offsets_at(
        self, topics: Iterable[str], at_ms: int, *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        """The first offset at `at_ms` (milliseconds since 1970) or later, of each partition.

        It is the end of the log where no record is so young.  Raises as `topics`.
        """
        at = ("at_ms", check_offset(at_ms, "at_ms"))
        found = self._ask_topics(topics, Deadline(timeout), wire.offsets_at_of, at)
        return {where: offset for topic in found for where, offset in topic.items()}

    @short_traceback
    def stable_ends(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        """Where each partition ends for who reads committed transactions alone.

        It is where the first transaction begins that is open still.  Raises as `topics`.
        """
        stable = ("stable", "true")
        found = self._ask_topics(topics, Deadline(timeout), wire.stable_ends_of, stable)
        return {where: offset for topic in found for where, offset in topic.items()}

    @short_traceback
    def topic_names(self, *, timeout: float = 10.0) -> list[str]:
        """The topics of the cluster that the service may see, but Kafka's own; sorted.

        Raises as `committed`.
        """
        return self._get(
            wire.TOPIC_NAMES,
            [],
            Deadline(timeout),
            "the names of the topics",
            lambda data: [str(name) for name in data["names"]],
        )

    def _ask_topics(
        self,
        topics: Iterable[str],
        deadline: Deadline,
        read: Callable[[Mapping[str, Any]], _T],
        *more: tuple[str, object],
    ) -> list[_T]:
        """What `read` makes of each topic; `more` goes into the query."""
        listed = check_list(topics, "topics", '["orders"]')
        names = list(dict.fromkeys([check_topic(name) for name in listed]))
        found: list[_T] = []
        for at in range(0, len(names), TOPICS_PER_REQUEST):
            asked = [("topic", name) for name in names[at : at + TOPICS_PER_REQUEST]]
            found += self._get(
                wire.TOPICS,
                [*asked, *more],
                deadline,
                "the topics",
                lambda data: list(map(read, data["topics"])),
            )
        return found

    def _get(
        self,
        path: str,
        query: Sequence[tuple[str, object]],
        deadline: Deadline,
        what: str,
        read: Callable[[dict[str, Any]], _T],
    ) -> _T:
        """Ask until the service answers: it may just be starting, and Kafka electing a leader.

        The service answers by the deadline, too: where Kafka does not, it says so.
        """
        reason: OffsetManagerError | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            within = ("timeout_s", round(deadline.for_service_s(), 3))
            try:
                data = self._core.get(wire.target(path, *query, within), deadline)
                with wire.reading(what):
                    return read(data)
            except (ServiceUnavailableError, wire.PassingError) as error:
                reason = flush.telling(reason, error, deadline)
            if deadline.over or self._core.ended.wait(deadline.within_s(pause_s)):
                raise reason
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    # The end

    @property
    def closed(self) -> bool:
        """True once `close` was called, here or at the interpreter's exit."""
        return self._core.closing

    @short_traceback
    def close(self, *, timeout: float = 10.0) -> FlushResult:
        """Flush, stop all managers and end; within `timeout` seconds.

        Says what was committed and what was not.  Twice is harmless: the answer is the same.
        Managers that another thread is stopping are waited for, and left to its answer.
        """
        deadline = Deadline(timeout)
        if not self._close_lock.acquire(timeout=deadline.within_s(threading.TIMEOUT_MAX)):
            return FlushResult({}, {})  # another thread is at it, and will say
        try:
            if self._closed is None:
                self._closed = self._close(deadline)
            return self._closed
        finally:
            self._close_lock.release()

    def _close(self, deadline: Deadline) -> FlushResult:
        core = self._core
        with core.lock:
            core.closing = True
        result = flush.stop(core, Scope(), deadline)
        core.await_stops(deadline)
        core.end(deadline)
        lifetime.forget(self)
        if result.uncommitted:
            left = [f"{key} at {each.offset.offset}" for key, each in result.uncommitted.items()]
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            reasons = [each.error for each in result.uncommitted.values()]
            # What Kafka says tells more than that the time was over.
            kafkas = (each for each in reasons if isinstance(each, CoordinatorError))
            log.warning(
                "client %s is closed; not committed: %s%s; reason: %s",
                self.name, ", ".join(left[:_NAMED]), more, next(kafkas, reasons[0]),
            )  # fmt: skip
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", self) is None:
            text = f"unclosed {self!r}; call close(), or use it in a with statement"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            self._core.abandon()

    def close_at_exit(self, timeout_s: float) -> None:
        """Called when the interpreter exits."""
        self.close(timeout=timeout_s)

    def renew_after_fork(self) -> None:
        """Called in the child of a fork: threads, locks and connections are the parent's."""
        if self._closed is None:
            self._core.leave()
            self._close_lock = threading.Lock()
            self._closed = FlushResult({}, {})

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return _elsewhere, (self._url, self._base_name)


def _elsewhere(url: str, base_name: str) -> OffsetClient:
    """A pickled client where it arrives: another one, so that it does not fence the first."""
    client = OffsetClient(url, lifetime.own_name(base_name))
    client._base_name = base_name  # noqa: SLF001 -- what it is pickled by again
    return client


def _scope(group: str | None, partitions: Iterable[tuple[str, int]] | None) -> Scope:
    if group is None and partitions is not None:
        fix = "name the group as well"
        raise InvalidValueError("partitions", partitions, "are given without a group", fix)
    if group is None or partitions is None:
        return Scope(None if group is None else check_group(group))
    return Scope(group=check_group(group), partitions=check_topic_partitions(partitions))
