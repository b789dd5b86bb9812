"""Requests that change nothing: the overview, managers, offsets, topics and metrics.

The overview is kept in memory, and no request for it waits for Kafka.
"""

from __future__ import annotations

import asyncio
import heapq
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec import Meta, Struct
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetTimeoutError
from offsetmgr.http.errors import ErrorBody, error_body
from offsetmgr.lag.report import group_summary
from offsetmgr.service.access import asker
from offsetmgr.service.errors import kafka_error
from offsetmgr.service.messages import (
    CommittedQuery,
    HeartbeatAnswer,
    HeartbeatRequest,
    InitialOffset,
    InitialOffsetsAnswer,
    InitialOffsetsQuery,
    ManagersAnswer,
    ManagersQuery,
    ManagerView,
    OffsetsAnswer,
    PartitionEnds,
    QueriesQuery,
    StreamingQuery,
    TopicNamesAnswer,
    TopicNamesQuery,
    TopicsAnswer,
    TopicsQuery,
    TopicState,
    body_or_none,
    entry,
    value_or_none,
)
from offsetmgr.service.openapi import operation
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.coordinator.base import Failure, TopicLog
    from offsetmgr.lag.watcher import WatchedGroup
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.service.messages import Caller, ReadyAnswer
    from offsetmgr.service.run import Assembly
    from offsetmgr.types import TopicPartition

UNCOMMITTED_SHOWN: Final = 1_000

_T = TypeVar("_T")


class OverviewGroup(Struct, frozen=True, kw_only=True):
    """A group of the cluster; what is measured only while it is watched is null without."""

    name: str
    state: str | None
    watched: bool
    status: Annotated[str | None, Meta(description="By Burrow's rules: OK, WARN or ERR.")] = None
    lag: int | None = None
    lag_seconds: float | None = None
    rate_in: Annotated[float | None, Meta(description="Records written a second.")] = None
    rate_out: Annotated[float | None, Meta(description="Records committed a second.")] = None
    catch_up_seconds: float | None = None
    members: Annotated[int | None, Meta(description="Live members by Kafka.")] = None
    partitions: int | None
    pending_acks: int | None = None
    lag_points: Annotated[list[int | None], Meta(description="Of the watch's last rounds.")] = []
    clients: Annotated[list[str], Meta(description="Of this service, that commit it.")]
    uncommitted: Annotated[int, Meta(description="Partitions of this service.")]
    failing: Annotated[int, Meta(description="Partitions whose last commit failed.")]
    error: ErrorBody | None


class WatchState(Struct, frozen=True):
    groups: Annotated[str, Meta(description="The setting watch.groups.")]
    interval_s: float
    hint: Annotated[str | None, Meta(description="What is not watched, and how it would be.")]


class AskingIdentity(Struct, frozen=True):
    """The identity of the token or certificate that asks."""

    name: str
    read_only: bool


class OverviewAnswer(Struct, frozen=True):
    """The service and all groups that it knows of, sorted by name."""

    cluster: str
    instance: str
    version: str
    draining: bool
    ready: bool
    reasons: Annotated[list[str], Meta(description="Why it is not ready.")]
    clients: int
    managers: int
    uncommitted: int
    failing: int
    watch: WatchState
    groups_error: Annotated[ErrorBody | None, Meta(description="Why not all groups are listed.")]
    groups: list[OverviewGroup]
    identity: Annotated[AskingIdentity | None, Meta(description="Null where tokens are off.")]


class DrainingAnswer(Struct, frozen=True):
    """Offsets not committed yet; of a service that stops, with the seconds that are left."""

    draining: bool
    deadline_s: float | None
    managers: int
    uncommitted: int
    partitions: Annotated[list[ManagerView], Meta(description="The first thousand.")]


class ReportedQuery(StreamingQuery, frozen=True, kw_only=True):
    """A streaming query, and the client that reported it."""

    client: str
    reported_at: Annotated[float, Meta(description="Seconds since 1970.")]


class QueriesAnswer(Struct, frozen=True):
    queries: list[ReportedQuery]


