"""The real service process on a real broker: what many managers cost, and what a request does."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 120.0


class Sidecar:
    """A running service, and one connection to it."""

    def __init__(self, pid: int, address: str) -> None:
        self.process = psutil.Process(pid)
        self.address = address
        self._connection = HTTPConnection(address.removeprefix("http://"), timeout=TIMEOUT_S)
        self._sequence = 0

    def cpu_s(self) -> float:
        """Processor time that the service has used, all of its threads together."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def ask(self, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        """One request on the connection."""
        self._sequence += 1
        headers = {
            "Content-Type": "application/json",
            "Offsetmgr-Client": "bench",
            "Offsetmgr-Sequence": str(self._sequence),
        }
        self._connection.request(method, path, body or None, headers)
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:  # noqa: PLR2004 -- OK
            raise RuntimeError(f"{method} {path}: {answer}")
        return answer


@contextmanager
def sidecar(bootstrap_servers: str) -> Iterator[Sidecar]:
    """``python -m offsetmgr serve``, stopped afterwards."""
    command = [sys.executable, "-m", "offsetmgr", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--bootstrap-servers", bootstrap_servers], stderr=subprocess.PIPE, text=True
    )
    try:
        yield Sidecar(process.pid, _address(process))
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def _address(process: subprocess.Popen[str]) -> str:
    for line in process.stderr or ():
        record = json.loads(line) if line.startswith("{") else {}
        if record.get("event") == "serving":
            return str(record["address"])
    raise RuntimeError("the service did not start")


def many_managers(bootstrap_servers: str, *, groups: int, size: int, batches: int) -> None:
    """Spawn, submit to and commit ``groups`` times ``size`` managers through one connection."""
    table = Table(
        title=f"{groups * size:,} managers in one service, one connection, batches of {size:,}",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("what")
    table.add_column("figure", justify="right")
    with sidecar(bootstrap_servers) as service:
        began = perf_counter()
        wanted = [{"topic": "bench", "partition": number} for number in range(size)]
        for number in range(groups):
            body = json.dumps({"group": f"service-{number}", "partitions": wanted})
            service.ask("POST", "/v1/managers", body.encode())
        for number in range(groups):
            service.ask("GET", f"/v1/initial-offsets?group=service-{number}&wait_s=60")
        table.add_row("spawn, with all initial offsets", f"{perf_counter() - began:.2f} s")
        bodies = [_submit(f"service-{n % groups}", size, n + 1) for n in range(batches)]
        began, cpu_s = perf_counter(), service.cpu_s()
        for body_bytes in bodies:
            service.ask("POST", "/v1/offsets", body_bytes)
        rate = batches * size / (perf_counter() - began)
        table.add_row("offsets submitted, while they are committed", f"{rate:,.0f}/s")
        cost_ms = (service.cpu_s() - cpu_s) / batches * 1000
        table.add_row("processor time of a batch, its commits included", f"{cost_ms:.2f} ms")
        service.ask("POST", "/v1/flush", b'{"timeout_s": 60}')
        took = []
        for number in range(1_000):
            body_bytes = _submit("service-0", 1, batches + number + 1)
            began = perf_counter()
            service.ask("POST", "/v1/offsets", body_bytes)
            took.append(perf_counter() - began)
        table.add_row("round trip of a single submit, median", f"{median(took) * 1000:.2f} ms")
        table.add_row("threads", str(service.process.num_threads()))
        memory_mb = service.process.memory_info().rss / 2**20
        table.add_row("resident memory", f"{memory_mb:,.0f} MB")
    Console(width=110).print(table)


def _submit(group: str, size: int, offset: int) -> bytes:
    offsets = [{"topic": "bench", "partition": n, "offset": offset} for n in range(size)]
    return json.dumps({"group": group, "offsets": offsets}).encode()
