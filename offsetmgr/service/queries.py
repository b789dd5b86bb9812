"""The streaming queries that Spark drivers report."""

from __future__ import annotations

from itertools import starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from offsetmgr.errors import OverloadedError
from offsetmgr.http.answers import encode, page_of
from offsetmgr.service.errors import bad_cursor
from offsetmgr.service.messages import (
    Next,
    QueriesKept,
    QueriesQuery,
    QueriesRequest,
    StreamingQuery,
)
from offsetmgr.service.openapi import operation
from offsetmgr.service.rights import Names, no_names
from offsetmgr.service.sessions import QueryReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Clock
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.rights import Requester
    from offsetmgr.service.sessions import Client, Registry


QUERY_BYTES: Final = 16 * 1024 * 1024
"""Of the streaming queries of all clients, in JSON."""


class ReportedQuery(StreamingQuery, frozen=True, kw_only=True):
    """A streaming query, and the client that reported it."""

    client: str
    reported_at: Annotated[float, Meta(description="Seconds since 1970.")]


class QueriesAnswer(Struct, frozen=True):
    """A page of streaming queries, by client, in the order of its report."""

    queries: list[ReportedQuery]
    next: Next


def _names_of_queries(asked: QueriesRequest) -> Names:
    return Names(groups={group for query in asked.queries for group in query.groups})


class Queries:
    """The streaming queries that clients have reported, until the lease of each ends."""

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
            report = QueryReport(asked.queries, self._clock.now(), len(encode(asked.queries)))
            others = [each for each in self._registry.clients() if each is not client]
            mine = [each for each in others if each.identity == client.identity]
            share = self._registry.share(client.identity, QUERY_BYTES)
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
        """Return a page of the streaming queries that clients have reported."""
        after = None if asked.after is None else _read_cursor(asked.after)
        found = [
            (client.name, number, client.queries.at_s, query)
            for client in self._registry.clients()
            if asked.client in {None, client.name}
            for number, query in enumerate(client.queries.queries)
            if (after is None or (client.name, number) > after) and _sees(by, client, query)
        ]
        found.sort(key=itemgetter(0, 1))
        page, following = page_of(starmap(self._reported, found), asked.limit)
        name, number, *_ = found[len(page) - 1] if page else ("", 0)
        return QueriesAnswer(page, None if following is None else f"{number}/{name}")

    def _reported(self, name: str, _: int, at_s: float, query: StreamingQuery) -> ReportedQuery:
        at_s = round(self._wall_s(at_s), 3)
        return ReportedQuery(client=name, reported_at=at_s, **msgspec.structs.asdict(query))


def _read_cursor(text: str) -> tuple[str, int]:
    """Return client and number of the last query of the page before.

    Raises InvalidValueError.
    """
    number, _, name = text.partition("/")
    if not (name and number.isascii() and number.isdecimal()):
        raise bad_cursor(text)
    return name, int(number)


def _sees(by: Requester, client: Client, query: StreamingQuery) -> bool:
    """Return True if the query may be shown: by its groups, without any by its client."""
    if query.groups:
        return all(map(by.sees, query.groups))
    return by.sees_everything or client.identity == by.identity
