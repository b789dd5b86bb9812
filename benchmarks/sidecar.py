"""The real service as a process, for what is measured from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from benchmarks.harness import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_S = 0.05


class Sidecar:
    """A running service."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.stats = psutil.Process(process.pid)
        self.address = self._wait_for_address()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            self.check()
            for line in self._log.read_text().splitlines():
                record = json.loads(line) if line.startswith("{") else {}
                if record.get("event") == "serving":
                    return str(record["address"])
            time.sleep(POLL_S)
        raise RuntimeError(f"the service did not start within {TIMEOUT_S:g} s:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-20:])

    def check(self) -> None:
        """Raise RuntimeError where it has ended."""
        status = self._process.poll()
        if status is not None:
            raise RuntimeError(f"the service ended by itself (status {status}):\n{self._tail()}")

    def cpu_s(self) -> float:
        """Return the processor time it has used, all of its threads together."""
        times = self.stats.cpu_times()
        return float(times.user + times.system)

    def rss_mb(self) -> float:
        """Return its resident memory."""
        return float(self.stats.memory_info().rss) / 2**20

    def stop(self) -> None:
        """Ask it to drain.  Raises RuntimeError where it leaves something behind."""
        self.check()
        self._process.terminate()
        status = self._process.wait(TIMEOUT_S)
        if status != 0:
            raise RuntimeError(f"the service stopped with status {status}:\n{self._tail()}")


@contextmanager
def sidecar(bootstrap_servers: str, **settings: object) -> Iterator[Sidecar]:
    """Run ``offsetmgr serve`` with these settings; kill it afterwards where it still runs."""
    command = [sys.executable, "-m", "offsetmgr", "serve", "--listen", "127.0.0.1:0"]
    command += ["--bootstrap-servers", bootstrap_servers]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with TemporaryDirectory(prefix="offsetmgr-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stderr=stderr)
        try:
            yield Sidecar(process, log)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