class Reads:
    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self._coordinator = parts.coordinator
        self._worker = anyio.CapacityLimiter(1)
        self._summed: tuple[object, dict[str, dict[str, Any]]] = (None, {})
        """The watcher's last round, and its groups."""

    @operation("POST", "/v1/heartbeat", HeartbeatRequest, HeartbeatAnswer, reads=True)
    async def heartbeat(self, caller: Caller, _: object) -> HeartbeatAnswer:
        """Renew the client's lease."""
        return HeartbeatAnswer(await self._parts.service.heartbeat(caller), self._parts.hub.newest)

    @operation("GET", "/v1/managers", ManagersQuery, ManagersAnswer)
    async def managers(self, _: Caller | None, query: ManagersQuery) -> ManagersAnswer:
        """Return a page of managers, sorted by group, topic and partition."""
        after = None if query.after is None else _read_cursor(query.after)

        def read() -> ManagersAnswer:
            managers = self._managers(query.group, query.client)
            found = [handle for handle in managers if after is None or handle.key > after]
            page = heapq.nsmallest(query.limit, found, key=lambda handle: handle.key)
            following = str(page[-1].key) if len(found) > len(page) else None
            return ManagersAnswer([_view(handle) for handle in page], following)

        return await self.in_worker(read)

    def _managers(self, group: str | None = None, client: str | None = None) -> list[ManagerHandle]:
        """Return the managers that whoever asks may see, of a group and of a client if given."""
        return [
            each
            for each in self._parts.factory.managers(group)
            if client in {None, each.owner} and asker().sees(each.key.group, each.key.topic)
        ]

    async def in_worker(self, do: Callable[[], _T]) -> _T:
        """Return what ``do`` returns, in a thread; one at a time, as they would share the GIL."""
        return await anyio.to_thread.run_sync(do, limiter=self._worker)

    @operation("GET", "/v1/initial-offsets", InitialOffsetsQuery, InitialOffsetsAnswer)
    async def initial_offsets(
        self, caller: Caller | None, query: InitialOffsetsQuery
    ) -> InitialOffsetsAnswer:
        """Return the offsets that were committed when the managers started."""
        client = None if caller is None else caller.name
        handles = [
            handle
            for handle in self._managers(query.group, client)
            if query.topic in {None, handle.key.topic}
            and query.partition in {None, handle.key.partition}
        ]
        handles.sort(key=lambda handle: handle.key)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_all_known(handles), query.wait_s)
        return InitialOffsetsAnswer([_initial(handle) for handle in handles])

    @operation("GET", "/v1/offsets", CommittedQuery, OffsetsAnswer)
    async def committed(self, _: Caller | None, query: CommittedQuery) -> OffsetsAnswer:
        """Return the offsets that are committed in Kafka now.  Raises KafkaRequestError."""
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
        most_s = self._parts.settings.commit.request_timeout_s
        return most_s if asked_s is None else min(asked_s, most_s)

    @operation("GET", "/metrics", media_type="text/plain")
    async def metrics(self, *_: object) -> Response:
        """Prometheus metrics."""
        page = await self.in_worker(self._parts.metrics.page)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    @operation("GET", "/v1/overview", answer=OverviewAnswer)
    async def overview(self, *_: object) -> OverviewAnswer:
        """Return the service and every group that it knows, without asking Kafka."""
        view = self._parts.watch.look()
        return await self.in_worker(lambda: self._overview(view))

    @operation("GET", "/v1/draining", answer=DrainingAnswer)
    async def draining(self, *_: object) -> DrainingAnswer:
        """Return the uncommitted offsets, and the seconds left while the service stops."""
        return await self.in_worker(self._draining)

    @operation("GET", "/v1/queries", QueriesQuery, QueriesAnswer)
    async def queries(self, _: Caller | None, asked: QueriesQuery) -> QueriesAnswer:
        """Return the streaming queries that clients have reported."""
        found = []
        for client in self._parts.registry.clients():
            if asked.client in {None, client.name}:
                reported, at_s = client.queries
                reported = [each for each in reported if all(map(asker().sees, each.groups))]
                found += [
                    ReportedQuery(
                        client=client.name,
                        reported_at=round(self._parts.watch.wall_s(at_s), 3),
                        **msgspec.structs.asdict(each),
                    )
                    for each in reported
                ]
        return QueriesAnswer(found)

    # In a worker thread

    def _overview(self, view: Mapping[str, WatchedGroup]) -> OverviewAnswer:
        ready, watch = self._parts.health.state(), self._parts.watch
        managers = self._managers()
        held: dict[str, list[ManagerHandle]] = {}
        for each in managers:
            held.setdefault(each.key.group, []).append(each)
        if view is not self._summed[0]:
            self._summed = view, {name: group_summary(group) for name, group in view.items()}
        rows = []
        listed = {name for name in watch.listing if asker().sees(name)}
        for name in sorted({*view, *held, *listed}):
            facts = {"state": watch.listing.get(name), **self._summed[1].get(name, {})}
            rows.append(_row(name, view.get(name), facts, held.get(name, [])))
        settings = self._parts.settings
        interval_s, groups, by = settings.watch.interval_s, settings.watch.groups, asker()
        return OverviewAnswer(
            settings.cluster_name,
            self._parts.instance,
            self._parts.version,
            ready.draining,
            ready.ready,
            _reasons(ready),
            len(self._parts.registry.clients()),
            len(managers),
            sum(each.uncommitted for each in rows),
            sum(each.failing for each in rows),
            WatchState(groups, interval_s, _hint(groups, len(listed - view.keys() - held.keys()))),
            body_or_none(watch.listing_error),
            rows,
            None if by.rights is None else AskingIdentity(by.identity, by.rights.read_only),
        )

    def _draining(self) -> DrainingAnswer:
        managers = self._managers()
        left = [each for each in managers if each.status().dirty]
        by_s = self._parts.service.drained_by_s
        left_s = None if by_s is None else max(by_s - self._parts.clock.now(), 0.0)
        shown = [_view(each) for each in left[:UNCOMMITTED_SHOWN]]
        return DrainingAnswer(by_s is not None, left_s, len(managers), len(left), shown)


