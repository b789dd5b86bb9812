"""The client's methods over offset managers of this process, for a job without the service."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar
from weakref import WeakSet

from offsetmgr.client.failure_log import FailureLog, log_uncommitted
from offsetmgr.client.offsets import Deadline, LogEnds, Offsets, kafka_refusal
from offsetmgr.client.waits import pauses
from offsetmgr.errors import (
    CoordinatorError,
    Fault,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetTimeoutError,
    ServiceError,
)
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    Uncommitted,
    check_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors import Future
    from offsetmgr.client.offsets import Refusals
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator, Failure
    from offsetmgr.manager import Factory, ManagerHandle
    from offsetmgr.types import StopResult

_T = TypeVar("_T")

CLIENTS: Final = 2
"""Kafka clients that commit: a driver has few groups, and each of them uses one."""

ABANDONED_S: Final = 2.0
"""Time to commit what an instance that nobody closed still holds."""

GRACE_S: Final = 1.0
"""Extra wait for an answer that is given at its deadline."""


class LocalOffsets(Offsets):
    """Commits offsets from this process to Kafka; takes the place of an OffsetClient.

    `kafka` is the bootstrap servers (`host:port,host:port`) or a mapping of librdkafka's settings.
    `name` is the owner that ManagerExistsError names; `settings` has the commit interval.

    Use it in one process per group: there is no lease, and no other process takes managers over.
    Commits of the group by another process are not refused; they are reported by the verification
    of the committed offsets, every few minutes.  What is not committed is lost with the process.

    It cannot be pickled: make one in each process, or use OffsetClient and the service.

    Raises ImportError if a package of `offsetmgr[server]` is missing, and InvalidValueError for a
    bad name or a setting that librdkafka does not take.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        name: str | None = None,
        *,
        settings: CommitSettings | None = None,
    ) -> None:
        owner = "this process" if name is None else check_group(name, "name")
        try:
            from offsetmgr.coordinator.kafka import KafkaCoordinator  # noqa: PLC0415
        except ModuleNotFoundError as error:
            text = f"LocalOffsets needs the package {error.name}: pip install 'offsetmgr[server]'"
            raise ImportError(text) from error
        coordinator = KafkaCoordinator(kafka, clients=CLIENTS)
        servers = kafka if isinstance(kafka, str) else str(kafka["bootstrap.servers"])
        self._start(coordinator, servers, owner, settings)

    def _start(
        self, coordinator: Coordinator, servers: str, owner: str, settings: CommitSettings | None
    ) -> None:
        from offsetmgr.manager import Factory  # noqa: PLC0415 -- not in a driver without pykka

        reporter = _Reporter()
        self._coordinator = coordinator
        self._factory = Factory(coordinator, settings, observer=reporter)
        self._lock = threading.Lock()  # while managers are made: a claim gets all or none
        self._spawned: WeakSet[object] = WeakSet()  # mailboxes of managers that `spawn` returned
        self._ended = threading.Event()
        super().__init__(f"kafka://{servers}", owner, reporter.log)

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def _check_open(self) -> None:
        self.check_process()
        if self._ended.is_set():
            raise ManagerStoppedError(f"{self!r} is closed; make a new one")

    # Managers

    def _spawn(self, key: ManagerKey) -> ManagerHandle:
        self.check_process()
        with self._lock:
            self._check_open()
            handle = self._factory.get(key)
            if handle is None or handle.initial in self._spawned:
                handle = self._factory.spawn(*key, owner=self._name)
            self._spawned.add(handle.initial)
        return handle

    def _claim(self, group: str, partitions: list[TopicPartition], deadline: Deadline) -> None:
        del deadline  # managers are made at once
        self.check_process()
        with self._lock:
            self._check_open()
            for key in (ManagerKey(group, *where) for where in partitions):
                if self._factory.get(key) is not None:
                    raise ManagerExistsError(str(key), self._name)
            self._factory.spawn_many(group, partitions, owner=self._name)

    def _submit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, rewind: bool
    ) -> Refusals:
        self.check_process()
        with self._lock:
            self._check_open()
            found = self._factory.submit(group, offsets, rewind=rewind)
            without = [w for w, error in found.items() if isinstance(error, ManagerStoppedError)]
            if without:
                self._factory.spawn_many(group, without, owner=self._name)
                again = {where: offsets[where] for where in without}
                rest = {where: error for where, error in found.items() if where not in again}
                found = rest | self._factory.submit(group, again, rewind=rewind)
        return {ManagerKey(group, *where): error for where, error in found.items()}

    def _commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        *,
        rewind: bool,
    ) -> tuple[Refusals, Refusals]:
        refused = self._submit(group, offsets, rewind=rewind)
        every = (ManagerKey(group, *where) for where in offsets)
        keys = [key for key in every if key not in refused]
        results = _answer(self._factory.flush(keys, deadline.within_s()), deadline)
        late: Refusals = {}
        for key in keys:
            if key not in results:
                text = f"{key} was stopped before its offset was committed"
                refused[key] = ManagerStoppedError(text)
        for key, (_, error) in _flush_result(results).uncommitted.items():
            retried = isinstance(error, CoordinatorError) and error.retriable
            is_late = retried or isinstance(error, OffsetTimeoutError)
            (late if is_late else refused)[key] = error
        return refused, late

    def _flush(
        self, group: str | None, partitions: list[TopicPartition] | None, deadline: Deadline
    ) -> FlushResult:
        keys = self._keys(group, partitions)
        return _flush_result(_answer(self._factory.flush(keys, deadline.within_s()), deadline))

    def _stop(
        self, group: str | None, partitions: list[TopicPartition] | None, deadline: Deadline
    ) -> FlushResult:
        keys = self._keys(group, partitions)
        stopped = self._factory.stop_managers(keys, deadline.within_s())
        return _flush_result(_answer(stopped, deadline))

    def _keys(self, group: str | None, partitions: list[TopicPartition] | None) -> list[ManagerKey]:
        """Return the live managers that are meant."""
        self.check_process()
        keys = [handle.key for handle in self._factory.managers(group)]
        return [key for key in keys if partitions is None or key.topic_partition in partitions]

    # Questions to Kafka

    def _committed(self, group: str, deadline: Deadline) -> dict[TopicPartition, OffsetAndMetadata]:
        fetch = self._coordinator.reader.fetch
        found = self._ask(lambda left_s: fetch(group, None, left_s), deadline)
        for failure in (found.group_failure, *found.failures.values()):
            if failure is not None:
                raise _refusal(f"fetch of the committed offsets of group {group!r}", failure)
        return {where: value for where, value in found.offsets.items() if value is not None}

    def _topic_names(self, deadline: Deadline) -> list[str]:
        found = self._ask(self._coordinator.topic_names, deadline)
        if found.failure is not None:
            raise _refusal("list of the topics", found.failure)
        return list(found.names)

    def _logs(
        self,
        names: list[str],
        deadline: Deadline,
        *,
        at_ms: int | None = None,
        stable: bool = False,
    ) -> dict[str, dict[int, LogEnds]]:
        """Ask until all is known: Kafka may be electing the leader of a new partition."""
        ask = self._coordinator.topic_logs
        reason: ServiceError | None = None
        for _ in pauses(self._ended, deadline):
            found = self._ask(lambda left_s: ask(names, left_s, at_ms, stable=stable), deadline)
            failures = [(f"topic {name}", found[name].failure) for name in names] + [
                (f"partition {name}-{n}", ends.failure)
                for name in names
                for n, ends in found[name].partitions.items()
            ]
            what, failure = next((each for each in failures if each[1] is not None), ("", None))
            if failure is None:
                return {
                    name: {
                        n: LogEnds(*ends[:2], ends.offset_at, ends.last_stable_offset)
                        for n, ends in found[name].partitions.items()
                    }
                    for name in names
                }
            reason = _refusal(what, failure)
            if not (failure.info.retriable and failure.info.fault is Fault.BROKER):
                break
        raise reason or OffsetTimeoutError("Kafka was not asked")

    def _ask(self, ask: Callable[[float], Future[_T]], deadline: Deadline) -> _T:
        self._check_open()
        return _answer(ask(deadline.within_s()), deadline)

    # The end

    def _close(self, deadline: Deadline) -> FlushResult:
        with self._lock:
            self._ended.set()
        return _end(self._factory, self._coordinator, deadline, repr(self))

    def _abandon(self) -> None:
        ended = (self._factory, self._coordinator, Deadline(ABANDONED_S), repr(self))
        threading.Thread(target=_end, args=ended, daemon=True).start()

    def __reduce__(self) -> NoReturn:
        text = "make one in each process, or use OffsetClient and the service"
        raise TypeError(f"{self!r} cannot be pickled; {text}")


class _Reporter:
    """A `manager.Observer` that logs failures and passes them to whoever watches."""

    def __init__(self) -> None:
        self.log = FailureLog()

    def committed(self, key: ManagerKey, offset: OffsetAndMetadata) -> None:
        self.log.committed(key, offset.offset, is_newest=True)

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        self.log.failed(key, error, time.monotonic())

    def requested(self, *_: object, **__: object) -> None:
        pass

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        del result
        self.log.forget([key])


def _answer(future: Future[_T], deadline: Deadline) -> _T:
    """Wait for what is answered by the deadline."""
    return future.get(timeout=deadline.within_s() + GRACE_S)


def _end(factory: Factory, coordinator: Coordinator, deadline: Deadline, name: str) -> FlushResult:
    result = _flush_result(factory.stop(deadline.within_s()))
    coordinator.close(deadline.within_s())
    log_uncommitted(name, result.uncommitted)
    return result


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


def _refusal(what: str, failure: Failure) -> ServiceError:
    name = failure.info.name
    text = f"{what} failed: {failure.detail or failure.info.hint} ({name})"
    return kafka_refusal(what, name, text)
