"""The state of the service: its managers, its groups, and the streaming queries of its clients.

All is answered from memory, but the logs' ends of followed checkpoints.
"""

from __future__ import annotations

import asyncio
import heapq
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from offsetmgr.errors import (
    ManagerStoppedError,
    OffsetManagerError,
    OffsetTimeoutError,
    OverloadedError,
)
from offsetmgr.http.answers import encode, page_of, rows_that_fit
from offsetmgr.http.errors import ErrorBody, error_body
from offsetmgr.lag.report import group_summary
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.service.access import Names, Requester, names_in, no_names
from offsetmgr.service.api import decode
from offsetmgr.service.follow import OWNER, FollowedCheckpoint
from offsetmgr.service.messages import (
    InitialOffset,
    InitialOffsetsAnswer,
    InitialOffsetsQuery,
    ManagersAnswer,
    ManagersQuery,
    ManagerView,
    OffsetEntry,
    OffsetValue,
    QueriesKept,
    QueriesQuery,
    QueriesRequest,
    ReadyAnswer,
    StreamingQuery,
    body_or_none,
    read_cursor,
)
from offsetmgr.service.openapi import operation
from offsetmgr.service.sessions import QueryReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.lag.measure import GroupLag
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.follow import Follows
    from offsetmgr.service.health import Health
    from offsetmgr.service.sessions import Client
    from offsetmgr.service.settings import Settings
    from offsetmgr.service.threads import ReadThreads
    from offsetmgr.service.watch import GroupWatch

log = SafeLogger("offsetmgr.service")

UNCOMMITTED_SHOWN: Final = 1_000
QUERY_BYTES: Final = 32 * 1024 * 1024
"""Of the streaming queries of all clients in JSON: half of the largest answer."""
OVERHEAD_BYTES: Final = 100
"""Of each query in an answer, besides the name of its client: its time, and the names of both."""


class OverviewGroup(Struct, frozen=True, kw_only=True):
    """A group of the cluster; what is measured only while it is watched is null without."""

    name: str
    state: str | None
    type: Annotated[str | None, Meta(description="classic, consumer, share and so on.")] = None
    watched: bool
    status: Annotated[
        str | None, Meta(description="By Burrow's rules OK, WARN or ERR; or OUT OF RANGE.")
    ] = None
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
    failed_rounds: Annotated[int, Meta(description="In a row, until now.")] = 0
    read_at: Annotated[float | None, Meta(description="Of the last good round.")] = None


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
    reload_error: Annotated[ErrorBody | None, Meta(description="Why the last SIGHUP was refused.")]


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
    followed: Annotated[
        list[FollowedCheckpoint], Meta(description="Of jobs that do not report themselves.")
    ]


