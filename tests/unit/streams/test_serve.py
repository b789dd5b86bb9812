"""A view's HTTP application over rows in memory; tests/kafka/test_views.py has the whole."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.answers import PAGE_BYTES
from offsetmgr.http.signals import remember_signals
from offsetmgr.streams import ViewError, codecs
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.rows import TableRows
from offsetmgr.streams.serve import ViewApp, serve
from offsetmgr.streams.view import ViewState, ViewStats
from tests.fork import in_child
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.streams.view import View


class Stopped(TableRows):
    def get(self, key: str) -> Any:
        raise ViewError(f"nothing can be read, not even {key}")


class Late(TableRows):
    topic = "prices"
    state = ViewState.CATCH_UP
    has_caught_up = False

    def stats(self) -> ViewStats:
        return ViewStats(
            "prices", self.state, 1, 0.0, 0.5, stalled=False, error=None, partitions=()
        )


HOSTS: Final = frozenset({"localhost", "[::1]"})
JSON: Final = codecs.Json()


def ask(app: ViewApp, target: str, **headers: str) -> httpx.Response:
    """Return the answer of ``app``."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(target, headers=headers)

    return asyncio.run(asked())


def app_of(
    rows: dict[bytes, bytes],
    codec: Any = JSON,
    kind: type[TableRows] = TableRows,
    tokens: str | None = None,
) -> ViewApp:
    return ViewApp(cast("View", kind(MemoryStorage(rows), codec)), HOSTS, tokens)


def test_wrong_requests_are_answered_with_a_hint() -> None:
    """Bad input, a codec that is not the table's, a view that is not running, another host."""
    rows = {b"a": b"1", b"text": b"hello", b"null": b"null"}
    app = app_of(rows)
    assert ask(app, "/v1/keys/a").json() == {"key": "a", "value": 1}
    assert ask(app, "/v1/keys/a", host="[::1]:8742").status_code == 200
    assert ask(app, "/v1/keys/a", host="evil.example").status_code == 421
    assert ask(app, "/v1/keys/a", origin="http://evil.example").status_code == 403
    assert ask(app, "/v2").status_code == 404
    for target, status, text in (
        ("/v1/keys/text", 500, "serve the view with the codec of the table"),
        ("/v1/rows?prefix=a&limit=b", 400, "limit 'b' does not go with a prefix"),
        ("/v1/rows?key=a", 400, "query 'key' is unknown; give prefix, start, limit or count"),
        ("/v1/rows?count=0", 400, "count '0' is not possible; give 1 to 10000"),
    ):
        answer = ask(app, target)
        assert answer.status_code == status
        assert text in answer.json()["error"]["message"]
    ranged = ask(app_of(rows, codecs.String()), "/v1/rows?start=o&limit=u").json()
    assert ranged["rows"] == [{"key": "text", "value": "hello"}]
    for target, value in (
        ("/v1/keys/null", {"key": "null", "value": None}),  # a row, although its value is None
        ("/v1/rows?prefix=a&limit=", {"rows": [{"key": "a", "value": 1}], "next": None}),
    ):
        assert ask(app, target).json() == value
    missing = ask(app, "/v1/keys/b")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "key_not_found")
    stopped = ask(app_of(rows, kind=Stopped), "/v1/keys/a")
    assert (stopped.status_code, stopped.json()["error"]["code"]) == (503, "stream_view")
    late = app_of(rows, kind=Late)
    for target in ("/v1/keys/a", "/v1/keys/b", "/v1/rows"):  # a row that is missing may still come
        answer = ask(late, target)
        assert answer.status_code == 503
        assert "is catch_up, and has not read all rows: ask" in answer.json()["error"]["message"]
    assert ask(late, "/v1/status").json()["lag"] == 1