def _read_cursor(text: str) -> ManagerKey:
    """Return the last key of the page before, from its text.  Raises InvalidValueError."""
    try:
        group, topic, partition = text.rsplit("/", 2)
        return ManagerKey(group, topic, int(partition))
    except ValueError:
        fix = "give `next` of the previous page unchanged"
        problem = "is not a cursor of this service"
        raise InvalidValueError("query.after", text, problem, fix) from None


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
    committed, error, known = None, None, False
    try:
        value = handle.initial_offset(timeout=0)
    except OffsetTimeoutError:
        error = body_or_none(handle.status().last_error)
    except ManagerStoppedError as stopped:
        error = error_body(stopped)
    else:
        known = True
        committed = None if value is None else entry(handle.key.topic_partition, value)
    return InitialOffset(*handle.key.topic_partition, known, committed, error)


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


def _row(
    name: str,
    watched: WatchedGroup | None,
    facts: Mapping[str, Any],
    managers: Sequence[ManagerHandle],
) -> OverviewGroup:
    dirty = [status for each in managers if (status := each.status()).dirty]
    errors = [each.last_error for each in dirty if each.last_error is not None]
    error = (watched and watched.error) or (errors[-1] if errors else None)
    return OverviewGroup(
        name=name,
        watched=watched is not None,
        clients=sorted({each.owner for each in managers}),
        uncommitted=len(dirty),
        failing=len(errors),
        error=body_or_none(error),
        **{"partitions": len(managers) or None, **facts},
    )


def _reasons(ready: ReadyAnswer) -> list[str]:
    found = ["the service is stopping"] if ready.draining else []
    if ready.kafka != "ok":
        found.append(f"Kafka does not answer: {ready.kafka}")
    if ready.fenced_groups:
        found.append(
            f"another service has taken over {ready.fenced_groups} groups: stop one of the two"
        )
    return found


def _hint(groups: str, unwatched: int) -> str | None:
    if not unwatched:
        return None
    why = f"watch.groups is {groups}" if groups else "watch.groups is not set"
    return (
        f"the lag of {unwatched} of these groups is not measured: no client of this service "
        f'commits them, and {why}; to measure all: --set "watch.groups=.*"'
    )
