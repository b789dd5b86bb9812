"""Requests that change nothing: managers, initial and committed offsets, topics."""

from __future__ import annotations

import base64
import heapq
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from actors import Future, MailboxClosed
from offsetmgr.errors import InvalidValueError, ManagerStoppedError
from offsetmgr.service.errors import KafkaFailedError
from offsetmgr.service.messages import (
    InitialOffset,
    InitialOffsetsAnswer,
    ManagersAnswer,
    ManagerView,
    OffsetsAnswer,
    PartitionEnds,
    TopicNamesAnswer,
    TopicsAnswer,
    TopicState,
    body_or_none,
    entry,
    error_body,
    value_or_none,
)
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors import Timers
    from offsetmgr.coordinator.base import Coordinator, Failure, PartitionLog, TopicLog
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import Factory, ManagerHandle
    from offsetmgr.service.messages import ErrorBody
    from offsetmgr.service.requests import (
        CommittedQuery,
        InitialOffsetsQuery,
        ManagersQuery,
        TopicNamesQuery,
        TopicsQuery,
    )
    from offsetmgr.service.sessions import Caller

_T = TypeVar("_T")

_CURSOR: Final = msgspec.json.Decoder(tuple[str, str, int])


class ServiceReads:
    def __init__(
        self, factory: Factory, coordinator: Coordinator, timers: Timers, request_timeout_s: float
    ) -> None:
        """``request_timeout_s`` is how long Kafka has to answer at most."""
        self._factory = factory
        self._coordinator = coordinator
        self._timers = timers
        self._request_timeout_s = request_timeout_s
        self._worker = anyio.CapacityLimiter(1)

    async def managers(self, query: ManagersQuery) -> ManagersAnswer:
        """Return a page of managers in the order of their keys."""
        after = None if query.after is None else _read_cursor(query.after)
        return await self.in_worker(partial(self._page, query, after))

    def _page(self, query: ManagersQuery, after: ManagerKey | None) -> ManagersAnswer:
        found = [
            handle
            for handle in self._factory.managers(query.group)
            if query.client in {None, handle.owner} and (after is None or handle.key > after)
        ]
        page = heapq.nsmallest(query.limit, found, key=lambda handle: handle.key)
        following = _cursor(page[-1].key) if len(found) > len(page) else None
        return ManagersAnswer([_view(handle) for handle in page], following)

    async def in_worker(self, do: Callable[[], _T]) -> _T:
        """Return what ``do`` returns, in a thread: it may take long with many managers.

        One at a time, as they would share the GIL.
        """
        return await anyio.to_thread.run_sync(do, limiter=self._worker)

    async def initial_offsets(
        self, caller: Caller | None, query: InitialOffsetsQuery
    ) -> InitialOffsetsAnswer:
        """Return what was committed when the managers started, once Kafka has told all of them.

        Only the caller's managers are meant, where there is one.
        """
        client = None if caller is None else caller.name
        handles = [
            handle
            for handle in self._factory.managers(query.group)
            if client in {None, handle.owner}
            and query.topic in {None, handle.key.topic}
            and query.partition in {None, handle.key.partition}
        ]
        handles.sort(key=lambda handle: handle.key)
        if query.wait_s > 0:
            await self._all_known(handles, query.wait_s)
        return InitialOffsetsAnswer([_initial(handle) for handle in handles])

    async def _all_known(self, handles: Sequence[ManagerHandle], wait_s: float) -> None:
        """Return when every initial offset is known (or will never be), or ``wait_s`` is over."""
        unknown = {handle.key for handle in handles}
        lock, done = Lock(), Future[None]()

        def arrived(handle: ManagerHandle) -> None:
            with lock:
                unknown.discard(handle.key)
                last = not unknown
            if last:
                done.set()

        waiting = [handle for handle in handles if not handle.initial.closed]
        removers = [handle.initial.add_listener(partial(arrived, handle)) for handle in waiting]
        for handle in handles:
            if handle.initial.closed:
                arrived(handle)
        timer = self._timers.call_after(wait_s, done.set)
        try:
            if unknown:
                await done
        finally:
            timer.cancel()
            for remove in removers:
                remove()

    async def committed(self, query: CommittedQuery) -> OffsetsAnswer:
        """Return what Kafka says is committed now.  Raises KafkaFailedError."""
        timeout_s = self._timeout_s(query.timeout_s)
        result = await self._coordinator.fetch(query.group, None, timeout_s)
        what = f"fetch of the committed offsets of group {query.group!r}"
        if result.group_failure is not None:
            raise KafkaFailedError(what, result.group_failure, timeout_s)
        for where, failure in result.failures.items():
            if not query.topic or where.topic in query.topic:
                raise KafkaFailedError(f"{what}, partition {where}", failure, timeout_s)
        return OffsetsAnswer(
            query.group,
            [
                entry(where, value)
                for where, value in sorted(result.offsets.items())
                if value is not None and (not query.topic or where.topic in query.topic)
            ],
        )

    async def topics(self, query: TopicsQuery) -> TopicsAnswer:
        """Return partitions of topics, the ends of their logs, and their offsets at a time."""
        timeout_s = self._timeout_s(query.timeout_s)
        logs = await self._coordinator.topic_logs(
            query.topic, timeout_s, query.at_ms, stable=query.stable
        )
        return TopicsAnswer([_topic(name, logs[name], timeout_s) for name in query.topic])

    async def topic_names(self, query: TopicNamesQuery) -> TopicNamesAnswer:
        """Return the topics of the cluster.  Raises KafkaFailedError."""
        timeout_s = self._timeout_s(query.timeout_s)
        found = await self._coordinator.topic_names(timeout_s)
        if found.failure is not None:
            raise KafkaFailedError("list of the topics", found.failure, timeout_s)
        return TopicNamesAnswer(list(found.names))

    def _timeout_s(self, asked_s: float | None) -> float:
        most_s = self._request_timeout_s
        return most_s if asked_s is None else min(asked_s, most_s)


