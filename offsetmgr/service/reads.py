"""Requests that change nothing: managers, initial and committed offsets, topics."""

from __future__ import annotations

import asyncio
import heapq
import re
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetTimeoutError
from offsetmgr.service.access import asker
from offsetmgr.service.errors import kafka_error
from offsetmgr.service.messages import (
    CURSOR,
    CommittedQuery,
    InitialOffset,
    InitialOffsetsAnswer,
    InitialOffsetsQuery,
    ManagersAnswer,
    ManagersQuery,
    ManagerView,
    OffsetsAnswer,
    PartitionEnds,
    TopicNamesAnswer,
    TopicNamesQuery,
    TopicsAnswer,
    TopicsQuery,
    TopicState,
    body_or_none,
    entry,
    error_body,
    value_or_none,
)
from offsetmgr.service.openapi import operation
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offsetmgr.coordinator.base import Coordinator, Failure, TopicLog
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import Factory, ManagerHandle
    from offsetmgr.service.messages import Caller, ErrorBody
    from offsetmgr.types import TopicPartition

_T = TypeVar("_T")


class ServiceReads:
    def __init__(
        self, factory: Factory, coordinator: Coordinator, request_timeout_s: float
    ) -> None:
        """``request_timeout_s`` is how long Kafka has to answer at most."""
        self._factory = factory
        self._coordinator = coordinator
        self._request_timeout_s = request_timeout_s
        self._worker = anyio.CapacityLimiter(1)

    @operation("GET", "/v1/managers", ManagersQuery, ManagersAnswer)
    async def managers(self, _: Caller | None, query: ManagersQuery) -> ManagersAnswer:
        """Return a page of managers in the order of their keys."""
        after = None if query.after is None else _read_cursor(query.after)

        def read() -> ManagersAnswer:
            found = [
                handle
                for handle in self._factory.managers(query.group)
                if query.client in {None, handle.owner}
                and (after is None or handle.key > after)
                and asker().sees(handle.key.group, handle.key.topic)
            ]
            page = heapq.nsmallest(query.limit, found, key=lambda handle: handle.key)
            following = str(page[-1].key) if len(found) > len(page) else None
            return ManagersAnswer([_view(handle) for handle in page], following)

        return await self.in_worker(read)

    async def in_worker(self, do: Callable[[], _T]) -> _T:
        """Return what ``do`` returns, in a thread; one at a time, as they would share the GIL."""
        return await anyio.to_thread.run_sync(do, limiter=self._worker)

    @operation("GET", "/v1/initial-offsets", InitialOffsetsQuery, InitialOffsetsAnswer)
    async def initial_offsets(
        self, caller: Caller | None, query: InitialOffsetsQuery
    ) -> InitialOffsetsAnswer:
        """Return what was committed when the managers (of the caller, if any) started."""
        client = None if caller is None else caller.name
        handles = [
            handle
            for handle in self._factory.managers(query.group)
            if client in {None, handle.owner}
            and query.topic in {None, handle.key.topic}
            and query.partition in {None, handle.key.partition}
            and asker().sees(handle.key.group, handle.key.topic)
        ]
        handles.sort(key=lambda handle: handle.key)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_all_known(handles), query.wait_s)
        return InitialOffsetsAnswer([_initial(handle) for handle in handles])

    @operation("GET", "/v1/offsets", CommittedQuery, OffsetsAnswer)
    async def committed(self, _: Caller | None, query: CommittedQuery) -> OffsetsAnswer:
        """Return what Kafka says is committed now.  Raises KafkaRequestError."""
        timeout_s = self._timeout_s(query.timeout_s)
        result = await self._coordinator.fetch(query.group, None, timeout_s)
        what = f"fetch of the committed offsets of group {query.group!r}"
        if result.group_failure is not None:
            raise kafka_error(what, result.group_failure, timeout_s)

        def is_asked(where: TopicPartition) -> bool:
            return (not query.topic or where.topic in query.topic) and asker().sees(
                query.group, where.topic
            )

        for where, failure in result.failures.items():
            if is_asked(where):
                raise kafka_error(f"{what}, partition {where}", failure, timeout_s)
        return OffsetsAnswer(
            query.group,
            [
                entry(where, value)
                for where, value in sorted(result.offsets.items())
                if value is not None and is_asked(where)
            ],
        )

    @operation("GET", "/v1/topics", TopicsQuery, TopicsAnswer)
    async def topics(self, _: Caller | None, query: TopicsQuery) -> TopicsAnswer:
        """Return partitions of topics, the ends of their logs, and their offsets at a time."""
        timeout_s = self._timeout_s(query.timeout_s)
        logs = await self._coordinator.topic_logs(
            query.topic, timeout_s, query.at_ms, stable=query.stable
        )
        return TopicsAnswer([_topic(name, logs[name], timeout_s) for name in query.topic])

    @operation("GET", "/v1/topic-names", TopicNamesQuery, TopicNamesAnswer)
    async def topic_names(self, _: Caller | None, query: TopicNamesQuery) -> TopicNamesAnswer:
        """Return the topics of the cluster.  Raises KafkaRequestError."""
        timeout_s = self._timeout_s(query.timeout_s)
        found = await self._coordinator.topic_names(timeout_s)
        if found.failure is not None:
            raise kafka_error("list of the topics", found.failure, timeout_s)
        return TopicNamesAnswer([each for each in found.names if asker().sees(None, each)])

    def _timeout_s(self, asked_s: float | None) -> float:
        most_s = self._request_timeout_s
        return most_s if asked_s is None else min(asked_s, most_s)


def _read_cursor(text: str) -> ManagerKey:
    """Return the last key of the page before, from its text.  Raises InvalidValueError."""
    match = re.fullmatch(CURSOR, text)
    if match is None:
        fix = "give `next` of the previous page unchanged"
        raise InvalidValueError("query.after", text, "is not a cursor of this service", fix)
    group, topic, partition = match.groups()
    return ManagerKey(group, topic, int(partition))


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


async def _all_known(handles: Iterable[ManagerHandle]) -> None:
    """Return when every initial offset is known, or will never be."""
    for handle in handles:
        with suppress(ManagerStoppedError):
            await handle.initial


def _initial(handle: ManagerHandle) -> InitialOffset:
    topic, partition = where = handle.key.topic_partition
    error: OffsetManagerError | None
    try:
        value = handle.initial_offset(timeout=0)
    except OffsetTimeoutError:
        error = handle.status().last_error
    except ManagerStoppedError as stopped:
        error = stopped
    else:
        committed = None if value is None else entry(where, value)
        return InitialOffset(topic, partition, known=True, committed=committed, error=None)
    return InitialOffset(topic, partition, known=False, committed=None, error=body_or_none(error))


def _topic(name: str, log: TopicLog, timeout_s: float) -> TopicState:
    def told(failure: Failure | None) -> ErrorBody | None:
        if failure is None:
            return None
        return error_body(kafka_error(f"the ends of topic {name!r}", failure, timeout_s))

    ends = [
        PartitionEnds(
            number,
            each.log_start_offset,
            each.high_watermark,
            told(each.failure),
            each.offset_at,
            each.last_stable_offset,
        )
        for number, each in sorted(log.partitions.items())
    ]
    return TopicState(name, told(log.failure), ends)
