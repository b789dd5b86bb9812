"""The first screen of the page, kept in memory: no request waits for Kafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from offsetmgr.lag.report import group_summary
from offsetmgr.service import version
from offsetmgr.service.access import asker
from offsetmgr.service.messages import (
    ErrorBody,
    OfGroup,
    QueriesQuery,
    StreamingQuery,
    body_or_none,
    encode,
)
from offsetmgr.service.openapi import operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors import Clock
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.lag.watcher import WatchedGroup
    from offsetmgr.manager import Factory
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.health import Health
    from offsetmgr.service.messages import Caller, ReadyAnswer
    from offsetmgr.service.reads import ServiceReads
    from offsetmgr.service.sessions import Registry
    from offsetmgr.service.settings import Settings
    from offsetmgr.service.watch import GroupWatch

FRESH_S: Final = 1.0
"""All who look within it get the same answer."""

UNCOMMITTED_SHOWN: Final = 1_000


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
    """The service and all groups that it knows of, sorted by name; at most a second old."""

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


class UncommittedManager(OfGroup, frozen=True):
    client: str
    submitted: int | None
    committed: int | None
    error: ErrorBody | None


class DrainingAnswer(Struct, frozen=True):
    """Offsets not committed yet; of a service that stops, with the seconds that are left."""

    draining: bool
    deadline_s: float | None
    managers: int
    uncommitted: int
    partitions: Annotated[list[UncommittedManager], Meta(description="The first thousand.")]


class ReportedQuery(StreamingQuery, frozen=True, kw_only=True):
    """A streaming query, and the client that reported it."""

    client: str
    reported_at: Annotated[float, Meta(description="Seconds since 1970.")]


class QueriesAnswer(Struct, frozen=True):
    queries: list[ReportedQuery]


class _Held:
    """The partitions of a group that clients of this service commit."""

    def __init__(self) -> None:
        self.clients: set[str] = set()
        self.partitions = self.uncommitted = self.failing = 0
        self.error: OffsetManagerError | None = None


class Overview:
    def __init__(
        self,
        settings: Settings,
        factory: Factory,
        registry: Registry,
        service: OffsetService,
        reads: ServiceReads,
        health: Health,
        watch: GroupWatch,
        clock: Clock,
        *,
        instance: str,
    ) -> None:
        """``instance`` is this process's id."""
        self._settings = settings
        self._factory = factory
        self._registry = registry
        self._service = service
        self._reads = reads
        self._health = health
        self._watch = watch
        self._clock = clock
        self._instance = instance
        self._making = asyncio.Lock()
        self._made: dict[str | None, tuple[float, bytes]] = {}
        """By identity."""
        self._summed: tuple[object, dict[str, dict[str, Any]]] = (None, {})
        """The watcher's last round, and its groups."""

    @operation("GET", "/v1/overview", answer=OverviewAnswer)
    async def overview(self, *_: object) -> Response:
        """Return the service and every group it knows of, without asking Kafka."""
        async with self._making:
            by, now = asker().identity, self._clock.now()
            self._made = {who: made for who, made in self._made.items() if now - made[0] < FRESH_S}
            if by not in self._made:
                view = self._watch.look()
                page = await self._reads.in_worker(lambda: encode(self._overview(view)))
                self._made[by] = self._clock.now(), page
            return Response(self._made[by][1], media_type="application/json")

    @operation("GET", "/v1/draining", answer=DrainingAnswer)
    async def draining(self, *_: object) -> DrainingAnswer:
        """Return what is not committed, and how long a service that stops has left for it."""
        return await self._reads.in_worker(self._draining)

    @operation("GET", "/v1/queries", QueriesQuery, QueriesAnswer)
    async def queries(self, _: Caller | None, asked: QueriesQuery) -> QueriesAnswer:
        """Return the streaming queries that clients have reported."""
        found = []
        for client in self._registry.clients():
            if asked.client in {None, client.name}:
                reported, at_s = client.queries
                reported = [each for each in reported if all(map(asker().sees, each.groups))]
                found += [
                    ReportedQuery(
                        client=client.name,
                        reported_at=round(self._watch.wall_s(at_s), 3),
                        **msgspec.structs.asdict(each),
                    )
                    for each in reported
                ]
        return QueriesAnswer(found)

    # In a worker thread

    def _overview(self, view: Mapping[str, WatchedGroup]) -> OverviewAnswer:
        ready = self._health.ready()
        held = self._held()
        watch = self._watch
        if view is not self._summed[0]:
            self._summed = view, {name: group_summary(each) for name, each in view.items()}
        rows = []
        listed = {name for name in watch.listing if asker().sees(name)}
        for name in sorted({*view, *held, *listed}):
            ours = held.get(name, _Held())
            watched = view.get(name)
            rows.append(_row(name, watched, self._summed[1].get(name, {}), ours, watch.listing))
        interval_s, groups = self._settings.watch.interval_s, self._settings.watch.groups
        return OverviewAnswer(
            self._settings.cluster_name,
            self._instance,
            version(),
            ready.draining,
            ready.ready,
            _reasons(ready),
            self._registry.client_count,
            sum(each.partitions for each in held.values()),
            sum(each.uncommitted for each in held.values()),
            sum(each.failing for each in held.values()),
            WatchState(groups, interval_s, _hint(groups, len(listed - view.keys() - held.keys()))),
            body_or_none(watch.listing_error),
            rows,
            _identity(),
        )

    def _held(self) -> dict[str, _Held]:
        held: dict[str, _Held] = {}
        for each in self._factory.managers():
            if not asker().sees(each.key.group):
                continue
            status = each.status()
            group = held.setdefault(each.key.group, _Held())
            group.clients.add(each.owner)
            group.partitions += 1
            if status.dirty:
                group.uncommitted += 1
                if status.last_error is not None:
                    group.failing += 1
                    group.error = status.last_error
        return held

    def _draining(self) -> DrainingAnswer:
        managers = [each for each in self._factory.managers() if asker().sees(each.key.group)]
        left = []
        for each in managers:
            status = each.status()
            if status.dirty:
                left.append((each, status))
        by_s = self._service.drained_by_s
        return DrainingAnswer(
            by_s is not None,
            None if by_s is None else max(by_s - self._clock.now(), 0.0),
            len(managers),
            len(left),
            [
                UncommittedManager(
                    *each.key,
                    each.owner,
                    None if status.submitted is None else status.submitted.offset,
                    None if status.committed is None else status.committed.offset,
                    body_or_none(status.last_error),
                )
                for each, status in left[:UNCOMMITTED_SHOWN]
            ],
        )


def _row(
    name: str,
    watched: WatchedGroup | None,
    summary: Mapping[str, Any],
    held: _Held,
    listing: Mapping[str, str],
) -> OverviewGroup:
    error = held.error if watched is None else watched.error or held.error
    facts = {"state": listing.get(name), "partitions": held.partitions or None, **summary}
    return OverviewGroup(
        name=name,
        watched=watched is not None,
        clients=sorted(held.clients),
        uncommitted=held.uncommitted,
        failing=held.failing,
        error=body_or_none(error),
        **facts,
    )


def _identity() -> AskingIdentity | None:
    by = asker()
    if by.identity is None or by.rights is None:
        return None
    return AskingIdentity(by.identity, by.rights.read_only)


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
