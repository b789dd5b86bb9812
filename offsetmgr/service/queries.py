"""The streaming queries that Spark drivers report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from offsetmgr.service.messages import QueriesKept, QueriesQuery, QueriesRequest, StreamingQuery
from offsetmgr.service.openapi import operation
from offsetmgr.service.rights import Names, no_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Clock
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.rights import Requester
    from offsetmgr.service.sessions import Client, Registry


class ReportedQuery(StreamingQuery, frozen=True, kw_only=True):
    """A streaming query, and the client that reported it."""

    client: str
    reported_at: Annotated[float, Meta(description="Seconds since 1970.")]


class QueriesAnswer(Struct, frozen=True):
    queries: list[ReportedQuery]


def _names_of_queries(asked: QueriesRequest) -> Names:
    return Names(groups={group for query in asked.queries for group in query.groups})


class Queries:
    """What the clients have reported, until the lease of each ends."""

    def __init__(
        self,
        service: OffsetService,
        registry: Registry,
        clock: Clock,
        wall_s: Callable[[float], float],
    ) -> None:
        """``wall_s`` returns the seconds since 1970 of a time of ``clock``."""
        self._service = service
        self._registry = registry
        self._clock = clock
        self._wall_s = wall_s

    @operation("POST", "/v1/queries", QueriesRequest, QueriesKept, needs=_names_of_queries)
    async def report_queries(self, by: Requester, asked: QueriesRequest) -> QueriesKept:
        """Store the client's streaming queries until its lease ends."""
        with self._service.under_way(by) as client:
            client.queries = (asked.queries, self._clock.now())
        return QueriesKept(len(asked.queries))

    @operation("GET", "/v1/queries", QueriesQuery, QueriesAnswer, needs=no_names)
    async def queries(self, by: Requester, asked: QueriesQuery) -> QueriesAnswer:
        """Return the streaming queries that clients have reported."""
        found = []
        for client in self._registry.clients():
            if asked.client in {None, client.name}:
                reported, at_s = client.queries
                found += [
                    ReportedQuery(
                        client=client.name,
                        reported_at=round(self._wall_s(at_s), 3),
                        **msgspec.structs.asdict(query),
                    )
                    for query in reported
                    if _sees(by, client, query)
                ]
        return QueriesAnswer(found)


def _sees(by: Requester, client: Client, query: StreamingQuery) -> bool:
    """Return True if the query may be shown: by its groups, without any by its client."""
    if query.groups:
        return all(map(by.sees, query.groups))
    return by.sees_everything or client.name.startswith(f"{by.identity}/")
