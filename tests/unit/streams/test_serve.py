"""A view's HTTP application over rows in memory; tests/kafka/test_views.py has the whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import httpx

from offsetmgr.streams import ViewError, codecs
from offsetmgr.streams.rows import TableRows
from offsetmgr.streams.serve import view_app
from offsetmgr.streams.storage import MemoryStorage

if TYPE_CHECKING:
    from offsetmgr.streams.view import View


class Stopped(TableRows):
    def get(self, key: str) -> Any:
        raise ViewError(f"nothing can be read, not even {key}")


def ask(rows: TableRows, target: str, host: str = "localhost:8742") -> httpx.Response:
    """Return the answer of an application that takes localhost alone."""
    app = view_app(cast("View", rows), {"localhost", "[::1]"})

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(target, headers={"Host": host})

    return asyncio.run(asked())


def test_wrong_requests_say_what_to_do() -> None:
    """Bad input, a codec that is not the table's, a view that is not running, another host."""
    storage = MemoryStorage()
    storage.apply({b"a": b"1", b"text": b"hello"}, {})
    rows = TableRows(storage, codecs.Json())
    assert ask(rows, "/v1/keys/a").json() == {"key": "a", "value": 1}
    assert ask(rows, "/v1/keys/a", host="[::1]:8742").status_code == 200
    assert ask(rows, "/v1/keys/a", host="evil.example").status_code == 400
    for target, status, text in (
        ("/v1/keys/text", 500, "serve the view with the codec of the table"),
        ("/v1/rows?prefix=a&limit=b", 400, "limit 'b' does not go with a prefix"),
        ("/v1/rows?key=a", 400, "query 'key' is unknown; give prefix, start, limit or count"),
    ):
        answer = ask(rows, target)
        assert answer.status_code == status
        assert text in answer.json()["error"]["message"]
    stopped = ask(Stopped(storage, codecs.Json()), "/v1/keys/a")
    assert (stopped.status_code, stopped.json()["error"]["code"]) == (503, "stream_view")
