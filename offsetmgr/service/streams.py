"""Views and stream processors, as ``offsetmgr streams status`` shows them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from offsetmgr.admin.service import ServiceReader
from offsetmgr.errors import OffsetManagerError
from offsetmgr.service.access import asker
from offsetmgr.service.messages import Query
from offsetmgr.service.openapi import operation

if TYPE_CHECKING:
    from offsetmgr.service.messages import Caller
    from offsetmgr.service.settings import Settings
    from offsetmgr.service.watch import GroupWatch

VIEW_TIMEOUT_S: Final = 2.0

_UNKNOWN_VIEW: Final[dict[str, Any]] = {
    "topic": None,
    "state": None,
    "lag": None,
    "rows_per_s": None,
    "recovery": None,
    "stalled": None,
    "partitions": [],
}


class StreamsAnswer(Struct, frozen=True):
    """Views and processors, as `offsetmgr streams status --json` prints them."""

    views: list[dict[str, Any]]
    processors: list[dict[str, Any]]


class Streams:
    def __init__(self, settings: Settings, watch: GroupWatch) -> None:
        self._urls = settings.streams
        self._watch = watch

    @operation("GET", "/v1/streams", Query, StreamsAnswer)
    async def streams(self, _: Caller | None, __: Query) -> StreamsAnswer:
        """Return the views of the setting ``streams``, and processors among the watched groups."""
        in_worker = self._watch.in_worker
        views = asyncio.gather(*(in_worker(partial(_view, url)) for url in self._urls))
        seen = [each for each in await views if asker().sees(None, each["topic"])]
        return StreamsAnswer(seen, await in_worker(self._processors))

    def _processors(self) -> list[dict[str, Any]]:
        from offsetmgr.streams.status import tables_of  # noqa: PLC0415 -- only where asked for

        view = self._watch.look()
        tables = tables_of(self._watch.reader(), view) if view else {}
        found = self._watch.report({group: view[group] for group in tables})
        return [{**each, "table": tables[each["name"]]} for each in found]


def _view(url: str) -> dict[str, Any]:
    try:
        status = ServiceReader(url, VIEW_TIMEOUT_S).ask("GET", "/v1/status")
    except OffsetManagerError as error:
        return {"url": url, **_UNKNOWN_VIEW, "error": str(error)}
    return {"url": url, **status}
