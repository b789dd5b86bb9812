"""The real service as a process, for what is measured from outside."""

from __future__ import annotations

import signal
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from benchmarks.harness import TIMEOUT_S
from offsetmgr.client import OffsetClient
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.devkafka.process import WatchedProcess, log_tail

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sidecar:
    """A running service."""

    def __init__(self, process: WatchedProcess, address: str) -> None:
        self.address = address
        self.stats = psutil.Process(process.pid)
        self._process = process

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        if not self._process.running():
            how = f"{self._process.end()}; {log_tail(self._process.log_path)}"
            raise RuntimeError(f"the service ended by itself: {how}")

    def stop(self) -> None:
        """Ask it to drain.  Raises RuntimeError if it leaves something behind."""
        self.check()
        self._process.signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)
        if self._process.status() != 0:
            raise RuntimeError(f"the service did not stop well; {log_tail(self._process.log_path)}")


@contextmanager
def sidecar(brokers: str, **settings: object) -> Iterator[Sidecar]:
    """Run ``offsetmgr serve`` with these settings; kill it afterwards if it still runs."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "offsetmgr", "serve", "--listen", listen]
    command += ["--bootstrap-servers", brokers]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with TemporaryDirectory(prefix="offsetmgr-bench-") as folder:
        process = WatchedProcess(command, cwd=Path.cwd(), log_path=Path(folder) / "log")
        with closing(process):
            service = Sidecar(process, f"http://{listen}")
            with OffsetClient(service.address) as client:
                client.topic_names(timeout=TIMEOUT_S)  # it waits for the service
            yield service
