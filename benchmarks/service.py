"""The real service process on a real broker: what many managers cost, and what a request does."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import psutil

from benchmarks.harness import TIMEOUT_S, TOPIC, at_least, cpu_s, in_turn, report, resident_mb, show
from offsetmgr.client import OffsetClient
from tests.service.support import ServeProcess, identity, serve_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OFFSETS_PER_S = 250_000
SINGLE_SUBMITS = 1_000


@contextmanager
def sidecar(brokers: str, **settings: object) -> Iterator[ServeProcess]:
    """Run ``offsetmgr serve`` with these settings; kill it afterwards if it still runs."""
    options = ["--listen", "127.0.0.1:0", "--bootstrap-servers", brokers]
    options += [f"--set={name}={value}" for name, value in settings.items()]
    with serve_process(*options) as service:
        service.wait_for("serving")
        yield service


def run(brokers: str, rounds: int) -> list[str]:
    missed = _many_managers(brokers, groups=10, size=1_000, batches=300)
    _fence(brokers, commits=100, rounds=rounds)
    return missed


def _many_managers(bootstrap_servers: str, *, groups: int, size: int, batches: int) -> list[str]:
    """Spawn, submit to and commit ``groups`` times ``size`` managers through one connection."""
    with sidecar(bootstrap_servers) as service:
        connection = HTTPConnection(service.address.removeprefix("http://"), timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json", **identity("bench")}

        def ask(method: str, path: str, body: bytes = b"") -> None:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != HTTPStatus.OK:
                raise RuntimeError(f"{method} {path}: {answer}")

        stats = psutil.Process(service.process.pid)
        began = perf_counter()
        wanted = [{"topic": TOPIC, "partition": number} for number in range(size)]
        for number in range(groups):
            body = json.dumps({"group": f"service-{number}", "partitions": wanted})
            ask("POST", "/v1/managers", body.encode())
        for number in range(groups):
            ask("GET", f"/v1/initial-offsets?group=service-{number}&wait_s=60")
        spawned_s = perf_counter() - began
        bodies = [_submit(f"service-{n % groups}", size, n + 1) for n in range(batches)]
        began, before_s = perf_counter(), cpu_s(stats)
        for each in bodies:
            ask("POST", "/v1/offsets", each)
        rate = batches * size / (perf_counter() - began)
        batch_ms = (cpu_s(stats) - before_s) / batches * 1000
        ask("POST", "/v1/flush", b'{"timeout_s": 60}')
        took_s = []
        for number in range(SINGLE_SUBMITS):
            single = _submit("service-0", 1, batches + number + 1)
            began = perf_counter()
            ask("POST", "/v1/offsets", single)
            took_s.append(perf_counter() - began)
        rows = [
            ("spawn, with all initial offsets", f"{spawned_s:.2f} s"),
            ("offsets submitted, while they are committed", f"{rate:,.0f}/s"),
            ("processor time of a batch, its commits included", f"{batch_ms:.2f} ms"),
            ("round trip of a single submit, median", f"{median(took_s) * 1000:.2f} ms"),
            ("threads", str(stats.num_threads())),
            ("resident memory", f"{resident_mb(stats):,.0f} MB"),
        ]
    title = f"{groups * size:,} managers in one service, one connection, batches of {size:,}"
    show(title, ("what", "figure"), rows)
    return at_least("offsets through the service", rate, OFFSETS_PER_S, "per second")


def _fence(bootstrap_servers: str, *, commits: int, rounds: int) -> None:
    """Commits of one group, each waited for, without the fence and with it."""
    with (
        sidecar(bootstrap_servers) as plain,
        sidecar(bootstrap_servers, fence="true") as fenced,
        OffsetClient(plain.address) as plain_client,
        OffsetClient(fenced.address) as fenced_client,
    ):

        def run(client: OffsetClient, group: str) -> Callable[[int], None]:
            def commit(number: int) -> None:
                for at in range(number * commits, (number + 1) * commits):
                    client.submit(group, {(TOPIC, 0): at}, sync=True, timeout=TIMEOUT_S)

            return commit

        plain_run, fenced_run = run(plain_client, "bench-plain"), run(fenced_client, "bench-fenced")
        results = in_turn({"plain": plain_run, "fence = true": fenced_run}, rounds=rounds)
    report(f"{commits} commits of one group, one by one", results, items=commits, unit="commits")


def _submit(group: str, size: int, offset: int) -> bytes:
    offsets = [{"topic": TOPIC, "partition": n, "offset": offset} for n in range(size)]
    return json.dumps({"group": group, "offsets": offsets}).encode()
