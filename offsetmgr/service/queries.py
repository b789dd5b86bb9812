"""The streaming queries that Spark drivers report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from offsetmgr.errors import OverloadedError
from offsetmgr.http.answers import encode
from offsetmgr.service.access import Names, Requester, no_names
from offsetmgr.service.follow import OWNER, FollowedCheckpoint, Follows
from offsetmgr.service.messages import QueriesKept, QueriesQuery, QueriesRequest, StreamingQuery
from offsetmgr.service.openapi import operation
from offsetmgr.service.sessions import Client, QueryReport, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Clock
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.threads import ReadThreads


QUERY_BYTES: Final = 32 * 1024 * 1024
"""Of the streaming queries of all clients in JSON: half of the largest answer."""
OVERHEAD_BYTES: Final = 400
"""Of each query in an answer: its client's name and its time."""


class ReportedQuery(StreamingQuery, frozen=True, kw_only=True):
    """A streaming query, and the client that reported it."""

    client: str
    reported_at: Annotated[float, Meta(description="Seconds since 1970.")]


class QueriesAnswer(Struct, frozen=True):
    queries: list[ReportedQuery]
    followed: Annotated[
        list[FollowedCheckpoint], Meta(description="Of jobs that do not report themselves.")
    ]


def _names_of_queries(asked: QueriesRequest) -> Names:
    return Names(groups={group for query in asked.queries for group in query.groups})


@dataclass(eq=False)
class Queries:
    """The streaming queries that clients have reported, until the lease of each ends."""

    service: OffsetService
    registry: Registry
    clock: Clock
    wall_s: Callable[[float], float]
    """Returns the seconds since 1970 of a time of ``clock``."""
    follows: Follows
    threads: ReadThreads

    @operation("POST", "/v1/queries", QueriesRequest, QueriesKept, needs=_names_of_queries)
    async def report_queries(self, by: Requester, asked: QueriesRequest) -> QueriesKept:
        """Store the client's streaming queries until its lease ends."""
        with self.service.under_way(by) as client:
            size = len(encode(asked.queries)) + OVERHEAD_BYTES * len(asked.queries)
            report = QueryReport(asked.queries, self.clock.now(), size)
            others = [each for each in self.registry.clients() if each is not client]
            mine = [each for each in others if each.identity == client.identity]
            share = self.registry.share(client.identity, QUERY_BYTES)
            for counted, limit, whose in (
                (others, QUERY_BYTES, ""),
                (mine, share, " of one identity"),
            ):
                if report.size + sum(each.queries.size for each in counted) > limit:
                    text = f"the streaming queries{whose} have more than {limit} bytes, the limit"
                    raise OverloadedError(f"{text}; report fewer of them, or shorter errors")
            client.queries = report
        return QueriesKept(len(asked.queries))

    @operation("GET", "/v1/queries", QueriesQuery, QueriesAnswer, needs=no_names)
    async def queries(self, by: Requester, asked: QueriesQuery) -> QueriesAnswer:
        """Return the streaming queries that clients have reported, and those that are followed."""
        followed: list[FollowedCheckpoint] = []
        if asked.client in {None, OWNER}:
            followed = await self.threads.run(by, lambda: self.follows.views(by))
        return QueriesAnswer(
            [
                ReportedQuery(
                    client=client.name,
                    reported_at=round(self.wall_s(client.queries.at_s), 3),
                    **msgspec.structs.asdict(query),
                )
                for client in self.registry.clients()
                if asked.client in {None, client.name}
                for query in client.queries.queries
                if _sees(by, client, query)
            ],
            followed,
        )


def _sees(by: Requester, client: Client, query: StreamingQuery) -> bool:
    """Return True if the query may be shown: by its groups, without any by its client."""
    if query.groups:
        return all(map(by.sees, query.groups))
    return by.sees_everything or client.identity == by.identity