@dataclass(eq=False)
class Overview:
    settings: Settings
    service: OffsetService
    health: Health
    watch: GroupWatch
    follows: Follows
    quick: ReadThreads
    slow: ReadThreads
    """For reads that wait for Kafka."""
    instance: str
    version: str
    _summed: tuple[object, dict[str, dict[str, Any]]] = field(init=False, default=(None, {}))
    """The watcher's last round, and its groups."""
    _repeats: RepeatLimiter = field(init=False, default_factory=RepeatLimiter)

    @operation("GET", "/v1/managers", ManagersQuery, ManagersAnswer, needs=names_in("group"))
    async def managers(self, by: Requester, query: ManagersQuery) -> ManagersAnswer:
        """Return a page of managers, sorted by group, topic and partition."""
        after = None if query.after is None else read_cursor(query.after)

        def read() -> ManagersAnswer:
            managers = self._seen(by, query.group, query.client)
            found = [handle for handle in managers if after is None or handle.key > after]
            first = heapq.nsmallest(query.limit + 1, found, key=lambda handle: handle.key)
            views = (manager_view(each, self.service.refusal(each.owner)) for each in first)
            page, following = page_of(views, query.limit)
            cursor = None if following is None else str(first[len(page) - 1].key)
            return ManagersAnswer(page, cursor)

        return await self.quick.run(by, read)

    @operation(
        "GET",
        "/v1/initial-offsets",
        InitialOffsetsQuery,
        InitialOffsetsAnswer,
        needs=names_in("group", "topic"),
    )
    async def initial_offsets(
        self, by: Requester, query: InitialOffsetsQuery
    ) -> InitialOffsetsAnswer:
        """Return the offsets that were committed when the managers started."""
        client = None if by.caller is None else by.client
        handles = [
            handle
            for handle in self._seen(by, query.group, client)
            if query.topic in {None, handle.key.topic}
            and query.partition in {None, handle.key.partition}
        ]
        handles.sort(key=lambda handle: handle.key)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_all_known(handles), query.wait_s)
        return InitialOffsetsAnswer([_initial(handle) for handle in handles])

    @operation("GET", "/v1/overview", answer=OverviewAnswer, needs=no_names)
    async def overview(self, by: Requester, _: object) -> OverviewAnswer:
        """Return the service and every group that it knows, without asking Kafka."""
        view = self.watch.look(by)
        return await self.quick.run(by, lambda: self._overview(by, view))

    @operation("GET", "/v1/draining", answer=DrainingAnswer, needs=no_names)
    async def draining(self, by: Requester, _: object) -> DrainingAnswer:
        """Return the uncommitted offsets, and the seconds left while the service stops."""
        return await self.quick.run(by, lambda: self._draining(by))

    @operation("POST", "/v1/queries", QueriesRequest, QueriesKept, needs=no_names)
    async def report_queries(self, by: Requester, asked: QueriesRequest) -> QueriesKept:
        """Store the client's streaming queries until its lease ends.

        Invalid ones, and those with a group that the sender may not use, are left out.
        """
        queries: list[StreamingQuery] = []
        refused: list[ErrorBody] = []
        for index, given in enumerate(asked.queries):
            place = f"queries[{index}]"
            try:
                query = decode(StreamingQuery, given, place)
                by.check(partial(Names, query.groups), changes=False)
                queries.append(query)
            except OffsetManagerError as error:
                refused.append(error_body(error))
                cause = by.client, error.code, getattr(error, "field", place)
                if self._repeats.suppressed(cause, self.service.clock.now()) is not None:
                    log.warning("query_refused", client=by.client, error=str(error))
        with self.service.under_way(by) as client:
            more = len(encode(client.name)) + OVERHEAD_BYTES
            size = len(encode(queries)) + more * len(queries)
            report = QueryReport(queries, self.service.clock.now(), size)
            others = [each for each in self.service.registry.clients() if each is not client]
            mine = [each for each in others if each.identity == client.identity]
            share = self.service.registry.share(client.identity, QUERY_BYTES)
            for counted, limit, whose in (
                (others, QUERY_BYTES, ""),
                (mine, share, " of one identity"),
            ):
                if report.size + sum(each.queries.size for each in counted) > limit:
                    text = f"the streaming queries{whose} have more than {limit} bytes, the limit"
                    raise OverloadedError(f"{text}; report fewer of them, or shorter errors")
            client.queries = report
        return QueriesKept(len(queries), refused)

    @operation("GET", "/v1/queries", QueriesQuery, QueriesAnswer, needs=no_names)
    async def queries(self, by: Requester, asked: QueriesQuery) -> QueriesAnswer:
        """Return the streaming queries that clients have reported, and those that are followed."""
        followed: list[FollowedCheckpoint] = []
        if asked.client in {None, OWNER} and self.settings.follow:
            followed = await self.slow.run(by, lambda: self.follows.views(by))
        return QueriesAnswer(
            [
                ReportedQuery(
                    client=client.name,
                    reported_at=round(self.watch.wall_s(client.queries.at_s), 3),
                    **msgspec.structs.asdict(query),
                )
                for client in self.service.registry.clients()
                if asked.client in {None, client.name}
                for query in client.queries.queries
                if _sees(by, client, query)
            ],
            followed,
        )

    # In a thread

    def _overview(self, by: Requester, view: Mapping[str, GroupLag]) -> OverviewAnswer:
        ready, watch = self.health.state(), self.watch
        managers = self._seen(by)
        held: dict[str, list[ManagerHandle]] = {}
        for each in managers:
            held.setdefault(each.key.group, []).append(each)
        if view is not self._summed[0]:
            self._summed = view, {name: group_summary(group) for name, group in view.items()}
        rows = []
        # Taken once: the next round of the watch puts another one in its place.
        listed = {name: group for name, group in watch.listing.items() if by.sees(name)}
        for name in sorted({*view, *held, *listed}):
            facts = dict(self._summed[1].get(name, {}))
            if (listing := listed.get(name)) is not None:
                facts = {"state": listing.state, "type": listing.type} | facts
            rows.append(_row(name, view.get(name), facts, held.get(name, [])))
        shown, missing = rows_that_fit(rows, lambda row: not (row.watched or row.clients))
        unwatched = listed.keys() - view.keys() - held.keys()
        setting, hint = self.settings.watch.groups, None
        if by.sees_everything:
            hint = _hint(setting, sum(listed[name].has_offsets for name in unwatched))
        return OverviewAnswer(
            self.settings.cluster_name,
            self.instance,
            self.version,
            ready.draining,
            ready.ready,
            _reasons(ready),
            len(self.service.registry.clients()),
            len(managers),
            sum(each.uncommitted for each in rows),
            sum(each.failing for each in rows),
            WatchState(
                setting if by.sees_everything else "",  # it may name groups
                self.settings.watch.interval_s,
                hint,
                watch.failed_rounds,
                watch.read_at_s,
            ),
            _error_for(by, watch.error) or body_or_none(missing),
            list(shown),
            AskingIdentity(by.identity, by.rights.read_only) if by.identity else None,
            _error_for(by, self.health.reload_error),
        )

    def _seen(
        self, by: Requester, group: str | None = None, client: str | None = None
    ) -> list[ManagerHandle]:
        """Return the managers that ``by`` may see, of a group and of a client if given."""
        return [
            handle
            for handle in self.service.factory.managers(group)
            if client in {None, handle.owner} and by.sees(handle.key.group, handle.key.topic)
        ]

    def _draining(self, by: Requester) -> DrainingAnswer:
        managers = self._seen(by)
        left = [each for each in managers if each.status().dirty]
        by_s = self.service.drained_by_s
        left_s = None if by_s is None else max(by_s - self.service.clock.now(), 0.0)
        shown = [manager_view(each) for each in left[:UNCOMMITTED_SHOWN]]
        return DrainingAnswer(by_s is not None, left_s, len(managers), len(left), shown)


