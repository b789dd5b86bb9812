"""The client's methods over offset managers of this process, for a job without the service."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from typing import TYPE_CHECKING, Final, NoReturn
from weakref import WeakSet

from offsetmgr import types
from offsetmgr.client import lifetime
from offsetmgr.client.failure_log import FailureLog, log_uncommitted
from offsetmgr.errors import (
    CoordinatorError,
    InvalidValueError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
    listed,
)
from offsetmgr.local.reads import ONE_PER_PROCESS, Reads, answer
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    Offsets,
    Uncommitted,
    check_group,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.manager import Factory, ManagerHandle
    from offsetmgr.types import StopResult

    OnError = Callable[[ManagerKey | None, OffsetManagerError], None]

CLIENTS: Final = 2
"""Kafka clients that commit: a driver has few groups, and each of them uses one."""

ABANDONED_S: Final = 2.0
"""Time to commit what an instance that nobody closed still holds."""

log = logging.getLogger("offsetmgr.client")


class LocalOffsets(Reads, Offsets):
    """Commits offsets from this process to Kafka; stands wherever an OffsetClient does.

    `kafka` is the bootstrap servers (`host:port,host:port`) or a mapping of librdkafka's settings.
    `name` is the owner that ManagerExistsError names, `settings` how often is committed.

    Nothing is shared with another process.  There is no lease, and nobody takes managers over; a
    second process that commits the same group is not refused, but noticed when the committed
    offsets are verified, every few minutes.  What is not committed is lost with the process: where
    nobody closes it, the exit of the interpreter commits for at most 2 s.

    It cannot be pickled, nor used in the child of a fork: make one per process there, or use
    OffsetClient and the service.

    Raises ImportError where a package of `offsetmgr[server]` is missing, and InvalidValueError for
    a bad name or a setting that librdkafka does not take.
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

        super().__init__(coordinator)
        self._servers = servers
        self._name = owner
        self._reporter = _Reporter()
        self._factory = Factory(coordinator, settings, observer=self._reporter)
        self._lock = threading.Lock()  # while managers are made: a claim gets all or none
        self._spawned: WeakSet[object] = WeakSet()  # mailboxes of managers that `spawn` returned
        self._close_lock = threading.Lock()
        self._closed: FlushResult | None = None
        lifetime.open_clients.add(self)

    @property
    def url(self) -> str:
        return f"kafka://{self._servers}"

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"LocalOffsets({self._servers!r}, name={self._name!r})"

    # Managers

    def spawn(self, group: str, topic: str, partition: int) -> ManagerHandle:
        key = types.check_key((group, topic, partition))
        with self._lock:
            self._check_open()
            handle = self._factory.get(key)
            if handle is None or handle.initial in self._spawned:
                handle = self._factory.spawn(*key, owner=self._name)
            self._spawned.add(handle.initial)
        return handle

    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]], *, timeout: float = 10.0
    ) -> None:
        check_group(group)
        check_timeout(timeout)
        wanted = types.check_topic_partitions(partitions)
        with self._lock:
            self._check_open()
            for key in (ManagerKey(group, *where) for where in wanted):
                if self._factory.get(key) is not None:
                    raise ManagerExistsError(str(key), self._name)
            self._factory.spawn_many(group, wanted, owner=self._name)

    def submit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        rewind: bool = False,
        sync: bool = False,
        timeout: float = 10.0,
    ) -> None:
        check_timeout(timeout)
        check_group(group)
        types.check_flag(rewind, "rewind")
        types.check_flag(sync, "sync")
        values = types.check_offsets(offsets)
        with self._lock:
            self._check_open()
            found = self._factory.submit(group, values, rewind=rewind)
            without = [w for w, error in found.items() if isinstance(error, ManagerStoppedError)]
            if without:
                self._factory.spawn_many(group, without, owner=self._name)
                again = {where: values[where] for where in without}
                rest = {where: error for where, error in found.items() if where not in again}
                found = rest | self._factory.submit(group, again, rewind=rewind)
        refused = {ManagerKey(group, *where): error for where, error in found.items()}
        if sync:
            keys = [ManagerKey(group, *where) for where in values if where not in found]
            results = answer(self._factory.flush(keys, timeout), timeout)
            for key in keys:
                if key not in results:
                    text = f"{key} was stopped before its offset was committed"
                    refused[key] = ManagerStoppedError(text)
            _check_committed(_flush_result(results).uncommitted, refused, timeout)
        elif refused:
            raise OffsetsUncommittedError.one_of(refused)

    def flush(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        check_timeout(timeout)
        keys = self._keys(group, partitions)
        return _flush_result(answer(self._factory.flush(keys, timeout), timeout) if keys else {})

    def stop_managers(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        check_timeout(timeout)
        keys = self._keys(group, partitions)
        stop = self._factory.stop_managers
        return _flush_result(answer(stop(keys, timeout), timeout) if keys else {})

    def _keys(
        self, group: str | None, partitions: Iterable[tuple[str, int]] | None
    ) -> list[ManagerKey]:
        """The live managers that are meant."""
        self._check_process()
        if group is None and partitions is not None:
            fix = "name the group as well"
            raise InvalidValueError("partitions", partitions, "are given without a group", fix)
        named = None if partitions is None else set(types.check_topic_partitions(partitions))
        keys = [handle.key for handle in self._factory.managers(group)]
        return [key for key in keys if named is None or key.topic_partition in named]

    def watch_errors(self, on_error: OnError) -> Callable[[], None]:
        types.check_callable(on_error, "on_error")
        watchers, token = self._reporter.watchers, object()
        watchers[token] = on_error

        def end() -> None:
            watchers.pop(token, None)

        return end

    # The end

    def close(self, *, timeout: float = 10.0) -> FlushResult:
        deadline = time.monotonic() + check_timeout(timeout)
        if not self._close_lock.acquire(timeout=timeout):
            return FlushResult({}, {})  # another thread is at it, and will say
        try:
            if self._closed is None:
                with self._lock:
                    self._ended.set()
                self._closed = _end(self._factory, self._coordinator, deadline, repr(self))
                lifetime.open_clients.discard(self)
            return self._closed
        finally:
            self._close_lock.release()

    def __del__(self) -> None:
        if getattr(self, "_closed", self) is None:
            text = f"unclosed {self!r}; call close(), or use it in a with statement"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            deadline = time.monotonic() + ABANDONED_S
            ended = (self._factory, self._coordinator, deadline, repr(self))
            threading.Thread(target=_end, args=ended, daemon=True).start()

    def close_at_exit(self, timeout_s: float) -> None:
        """Called when the interpreter exits."""
        self.close(timeout=timeout_s)

    def renew_after_fork(self) -> None:
        """Called in the child of a fork: threads, locks and connections are the parent's."""
        self._lock, self._close_lock = threading.Lock(), threading.Lock()
        self._closed = FlushResult({}, {})

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled; {ONE_PER_PROCESS}")


class _Reporter:
    """A `manager.Observer` that logs failures and passes them to whoever watches."""

    def __init__(self) -> None:
        self.watchers: dict[object, OnError] = {}
        self._log = FailureLog()

    def committed(self, key: ManagerKey, offset: OffsetAndMetadata) -> None:
        self._log.committed(key, offset.offset, is_newest=True)

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        self._log.failed(key, error, time.monotonic())
        for on_error in list(self.watchers.values()):
            try:
                on_error(key, error)
            except Exception:  # it would end the actor
                log.exception("a function given to watch_errors has failed")

    def requested(self, *_: object, **__: object) -> None:
        pass

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        del result
        self._log.forget([key])


def _end(factory: Factory, coordinator: Coordinator, deadline: float, name: str) -> FlushResult:
    result = _flush_result(factory.stop(max(0.0, deadline - time.monotonic())))
    coordinator.close(max(0.0, deadline - time.monotonic()))
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


def _check_committed(
    left: Mapping[ManagerKey, Uncommitted],
    refused: dict[ManagerKey, OffsetManagerError],
    timeout: float,
) -> None:
    """Raise the refusals, and that the time ran out, where something is left."""
    late = {}
    for key, (_, error) in left.items():
        retried = isinstance(error, CoordinatorError) and error.retriable
        if retried or isinstance(error, OffsetTimeoutError):
            late[key] = error
        else:
            refused[key] = error
    if refused:
        raise OffsetsUncommittedError.one_of({**refused, **late})
    if late:
        first = next(iter(late.values()))
        names = listed([str(key) for key in left])
        text = f"could not commit {names} within {timeout} s (kept, and tried again): "
        cause = first if isinstance(first, CoordinatorError) else None
        raise OffsetTimeoutError(f"{text}{first}") from cause
