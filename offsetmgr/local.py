"""The client's methods over offset managers of this process, for a job without the service."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar
from weakref import WeakSet

from offsetmgr.client.calls import Calls, InterruptedCallError
from offsetmgr.client.failure_log import FailureLog
from offsetmgr.client.offsets import Handle, LogEnds, Offsets, kafka_refusal
from offsetmgr.client.partitions import FORMER_ID, FORMER_LIMIT
from offsetmgr.deadlines import Deadline, Latch
from offsetmgr.errors import (
    CoordinatorError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetManagerError,
    OffsetTimeoutError,
)
from offsetmgr.extras import naming_extra
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    StopResult,
    TopicPartition,
    Uncommitted,
    check_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors import Future
    from offsetmgr.client.offsets import Logs, Named, Refusals, SubmitResult, Values
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator, Failure
    from offsetmgr.manager import Factory, ManagerHandle
    from offsetmgr.stores import OffsetStore
    from offsetmgr.types import Stream

_T = TypeVar("_T")

CLIENTS: Final = 2
"""Kafka clients that commit: a driver has few groups, and each of them uses one."""

GRACE_S: Final = 1.0
"""Extra wait for an answer that is given at its deadline."""


class LocalOffsets(Offsets):
    """Commits offsets from this process to Kafka; replaces an OffsetClient.

    `kafka` is the bootstrap servers (`host:port,host:port`) or a mapping of librdkafka's settings.
    `name` is the owner that ManagerExistsError names; `settings` has the commit interval.  `store`
    keeps the groups instead of Kafka: the URL of a database, or an OffsetStore.

    Use it in one process per group: commits of the group by another process are not refused; they
    are reported by the verification of the committed offsets, every few minutes.  A killed process
    loses its uncommitted offsets.  It cannot be pickled: make one in each process.

    Raises ImportError if a package of `offsetmgr[kafka]` is missing, and InvalidValueError for a
    bad name or a setting that librdkafka does not take.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        name: str | None = None,
        *,
        settings: CommitSettings | None = None,
        store: str | Mapping[str, object] | OffsetStore | None = None,
    ) -> None:
        owner = "this process" if name is None else check_group(name, "name")
        with naming_extra("LocalOffsets"):
            import pykka  # noqa: F401, PLC0415 -- the managers are its actors

            from offsetmgr.coordinator.kafka import KafkaCoordinator  # noqa: PLC0415
            from offsetmgr.stores.coordinator import StoreCoordinator  # noqa: PLC0415
        in_kafka = KafkaCoordinator(kafka, clients=CLIENTS)
        coordinator: Coordinator = in_kafka
        servers = kafka if isinstance(kafka, str) else str(kafka["bootstrap.servers"])
        try:
            if store is not None:
                coordinator = StoreCoordinator(store, in_kafka)
            self._use(coordinator, f"kafka://{servers}", owner, settings)
        except BaseException:
            coordinator.close(0.0)
            raise
        if store is None and sys.version_info >= (3, 12):
            in_kafka.connect()  # the first submit may come just before the interpreter exits

    def _use(
        self,
        coordinator: Coordinator,
        url: str,
        owner: str,
        settings: CommitSettings | None = None,
        factory: Factory | None = None,
    ) -> None:
        from offsetmgr.manager import Factory  # noqa: PLC0415 -- not in a driver without pykka

        self._reporter = Reporter()
        self._coordinator = coordinator
        self._factory = factory or Factory(coordinator, settings, observer=self._reporter)
        self._reporter.factory = self._factory
        self._lock = threading.RLock()  # for calls of the factory: a claim gets all or none
        self._calls = Calls()
        self._spawned: WeakSet[object] = WeakSet()  # mailboxes of managers that `spawn` returned
        super().__init__(url, owner, self._reporter.log, Latch())

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def call(self, do: Callable[[], _T], later: Callable[[], object] | None = None) -> _T:
        """Call the factory or the coordinator, which never wait, as `Calls.call`."""
        self.check_process()
        with self._lock:
            return self._calls.call(do, later)

    # Managers

    def _spawn(self, key: ManagerKey) -> LocalManagerHandle:
        return LocalManagerHandle(self, self.call(lambda: self._made(key)))

    def _made(self, key: ManagerKey) -> ManagerHandle:
        self._check_open()
        handle = self._factory.get(key)
        if handle is None or handle.initial in self._spawned:
            handle = self._factory.spawn(*key, owner=self._name)
        self._spawned.add(handle.initial)
        return handle

    def _claim(self, keys: list[ManagerKey], deadline: Deadline) -> None:
        del deadline  # managers are made at once

        def make_all() -> None:
            self._check_open()
            for key in keys:
                if self._factory.get(key) is not None:
                    raise ManagerExistsError(str(key), self._name)
            self._make(keys)

        self.call(make_all)

    def _make(self, keys: list[ManagerKey]) -> None:
        if keys:
            wanted = [key.topic_partition for key in keys]
            self._factory.spawn_many(keys[0].group, wanted, owner=self._name)

    def _submit(self, offsets: Values, *, rewind: bool, wait: Deadline | None) -> SubmitResult:
        try:
            refused = self.put(offsets, partial(self._take, offsets, rewind=rewind))
        except InterruptedCallError as interrupted:
            return {}, dict.fromkeys(() if wait is None else offsets, interrupted)
        late: Refusals = {}
        if wait is not None:
            keys = [key for key in offsets if key not in refused]
            results = _answer(self.call(lambda: self._factory.flush(keys, wait.left_s)), wait)
            for key, (_, error) in _flush_result(results).uncommitted.items():
                retried = isinstance(error, CoordinatorError) and error.retriable
                is_late = retried or isinstance(error, OffsetTimeoutError)
                (late if is_late else refused)[key] = error
            for key in keys:
                if key not in results or (key in late and self._factory.get(key) is None):
                    late.pop(key, None)
                    text = f"{key} was stopped before its offset was committed"
                    refused[key] = ManagerStoppedError(text)
        return refused, late

    def put(self, keys: Iterable[ManagerKey], submit: Callable[[], Refusals]) -> Refusals:
        """Return the refusals of ``submit``, which is about ``keys``.

        A signal handler that has interrupted another call gets InterruptedCallError; the refusals
        are then reported when it has returned.
        """

        def put_later() -> None:
            try:
                refused = self.put(keys, submit)
            except ManagerStoppedError as closed:
                refused = dict.fromkeys(keys, closed)
            for key, error in refused.items():
                # As a call: a handler that waits meanwhile would wait for a thread that waits for
                # the log.
                self.call(partial(self._reporter.failed, key, error))

        self.check_process()
        with self._lock:
            self._check_open()
            refused = self.call(submit, put_later)
            self._check_open()  # a signal handler may have closed it meanwhile
        return refused

    def _take(self, offsets: Values, *, rewind: bool) -> Refusals:
        """Hand offsets of one group to their managers; return the refusals."""
        handles = {key: self._factory.get(key) for key in offsets}
        self._make([key for key, handle in handles.items() if handle is None])
        refused: Refusals = {
            key: ManagerExistsError(str(key), handle.owner)
            for key, handle in handles.items()
            if handle is not None and handle.owner != self._name
        }
        taken = {key: value for key, value in offsets.items() if key not in refused}
        return refused | self.hand_over(taken, rewind=rewind)

    def hand_over(self, offsets: Values, *, rewind: bool) -> Refusals:
        """Submit offsets of one group to live managers; return the refusals.

        Until a manager knows its topic, they go with the id that the stopped one before it knew,
        but for a lower one, which is of a new log; so is a higher one after a notice or refusal.
        """
        refused: Refusals = {}
        former = self._reporter.former
        parts: dict[str, dict[ManagerKey, OffsetAndMetadata]] = {"": {**offsets}}
        marked = [key for key in offsets if key in former]
        for key in marked:
            # Another thread may have cleared them meanwhile.
            (topic_id, last), offset = former.get(key, ("", -1)), offsets[key].offset
            is_new = offset < last or (topic_id == FORMER_ID and offset > last)
            handle = self._factory.get(key)
            knows = handle is not None and handle.former_offset is not None
            if is_new or rewind or knows:
                former.pop(key, None)
            else:
                parts.setdefault(topic_id, {})[key] = parts[""].pop(key)
        for topic_id, part in parts.items():
            if part:
                group = next(iter(part)).group
                values = {key.topic_partition: value for key, value in part.items()}
                named = {key.topic: topic_id for key in part} if topic_id else {}
                found = self._factory.submit(group, values, rewind=rewind, topic_ids=named)
                refused |= {ManagerKey(group, *where): error for where, error in found.items()}
        for key in marked:
            if isinstance(refused.get(key), OffsetCommitError):
                former[key] = FORMER_ID, offsets[key].offset
            elif key not in refused and self.topic_ids_of([key]):
                former.pop(key, None)
        return refused

    def is_first(self, handle: ManagerHandle) -> bool:
        """Return True if what is submitted may still be of the log of the manager before."""
        return handle.key in self._reporter.former and self.lives(handle)

    def lives(self, handle: ManagerHandle) -> bool:
        """Return True if the manager of ``handle`` is not stopped."""
        found = self._factory.get(handle.key)
        return found is not None and found.initial is handle.initial

    def _settle(
        self, group: str | None, partitions: Named, deadline: Deadline, *, stop: bool
    ) -> FlushResult:
        ask = self._factory.stop_managers if stop else self._factory.flush

        def asked() -> Future[dict[ManagerKey, StopResult]]:
            keys = [handle.key for handle in self._held(group, partitions)]
            return ask(keys, deadline.left_s)

        try:
            return _flush_result(_answer(self.call(asked), deadline))
        except OffsetTimeoutError as error:
            return self._unsettled(error, group, partitions)

    def _held(self, group: str | None, partitions: Named) -> list[ManagerHandle]:
        return [
            handle
            for handle in self._factory.managers(group)
            if handle.owner == self._name
            and (partitions is None or handle.key.topic_partition in partitions)
        ]

    def stop_manager(self, handle: ManagerHandle, deadline: Deadline) -> StopResult:
        """Stop the manager of ``handle``, and return the result; also if it is stopped already."""

        def ask() -> Future[dict[ManagerKey, StopResult]]:
            keys = [handle.key] if self.lives(handle) else []
            return self._factory.stop_managers(keys, deadline.left_s)

        try:
            asked = self.call(ask, partial(self.stop_manager, handle, deadline))
            found = _answer(asked, deadline).get(handle.key)
        except OffsetTimeoutError as error:
            return _unanswered(handle, error)
        return found or handle.stop(timeout=0)  # which does not wait where it was stopped before

    # Questions to Kafka

    def _committed(self, group: str, deadline: Deadline) -> dict[TopicPartition, OffsetAndMetadata]:
        asked = self.call(lambda: self._coordinator.fetch(group, None, deadline.left_s))
        found = _answer(asked, deadline)
        for failure in (found.group_failure, *found.failures.values()):
            _check_failure(f"fetch of the committed offsets of group {group!r}", failure)
        return {where: value for where, value in found.offsets.items() if value is not None}

    def _topic_names(self, deadline: Deadline) -> list[str]:
        asked = self.call(lambda: self._coordinator.topic_names(deadline.left_s))
        found = _answer(asked, deadline)
        _check_failure("list of the topics", found.failure)
        return list(found.names)

    def _logs(
        self, topics: list[str], deadline: Deadline, *, at_ms: int | None, stable: bool
    ) -> Logs:
        ask = partial(self._coordinator.topic_logs, topics, stable=stable)
        found = _answer(self.call(lambda: ask(deadline.left_s, at_ms)), deadline)
        logs: Logs = {}
        for name in topics:
            _check_failure(f"topic {name}", found[name].failure)
            for number, ends in found[name].partitions.items():
                where = TopicPartition(name, number)
                _check_failure(f"partition {where}", ends.failure)
                logs[where] = LogEnds(
                    *ends[:2], ends.offset_at, ends.last_stable_offset, found[name].topic_id
                )
        return logs

    def topic_ids_of(self, keys: Iterable[ManagerKey]) -> dict[ManagerKey, str]:
        found: dict[ManagerKey, str] = {}
        for key in keys:
            for topic_id in self._factory.topic_ids({key.group: [key.topic_partition]}).values():
                found[key] = topic_id
        return found

    # The end

    def _close(self, deadline: Deadline) -> None:
        def begin() -> Future[dict[ManagerKey, StopResult]]:
            self._reporter.keeps_results = True
            self._ended.set()
            return self._factory.begin_stop(deadline.left_s)

        try:
            begun = self.call(begin, lambda: self.close(timeout=deadline.left_s))
            results = _answer(begun, deadline)
        except OffsetTimeoutError:
            return
        # Some may have been stopped by another call, or by a signal handler in the middle of this.
        self._closed_with(_flush_result(self._reporter.results | results))
        self._factory.stop(deadline.left_s)
        self._coordinator.close(deadline.left_s)

    def _unsettled(
        self, error: OffsetManagerError, group: str | None = None, partitions: Named = None
    ) -> FlushResult:
        held = self._held(group, partitions)
        return _flush_result({handle.key: _unanswered(handle, error) for handle in held})

    def __reduce__(self) -> NoReturn:
        text = "make one in each process, or use OffsetClient and the service"
        raise TypeError(f"{self!r} cannot be pickled; {text}")