def test_a_signal_during_the_start_of_a_view_ends_it() -> None:
    """SIGTERM ended the process, with its status and no line of its log, until the loop ran."""

    def stopped_early() -> None:
        remember_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        with socket.create_server(("127.0.0.1", 0)) as sock:
            serve(app_of({}), sock)

    in_child(stopped_early)


def test_a_page_of_rows_ends_at_its_byte_limit() -> None:
    """However large the rows and ``count`` are; the pages have every row once."""
    sizes = {f"row-{number:02}": 1_000_000 for number in range(20)} | {"wide": 2 * PAGE_BYTES}
    app = app_of({key.encode(): b"x" * size for key, size in sizes.items()}, codecs.String())
    found: dict[str, int] = {}
    start: str | None = ""
    while start is not None:
        answer = ask(app, f"/v1/rows?count=10000&start={start}")
        page = answer.json()
        assert len(answer.content) < PAGE_BYTES + 1_000 or len(page["rows"]) == 1
        found |= {row["key"]: len(row["value"]) for row in page["rows"]}
        start = page["next"]
    assert found == sizes


def test_an_undecodable_row_is_one_bad_row() -> None:
    """The rows next to it are answered, whatever the codec raises, and whatever it returns."""

    class Exiting(codecs.Json):
        def decode(self, data: bytes) -> Any:
            return sys.exit(1) if data == b"exit" else super().decode(data)

    given = {b"a": b"1", b"deep": b"[" * 100_000, b"exit": b"exit", b"text": b"hello", b"z": b"2"}
    rows = ask(app_of(given, Exiting()), "/v1/rows").json()["rows"]
    good = [(row["key"], row["value"]) for row in rows if "error" not in row]
    assert good == [("a", 1), ("z", 2)]
    bad = [row["key"] for row in rows if "cannot be decoded" in row.get("error", "")]
    assert bad == ["deep", "exit", "text"]
    assert ask(app_of(given), "/v1/keys/deep").status_code == 500


def test_pages_go_on_behind_keys_that_are_not_utf_8() -> None:
    """Then the link to the next page has the key's bytes, which its text has not."""
    keys = [b"a", b"\x80a", b"\x80b", b"\xef\xbf\xbd", b"\xff", b"\xff\x01", b"\xff\xff"]
    given = dict.fromkeys(keys, b"1")
    app = app_of(given)
    query = "/v1/rows?count=1&limit=%FF%FF"
    page = ask(app, query).json()
    found = page["rows"]
    while page["next"] is not None:
        page = ask(app, page.get("next_url", f"{query}&start={page['next']}")).json()
        found += page["rows"]
    assert len(found) == len(keys) - 1
    rows = TableRows(MemoryStorage(given), JSON)
    assert rows.to_arrow()["key"].to_pylist().count("\ufffd") == 2
    with pytest.raises(InvalidValueError, match="rows 0 is not possible"):
        next(rows.arrow_batches(0))
    assert len(ask(app, "/v1/rows?prefix=%FF").json()["rows"]) == 3
    assert ask(app, f"/v1/rows?count={'9' * 5_000}").status_code == 400


def test_a_view_with_tokens_refuses_requests_without_one(tmp_path: Path) -> None:
    """Every path, also one that is not there; a changed file counts at the next second."""
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text("first-token-0123456789\nsecond-token-0123456789\n")
    app = app_of({b"a": b"1"}, tokens=str(file))
    for path in ("/v1/keys/a", "/v1/rows", "/v1/status", "/none"):
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}):
            answer = ask(app, path, **given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
    second = {"authorization": "Bearer second-token-0123456789"}
    assert ask(app, "/v1/keys/a", **second).json()["value"] == 1
    file.write_text("first-token-0123456789\n")
    app.refresh()
    eventually(lambda: ask(app, "/v1/keys/a", **second).status_code, 401)
    file.chmod(0o644)
    with pytest.raises(InvalidValueError, match=r"--tokens .* may be read or changed by others"):
        app_of({}, tokens=str(file))
