"""A view's recovery, its reads in process and over HTTP.

Reads are measured in turn with a plain loop over the same lmdb store, and with a bare handler of
the same HTTP stack.
"""

from __future__ import annotations

import http.client
import random
import time
from contextlib import closing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from benchmarks.harness import at_least, filled, in_turn, key_of, report, serving, show
from offsetmgr.streams import codecs
from offsetmgr.streams.serve import ViewApp
from offsetmgr.streams.storage import LmdbStorage
from offsetmgr.streams.view import View

if TYPE_CHECKING:
    from starlette.requests import Request

ROWS: Final = 1_000_000
READS: Final = 200_000
REQUESTS: Final = 3_000
RECOVERY_FLOOR: Final = 150_000
"""Rows a second."""
READ_FLOOR: Final = 0.6
"""Of the plain loop's rate."""
HTTP_FLOOR: Final = 0.7
"""Of the bare handler's rate."""
WAIT_S: Final = 600.0


def run(brokers: str, rounds: int) -> list[str]:
    table = filled(brokers, ROWS, ROWS)
    with TemporaryDirectory(prefix="offsetmgr-views-") as folder:
        paths = [Path(folder) / f"view-{number}" for number in range(rounds)]
        rate = ROWS / min(recovery_s(brokers, table, path) for path in paths)
        show(f"A view of {ROWS:,} rows", ("what", "rate"), [("recovery", f"{rate:,.0f}/s")])
        missed = at_least("recovery", rate, RECOVERY_FLOOR, "rows/s")
        store = LmdbStorage(paths[0])
        with View(brokers, table, codecs.String(), storage=store) as view:
            view.wait_until_running(WAIT_S)
            reads = _reads(view, store, rounds)
            report("Random reads in process", reads, items=READS, unit="reads")
            missed += _floor("reads in process, of a plain loop's rate", reads, READ_FLOOR)
            requests = _requests(view, rounds)
            report("Requests over HTTP, kept-alive", requests, items=REQUESTS, unit="requests")
            missed += _floor("reads over HTTP, of a bare handler's rate", requests, HTTP_FLOOR)
    return missed


def _floor(what: str, took: dict[str, list[float]], floor: float) -> list[str]:
    base, ours = (median(each) for each in took.values())
    return at_least(what, base / ours, floor)


def recovery_s(brokers: str, table: str, path: Path) -> float:
    """Return the seconds from the start of a new view until it runs."""
    view = View(brokers, table, codecs.String(), path)
    began_s = time.perf_counter()
    with view:
        view.wait_until_running(WAIT_S)
        return time.perf_counter() - began_s


def _reads(view: View, store: LmdbStorage, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of random reads, by a plain lmdb loop and by a view, in turn."""
    chosen = random.Random(7).sample(range(ROWS), READS)  # noqa: S311 -- the same in each run
    names = [key_of(number, ROWS) for number in chosen]
    keys = [name.encode() for name in names]

    def plain(_round: int) -> None:
        with store._env.begin(store._rows) as txn:  # noqa: SLF001 -- a process opens it once
            for key in keys:
                txn.get(key)

    def ours(_round: int) -> None:
        for name in names:
            view.get(name)

    return in_turn({"plain lmdb loop": plain, "view.get": ours}, rounds=rounds)


def _requests(view: View, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of requests to a bare handler and to a view, in turn."""

    async def bare(_request: Request) -> Response:
        return Response(b'{"key":"user-00000000","value":"x"}', media_type="application/json")

    app = Starlette(routes=[Route("/bare/{key}", bare), Mount("", ViewApp(view))])
    with serving(app) as address:
        host = address.removeprefix("http://")
        with closing(http.client.HTTPConnection(host)) as connection:

            def ask(target: str, _round: int) -> None:
                for number in range(REQUESTS):
                    connection.request("GET", f"{target}/{key_of(number, ROWS)}")
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status != HTTPStatus.OK:
                        raise RuntimeError(f"{target} answered {answer.status}")

            targets = {"bare handler": "/bare", "GET /v1/keys/KEY": "/v1/keys"}
            asked = {name: partial(ask, target) for name, target in targets.items()}
            return in_turn(asked, rounds=rounds)
