"""``python -m benchmarks.views``: a view's recovery, its reads in process and over HTTP.

Reads are measured in turn with a plain loop over the same lmdb store, and with a bare handler of
the same HTTP stack.  ``--serve PATH`` is the server of the HTTP part.
"""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from http import HTTPStatus
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import uvicorn
from confluent_kafka import Producer
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from benchmarks.harness import at_least, end, in_turn, parser, show
from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.command import create_topic
from offsetmgr.service.run import listening
from offsetmgr.service.settings import Address
from offsetmgr.streams import codecs
from offsetmgr.streams.kafka import PARTITIONER
from offsetmgr.streams.serve import view_app
from offsetmgr.streams.storage import LmdbStorage
from offsetmgr.streams.view import View

if TYPE_CHECKING:
    from starlette.requests import Request

PARTITIONS: Final = 4
RECOVERY_FLOOR: Final = 150_000
"""Rows a second."""
READ_FLOOR: Final = 0.6
"""Of the plain loop's rate."""
HTTP_FLOOR: Final = 0.7
"""Of the bare handler's rate."""
TABLE: Final = "bench-table"
WAIT_S: Final = 600.0
_POLLED: Final = 1_000


def key_of(number: int) -> str:
    return f"user-{number * 7919 % 10_000_000:08}"


def fill(brokers: str, rows: int) -> None:
    """Write the table, once."""
    create_topic(brokers, TABLE, PARTITIONS)
    producer = Producer({"bootstrap.servers": brokers, "partitioner": PARTITIONER})
    value = b"x" * 100
    for number in range(rows):
        if number % _POLLED == 0:
            producer.poll(0)
        try:
            producer.produce(TABLE, value, key_of(number))
        except BufferError:
            producer.poll(1.0)
            producer.produce(TABLE, value, key_of(number))
    producer.flush()


def recover(brokers: str, path: Path) -> tuple[float, float]:
    """Return the seconds from the start of a new view until it runs, and those of the processor."""
    view = View(brokers, TABLE, codecs.String(), path)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    with view:
        view.wait_until_running(WAIT_S)
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def reads(brokers: str, path: Path, rows: int, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of random reads, by a plain lmdb loop and by a view, in turn."""
    chosen = random.Random(7).sample(range(rows), count)  # noqa: S311 -- the same in each run
    names = [key_of(number) for number in chosen]
    keys = [name.encode() for name in names]
    store = LmdbStorage(path)
    with View(brokers, TABLE, codecs.String(), storage=store) as view:
        view.wait_until_running(WAIT_S)

        def plain(_round: int) -> None:
            with store._env.begin(store._rows) as txn:  # noqa: SLF001 -- a process opens it once
                for key in keys:
                    txn.get(key)

        def ours(_round: int) -> None:
            for name in names:
                view.get(name)

        return in_turn({"plain lmdb loop": plain, "view.get": ours}, rounds=rounds)


def serve(brokers: str, path: str) -> None:
    """Serve a view, and a bare handler beside it; prints the port."""

    async def bare(_request: Request) -> Response:
        return Response(b'{"key":"user-00000000","value":"x"}', media_type="application/json")

    view = View(brokers, TABLE, codecs.String(), path)
    with view, listening(Address.parse("127.0.0.1:0")) as (sock, url):
        view.wait_until_running(WAIT_S)
        hosts = Address.parse("127.0.0.1:0").hosts()
        app = Starlette(routes=[Route("/bare/{key}", bare), Mount("", view_app(view, hosts))])
        config = uvicorn.Config(app, access_log=False, log_level="error", lifespan="off")
        print(url.rpartition(":")[2], flush=True)
        uvicorn.Server(config).run(sockets=[sock])


def over_http(
    brokers: str, path: Path, rows: int, count: int, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of kept-alive requests to a bare handler and to a view, in turn."""
    command = [sys.executable, "-m", "benchmarks.views", "--brokers", brokers, "--serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())  # type: ignore[union-attr] # it is a pipe
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:

                def ask(target: str) -> None:
                    for number in range(count):
                        connection.request("GET", f"{target}/{key_of(number % rows)}")
                        answer = connection.getresponse()
                        answer.read()
                        if answer.status != HTTPStatus.OK:
                            raise RuntimeError(f"{target} answered {answer.status}")

                return in_turn(
                    {
                        "bare handler": lambda _: ask("/bare"),
                        "GET /v1/keys/KEY": lambda _: ask("/v1/keys"),
                    },
                    rounds=rounds,
                )
        finally:
            process.terminate()


def main() -> int:
    """Measure on a broker of its own, or on ``--brokers``; return the exit status."""
    arguments = parser("benchmarks.views", __doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000, help="of the table (1 million)")
    arguments.add_argument("--rounds", type=int, default=3, help="of each contestant (3)")
    arguments.add_argument("--serve", metavar="PATH", help="serve the view stored there")
    options = arguments.parse_args()
    if options.serve:
        serve(options.brokers, options.serve)
        return 0
    rows, rounds = options.rows, options.rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="offsetmgr-views-")))
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        fill(brokers, rows)
        paths = [folder / f"view-{number}" for number in range(rounds)]
        recovery_s, cpu_s = min(recover(brokers, path) for path in paths)
        read = reads(brokers, paths[0], rows, min(rows, 200_000), rounds)
        asked = over_http(brokers, paths[0], rows, 3_000, rounds)
    rate = rows / recovery_s
    shown = [("recovery", f"{rows:,}", f"{rate:,.0f}/s", "")]
    shown.append(("recovery, of processor time", f"{rows:,}", f"{rows / cpu_s:,.0f}/s", ""))
    ratios = []
    for results, count in ((read, min(rows, 200_000)), (asked, 3_000)):
        base = median(next(iter(results.values())))
        for name, took in results.items():
            part = base / median(took)
            shown.append((name, f"{count:,}", f"{count / median(took):,.0f}/s", f"{part:.2f}"))
        ratios.append(part)
    show("A view", ("what", "rows", "rate", "of baseline"), shown)
    missed = at_least("recovery", rate, RECOVERY_FLOOR, "rows/s")
    missed += at_least("reads in process, of a plain loop's rate", ratios[0], READ_FLOOR)
    missed += at_least("reads over HTTP, of a bare handler's rate", ratios[1], HTTP_FLOOR)
    return end(missed)


if __name__ == "__main__":
    sys.exit(main())