def _cursor(key: ManagerKey) -> str:
    """Return where a page ended, as it travels to the client and back."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def _read_cursor(text: str) -> ManagerKey:
    """Return the last key of the page before.  Raises InvalidValueError."""
    try:
        padded = text + "=" * (-len(text) % 4)
        return ManagerKey(*_CURSOR.decode(base64.urlsafe_b64decode(padded)))
    except ValueError:  # of the encoding, of UTF-8 or of the JSON
        fix = "give `next` of the previous page unchanged"
        raise InvalidValueError(
            "query.after", text, "is not a cursor of this service", fix
        ) from None


def _view(handle: ManagerHandle) -> ManagerView:
    status = handle.status()
    return ManagerView(
        *handle.key,
        client=handle.owner,
        phase=status.phase,
        submitted=value_or_none(status.submitted),
        committed=value_or_none(status.committed),
        dirty=status.dirty,
        last_error=body_or_none(status.last_error),
        regressions=status.regressions,
    )


def _initial(handle: ManagerHandle) -> InitialOffset:
    topic, partition = where = handle.key.topic_partition
    error: OffsetManagerError | None
    try:
        value = handle.initial.get(timeout=0)
    except TimeoutError:
        error = handle.status().last_error
    except MailboxClosed:
        error = ManagerStoppedError(f"{handle.key} was stopped before its initial offset arrived")
    else:
        committed = None if value is None else entry(where, value)
        return InitialOffset(topic, partition, known=True, committed=committed, error=None)
    return InitialOffset(topic, partition, known=False, committed=None, error=body_or_none(error))


def _topic(name: str, log: TopicLog, timeout_s: float) -> TopicState:
    ends = [_ends(number, each, timeout_s) for number, each in sorted(log.partitions.items())]
    return TopicState(name, _failure(log.failure, timeout_s), ends)


def _ends(number: int, log: PartitionLog, timeout_s: float) -> PartitionEnds:
    return PartitionEnds(
        number,
        log.log_start_offset,
        log.high_watermark,
        _failure(log.failure, timeout_s),
        log.offset_at,
        log.last_stable_offset,
    )


def _failure(failure: Failure | None, timeout_s: float) -> ErrorBody | None:
    return None if failure is None else error_body(KafkaFailedError("", failure, timeout_s))
