"""A view's recovery, its reads in process and over HTTP.

Reads are measured in turn with a plain loop over the same lmdb store, and with a bare handler of
the same HTTP stack.  Run as a program, it is the server of the HTTP part.
"""

from __future__ import annotations

import http.client
import random
import socket
import subprocess
import sys
import time
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from benchmarks.harness import at_least, filled, in_turn, key_of, report, show
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.streams import codecs
from offsetmgr.streams.serve import view_app
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
        took_s, cpu_s = min(recovery(brokers, table, path) for path in paths)
        rate = ROWS / took_s
        rows = [("recovery", f"{rate:,.0f}/s"), ("of processor time", f"{ROWS / cpu_s:,.0f}/s")]
        show(f"A view of {ROWS:,} rows", ("what", "rate"), rows)
        missed = at_least("recovery", rate, RECOVERY_FLOOR, "rows/s")
        reads = _reads(brokers, table, paths[0], rounds)
        report("Random reads in process", reads, items=READS, unit="reads")
        missed += _floor("reads in process, of a plain loop's rate", reads, READ_FLOOR)
        requests = _requests(brokers, table, paths[0], rounds)
        report("Requests over HTTP, kept-alive", requests, items=REQUESTS, unit="requests")
        return missed + _floor("reads over HTTP, of a bare handler's rate", requests, HTTP_FLOOR)


def _floor(what: str, took: dict[str, list[float]], floor: float) -> list[str]:
    base, ours = (median(each) for each in took.values())
    return at_least(what, base / ours, floor)


def recovery(brokers: str, table: str, path: Path) -> tuple[float, float]:
    """Return the seconds from the start of a new view until it runs, and those of the processor."""
    view = View(brokers, table, codecs.String(), path)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    with view:
        view.wait_until_running(WAIT_S)
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def _reads(brokers: str, table: str, path: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of random reads, by a plain lmdb loop and by a view, in turn."""
    chosen = random.Random(7).sample(range(ROWS), READS)  # noqa: S311 -- the same in each run
    names = [key_of(number, ROWS) for number in chosen]
    keys = [name.encode() for name in names]
    store = LmdbStorage(path)
    with View(brokers, table, codecs.String(), storage=store) as view:
        view.wait_until_running(WAIT_S)

        def plain(_round: int) -> None:
            with store._env.begin(store._rows) as txn:  # noqa: SLF001 -- a process opens it once
                for key in keys:
                    txn.get(key)

        def ours(_round: int) -> None:
            for name in names:
                view.get(name)

        return in_turn({"plain lmdb loop": plain, "view.get": ours}, rounds=rounds)


def _requests(brokers: str, table: str, path: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of requests to a bare handler and to a view, in turn."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.views", brokers, table, str(path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()  # type: ignore[union-attr] # it is a pipe
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:

                def ask(target: str) -> None:
                    for number in range(REQUESTS):
                        connection.request("GET", f"{target}/{key_of(number, ROWS)}")
                        answer = connection.getresponse()
                        answer.read()
                        if answer.status != HTTPStatus.OK:
                            raise RuntimeError(f"{target} answered {answer.status}")

                contestants = {
                    "bare handler": lambda _: ask("/bare"),
                    "GET /v1/keys/KEY": lambda _: ask("/v1/keys"),
                }
                return in_turn(contestants, rounds=rounds)
        finally:
            process.terminate()


def _serve(brokers: str, table: str, path: str, port: str) -> None:
    """Serve a view, and a bare handler beside it; prints a line when it is ready."""

    async def bare(_request: Request) -> Response:
        return Response(b'{"key":"user-00000000","value":"x"}', media_type="application/json")

    with View(brokers, table, codecs.String(), path) as view:
        view.wait_until_running(WAIT_S)
        app = Starlette(routes=[Route("/bare/{key}", bare), Mount("", view_app(view))])
        config = uvicorn.Config(app, access_log=False, log_level="error", lifespan="off")
        with socket.create_server(("127.0.0.1", int(port))) as sock:
            print("ready", flush=True)
            uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    _serve(*sys.argv[1:5])