class LocalManagerHandle(Handle):
    """A manager of ``LocalOffsets`` for one partition of a group."""

    __slots__ = ("_handle", "_offsets")

    def __init__(self, offsets: LocalOffsets, handle: ManagerHandle) -> None:
        super().__init__(handle.key)
        self._offsets = offsets
        self._handle = handle

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        if not self._handle.initial.done():
            self._offsets.call(lambda: None)  # the answer waits for a call that was interrupted
        return self._handle.initial_offset(timeout=timeout)

    def _put(self, value: OffsetAndMetadata, *, rewind: bool) -> Refusals:
        def submit() -> Refusals:
            if self._offsets.is_first(self._handle):
                return self._offsets.hand_over({self._key: value}, rewind=rewind)
            try:
                (self._handle.rewind if rewind else self._handle.submit)(*value)
            except OffsetManagerError as error:
                return {self._key: error}
            return {}

        return self._offsets.put([self._key], submit)

    def committed_offsets(self) -> Stream[OffsetAndMetadata]:
        return self._handle.committed_offsets()

    def errors(self) -> Stream[OffsetManagerError]:
        return self._handle.errors()

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        return self._offsets.stop_manager(self._handle, Deadline(timeout))


class Reporter:
    """A `manager.Observer` that logs failures and passes them to whoever watches."""

    factory: Factory

    def __init__(self) -> None:
        self.log = FailureLog()
        self.former: dict[ManagerKey, tuple[str, int]] = {}
        """Of managers that have stopped: the topic's id and the newest offset of its log."""
        self.keeps_results = False
        self.results: dict[ManagerKey, StopResult] = {}
        """Of managers that have stopped since ``keeps_results`` was set."""

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        for key in offsets:
            self.log.committed(key)

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        self.log.failed(key, error, time.monotonic())

    def requested(self, *_: object, **__: object) -> None:
        pass

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        handle = self.factory.get(key)
        if len(self.former) >= FORMER_LIMIT:
            self.former.clear()
        if handle is not None and handle.former_offset is not None:
            self.former[key] = FORMER_ID, handle.former_offset
        elif handle is not None and handle.initial.exception() is None:  # else it has not read
            newest = handle.status().submitted
            for topic_id in self.factory.topic_ids({key.group: [key.topic_partition]}).values():
                if newest is not None:
                    self.former[key] = topic_id, newest.offset
        if self.keeps_results:
            self.results[key] = result
        self.log.forget([key])