def manager_view(handle: ManagerHandle, error: OffsetManagerError | None = None) -> ManagerView:
    status = handle.status()
    return ManagerView(
        *handle.key,
        client=handle.owner,
        phase=status.phase,
        submitted=None if status.submitted is None else OffsetValue(*status.submitted),
        committed=None if status.committed is None else OffsetValue(*status.committed),
        dirty=status.dirty,
        last_error=body_or_none(status.last_error or error),
        regressions=status.regressions,
    )


async def _all_known(handles: Iterable[ManagerHandle]) -> None:
    for handle in handles:
        with suppress(ManagerStoppedError):
            await handle.initial


def _initial(handle: ManagerHandle) -> InitialOffset:
    committed, error, known = None, None, False
    topic, partition = handle.key.topic_partition
    try:
        value = handle.initial_offset(timeout=0)
    except OffsetTimeoutError:
        error = body_or_none(handle.status().last_error)
    except ManagerStoppedError as stopped:
        error = error_body(stopped)
    else:
        known = True
        committed = None if value is None else OffsetEntry(topic, partition, *value)
    return InitialOffset(topic, partition, known, committed, error)


def _error_for(by: Requester, error: OffsetManagerError | None) -> ErrorBody | None:
    """Return an error of the whole service, without its text for those who do not see all names."""
    if error is None or by.sees_everything:
        return body_or_none(error)
    return ErrorBody(error.code, "the log of the service, and its operator, know the reason")


def _row(
    name: str,
    watched: GroupLag | None,
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
        **{"state": None, "partitions": len(managers) or None, **facts},
    )


def _reasons(ready: ReadyAnswer) -> list[str]:
    found = ["the service is stopping"] if ready.draining else []
    if ready.kafka != "ok":
        found.append(f"Kafka does not answer: {ready.kafka}")
    if ready.watch:
        found.append(ready.watch)
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


def _sees(by: Requester, client: Client, query: StreamingQuery) -> bool:
    """Return True if the query may be shown: by its groups, without any by its client."""
    if query.groups:
        return all(map(by.sees, query.groups))
    return by.sees_everything or client.identity == by.identity
