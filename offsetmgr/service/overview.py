"""The overview of the service and its groups, and what a stopping service still has to commit.

Both are made from memory: no request for them waits for Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from offsetmgr.http.errors import ErrorBody
from offsetmgr.lag.report import group_summary
from offsetmgr.service.access import Requester, no_names
from offsetmgr.service.messages import ManagerView, ReadyAnswer, body_or_none
from offsetmgr.service.openapi import operation
from offsetmgr.service.reads import manager_view, seen_managers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors import Clock
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.lag.measure import GroupLag
    from offsetmgr.manager import Factory, ManagerHandle
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.health import Health
    from offsetmgr.service.sessions import Registry
    from offsetmgr.service.settings import Settings
    from offsetmgr.service.threads import ReadThreads
    from offsetmgr.service.watch import GroupWatch

UNCOMMITTED_SHOWN: Final = 1_000


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


@dataclass(eq=False)
class Overview:
    settings: Settings
    factory: Factory
    registry: Registry
    service: OffsetService
    health: Health
    watch: GroupWatch
    clock: Clock
    threads: ReadThreads
    instance: str
    version: str
    _summed: tuple[object, dict[str, dict[str, Any]]] = (None, {})
    """The watcher's last round, and its groups."""

    @operation("GET", "/v1/overview", answer=OverviewAnswer, needs=no_names)
    async def overview(self, by: Requester, _: object) -> OverviewAnswer:
        """Return the service and every group that it knows, without asking Kafka."""
        view = self.watch.look(by)
        return await self.threads.run(by, lambda: self._overview(by, view))

    @operation("GET", "/v1/draining", answer=DrainingAnswer, needs=no_names)
    async def draining(self, by: Requester, _: object) -> DrainingAnswer:
        """Return the uncommitted offsets, and the seconds left while the service stops."""
        return await self.threads.run(by, lambda: self._draining(by))

    # In a thread

    def _overview(self, by: Requester, view: Mapping[str, GroupLag]) -> OverviewAnswer:
        ready, watch = self.health.state(), self.watch
        managers = seen_managers(self.factory, by)
        held: dict[str, list[ManagerHandle]] = {}
        for each in managers:
            held.setdefault(each.key.group, []).append(each)
        if view is not self._summed[0]:
            self._summed = view, {name: group_summary(group) for name, group in view.items()}
        rows = []
        listed = {name for name in watch.listing if by.sees(name)}
        for name in sorted({*view, *held, *listed}):
            facts = dict(self._summed[1].get(name, {}))
            if (listing := watch.listing.get(name)) is not None:
                facts = {"state": listing.state, "type": listing.type} | facts
            rows.append(_row(name, view.get(name), facts, held.get(name, [])))
        unwatched = listed - view.keys() - held.keys()
        setting, hint = self.settings.watch.groups, None
        if by.sees_everything:
            hint = _hint(setting, sum(watch.listing[name].has_offsets for name in unwatched))
        return OverviewAnswer(
            self.settings.cluster_name,
            self.instance,
            self.version,
            ready.draining,
            ready.ready,
            _reasons(ready),
            len(self.registry.clients()),
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
            _error_for(by, watch.error),
            rows,
            AskingIdentity(by.identity, by.rights.read_only) if by.identity else None,
            _error_for(by, self.health.reload_error),
        )

    def _draining(self, by: Requester) -> DrainingAnswer:
        managers = seen_managers(self.factory, by)
        left = [each for each in managers if each.status().dirty]
        by_s = self.service.drained_by_s
        left_s = None if by_s is None else max(by_s - self.clock.now(), 0.0)
        shown = [manager_view(each) for each in left[:UNCOMMITTED_SHOWN]]
        return DrainingAnswer(by_s is not None, left_s, len(managers), len(left), shown)


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