def _answer(future: Future[_T], deadline: Deadline) -> _T:
    """Wait for what is answered by the deadline.  Raises OffsetTimeoutError."""
    import pykka  # noqa: PLC0415 -- not in a driver without it

    try:
        return future.get(timeout=deadline.left_s + GRACE_S)
    except pykka.Timeout:
        text = f"there was no answer within {deadline.timeout} s; is the machine out of threads?"
        raise OffsetTimeoutError(text) from None


def _unanswered(handle: ManagerHandle, error: OffsetManagerError) -> StopResult:
    status = handle.status()
    return StopResult(status.committed, status.submitted if status.dirty else None, error)


def _flush_result(results: dict[ManagerKey, StopResult]) -> FlushResult:
    committed: dict[ManagerKey, OffsetAndMetadata] = {}
    uncommitted: dict[ManagerKey, Uncommitted] = {}
    for key, (acknowledged, left, error) in results.items():
        if left is not None:
            reason = error or OffsetTimeoutError(f"{key}: Kafka has not answered in time")
            uncommitted[key] = Uncommitted(left, reason)
        elif acknowledged is not None:
            committed[key] = acknowledged
    return FlushResult(committed, uncommitted)


def _check_failure(what: str, failure: Failure | None) -> None:
    if failure is not None:
        name, retriable, fault = failure.info.name, failure.info.retriable, failure.info.fault.value
        text = f"{what} failed: {failure.reason} ({name})"
        raise kafka_refusal(what, name, text, fault, retriable=retriable)
