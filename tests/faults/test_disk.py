"""A disk without room, where the service writes its log."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from tests.faults.support import WAIT_S
from tests.service.support import MEMORY_SERVICE, identity

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES: Final = 10_000
"""More signals than it takes to write a page of log."""

_SERVE: Final = 'mount -t tmpfs -o size=1m disk "$1" && exec "$2" "$3" "$4" 2>"$1/log"'


class SmallDisk:
    """The service with its log on a disk of 1 MB, in a mount namespace that ends with it."""

    def __init__(self, folder: Path) -> None:
        disk, listen = folder / "disk", f"listen=unix://{folder}/o.sock"
        disk.mkdir()
        # Whoever is not root may mount in a user namespace of their own.
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        serve = ("sh", "-c", _SERVE, "sh", str(disk), sys.executable, str(MEMORY_SERVICE), listen)
        self.process = subprocess.Popen(
            ["unshare", *user, "--mount", *serve],
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify")},
        )
        # As the service sees it.
        self.disk = Path(f"/proc/{self.process.pid}/root{disk}")
        self.http = httpx.Client(
            base_url="http://localhost",
            headers=identity("test"),
            transport=httpx.HTTPTransport(uds=str(folder / "o.sock")),
            timeout=WAIT_S,
        )

    def commit(self, offset: int) -> None:
        """Submit, and see it committed."""
        entry = {"topic": "t", "partition": 0, "offset": offset}
        body = {"group": "g", "offsets": [entry], "wait": True, "timeout_s": WAIT_S}
        answer = self.http.post("/v1/offsets", json=body).raise_for_status().json()
        assert answer["uncommitted"] == []

    def fill(self) -> None:
        """Leave no room on the disk."""
        with (self.disk / "fill").open("wb", buffering=0) as filling:
            try:
                while True:
                    filling.write(b"x" * 4096)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 -- any other one is a broken test

    def dropped(self) -> int:
        """Log records that the service says it could not write."""
        found = re.search(
            r"^offsetmgr_dropped_log_records_total (\S+)",
            self.http.get("/metrics").text,
            re.MULTILINE,
        )
        assert found
        return int(float(found[1]))

    def log_more(self) -> None:
        """Make it write a line."""
        self.process.send_signal(signal.SIGHUP)


@pytest.fixture
def small_disk() -> Iterator[SmallDisk]:
    """A service whose log has a disk of its own, and serves."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"{folder}/notify")
        told.settimeout(WAIT_S)
        service = SmallDisk(Path(folder))
        try:
            assert told.recv(100) == b"READY=1"
            yield service
        finally:
            service.http.close()
            service.process.kill()
            service.process.wait(WAIT_S)


@pytest.mark.fault(20)
def test_on_a_full_disk_commits_go_on_and_logs_are_dropped_and_counted(
    small_disk: SmallDisk,
) -> None:
    """As soon as there is room, logs are written again."""
    small_disk.commit(1)
    assert small_disk.dropped() == 0
    small_disk.fill()
    for offset in range(2, _TRIES):
        small_disk.log_more()
        small_disk.commit(offset)
        if small_disk.dropped() > 1:
            break
    dropped = small_disk.dropped()
    assert dropped > 1
    (small_disk.disk / "fill").unlink()
    log = small_disk.disk / "log"
    before = log.read_text().count('"reloaded"')
    for _ in range(_TRIES):
        small_disk.log_more()
        small_disk.commit(_TRIES)
        if log.read_text().count('"reloaded"') > before:
            break
    assert log.read_text().count('"reloaded"') > before
    small_disk.process.send_signal(signal.SIGTERM)
    assert small_disk.process.wait(WAIT_S) == 0
