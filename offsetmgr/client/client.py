"""The client: hands offsets to the service beside it, and never slows whoever submits them."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar

from offsetmgr.client import lifetime, waits, wire
from offsetmgr.client.core import Core
from offsetmgr.client.failure_log import log_uncommitted
from offsetmgr.client.handle import ManagerHandle
from offsetmgr.client.transport import Deadline, parse_url
from offsetmgr.errors import (
    InvalidValueError,
    OffsetManagerError,
    OffsetsUncommittedError,
    ServiceUnavailableError,
)
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    Offsets,
    TopicPartition,
    check_callable,
    check_flag,
    check_group,
    check_key,
    check_list,
    check_offset,
    check_offsets,
    check_topic,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.types import PartitionRange

_T = TypeVar("_T")

TOPICS_PER_REQUEST: Final = 50
"""Keeps the request's first line within what HTTP servers take."""


class OffsetClient(Offsets):
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

    Raises InvalidValueError for a bad url or name.
    """

    def __init__(self, url: str, name: str | None = None) -> None:
        self._url = url
        address = parse_url(url)
        self._base_name = "" if name is None else check_group(name, "name")
        self._core = Core(url, address, self._base_name or lifetime.own_name())
        self._close_lock = threading.Lock()
        self._closed: FlushResult | None = None
        lifetime.open_clients.add(self)

    @property
    def url(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        return self._core.name

    def __repr__(self) -> str:
        return f"OffsetClient({self._url!r}, name={self.name!r})"

    # Managers

    def spawn(self, group: str, topic: str, partition: int) -> ManagerHandle:
        key = check_key((group, topic, partition))
        return ManagerHandle(key, self._core.spawn(key), self._core, self)

    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]], *, timeout: float = 10.0
    ) -> None:
        check_group(group)
        keys = [ManagerKey(group, *where) for where in check_topic_partitions(partitions)]
        waits.claim(self._core, keys, Deadline(timeout))

    def submit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        rewind: bool = False,
        sync: bool = False,
        timeout: float = 10.0,
    ) -> None:
        deadline = Deadline(timeout)
        check_group(group)
        check_flag(rewind, "rewind")
        check_flag(sync, "sync")
        found = check_offsets(offsets)
        values = {ManagerKey(group, *where): value for where, value in found.items()}
        if sync:
            waits.submit(self._core, values, deadline, rewind=rewind)
        elif refused := self._core.submit(values, rewind=rewind):
            raise OffsetsUncommittedError.one_of(refused)

    def flush(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        return waits.flush(self._core, *_scope(group, partitions), Deadline(timeout))

    def stop_managers(
        self,
        *,
        timeout: float = 10.0,
        group: str | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> FlushResult:
        return waits.stop(self._core, *_scope(group, partitions), Deadline(timeout))

    def watch_errors(
        self, on_error: Callable[[ManagerKey | None, OffsetManagerError], None]
    ) -> Callable[[], None]:
        check_callable(on_error, "on_error")
        core = self._core
        with core.lock:
            core.watchers = (*core.watchers, on_error)
        core.listen()

        def end() -> None:
            with core.lock:
                core.watchers = tuple(each for each in core.watchers if each is not on_error)

        return end

    # Straight from Kafka

    def committed(
        self, group: str, *, timeout: float = 10.0
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        query = [("group", check_group(group))]

        def read(data: dict[str, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
            return {wire.partition_of(each): wire.offset_of(each) for each in data["offsets"]}

        return self._get(wire.OFFSETS, query, Deadline(timeout), "the committed offsets", read)

    def topics(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[str, dict[int, PartitionRange]]:
        return self._ask_topics(topics, Deadline(timeout), wire.range_of)

    def offsets_at(
        self, topics: Iterable[str], at_ms: int, *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        at = ("at_ms", check_offset(at_ms, "at_ms"))
        return _flat(self._ask_topics(topics, Deadline(timeout), wire.offset_at_of, at))

    def stable_ends(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        def read(data: Mapping[str, Any]) -> int:
            return int(data["last_stable_offset"])

        return _flat(self._ask_topics(topics, Deadline(timeout), read, ("stable", "true")))

    def topic_names(self, *, timeout: float = 10.0) -> list[str]:
        def read(data: dict[str, Any]) -> list[str]:
            return [str(name) for name in data["names"]]

        return self._get(wire.TOPIC_NAMES, [], Deadline(timeout), "the names of the topics", read)

    def _ask_topics(
        self,
        topics: Iterable[str],
        deadline: Deadline,
        read: Callable[[Mapping[str, Any]], _T],
        *more: tuple[str, object],
    ) -> dict[str, dict[int, _T]]:
        """Return what `read` makes of each partition; `more` goes into the query."""
        listed = check_list(topics, "topics", '["orders"]')
        names = list(dict.fromkeys([check_topic(name) for name in listed]))

        def read_topics(data: dict[str, Any]) -> dict[str, dict[int, _T]]:
            return dict(wire.topic_of(each, read) for each in data["topics"])

        found: dict[str, dict[int, _T]] = {}
        for at in range(0, len(names), TOPICS_PER_REQUEST):
            query = [*(("topic", name) for name in names[at : at + TOPICS_PER_REQUEST]), *more]
            found |= self._get(wire.TOPICS, query, deadline, "the topics", read_topics)
        return found

    def _get(
        self,
        path: str,
        query: Iterable[tuple[str, object]],
        deadline: Deadline,
        what: str,
        read: Callable[[dict[str, Any]], _T],
    ) -> _T:
        """Ask until the service answers: it may just be starting, and Kafka electing a leader.

        The service answers by the deadline, too: where Kafka does not, it says so.
        """
        reason: OffsetManagerError | None = None
        for _ in waits.pauses(self._core, deadline):
            within = ("timeout_s", round(deadline.for_service_s(), 3))
            try:
                data = self._core.get(wire.target(path, *query, within), deadline)
                with wire.reading(what):
                    return read(data)
            except (ServiceUnavailableError, wire.PassingError) as error:
                reason = waits.better_reason(reason, error, deadline)
            except OffsetManagerError as error:
                reason = error
                break
        reason = reason or ServiceUnavailableError("the service was not asked")
        # The message says it all; the frames of the connection would hide it.
        raise reason.with_traceback(None) from reason.__cause__

    # The end

    @property
    def closed(self) -> bool:
        return self._core.closing

    def close(self, *, timeout: float = 10.0) -> FlushResult:
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
        result = waits.stop(core, None, None, deadline)
        core.end(deadline)
        lifetime.open_clients.discard(self)
        log_uncommitted(f"client {self.name}", result.uncommitted)
        return result

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
    """Return what arrives of a pickled client: another one, which does not fence the first."""
    client = OffsetClient(url, lifetime.own_name(base_name))
    client._base_name = base_name  # noqa: SLF001 -- what it is pickled by again
    return client


def _flat(topics: Mapping[str, Mapping[int, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(name, n): each[n] for name, each in topics.items() for n in each}


def _scope(
    group: str | None, partitions: Iterable[tuple[str, int]] | None
) -> tuple[str | None, list[TopicPartition] | None]:
    if group is None and partitions is not None:
        fix = "name the group as well"
        raise InvalidValueError("partitions", partitions, "are given without a group", fix)
    return (
        None if group is None else check_group(group),
        None if partitions is None else check_topic_partitions(partitions),
    )
