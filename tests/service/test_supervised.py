"""The service under a supervisor: systemd's sockets, probes, its last client."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from offsetmgr import OffsetClient
from offsetmgr.client import health
from offsetmgr.http.server import SWEEP_INTERVAL_S
from tests.service.support import MEMORY_SERVICE, WAIT_S, ServeProcess, memory_process

GOOD = {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 7}]}

# Hands a listening socket on as systemd does, to the process that it becomes.
_AS_SYSTEMD = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
os.dup2(sock.fileno(), 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def activated(path: str, listen: str) -> ServeProcess:
    """A service that is given a socket at ``path`` and told to listen on another or the same."""
    command = ["-c", _AS_SYSTEMD, path, str(MEMORY_SERVICE), f"listen=unix://{listen}"]
    return ServeProcess(command, fresh=True)


def test_a_socket_of_systemd_is_served_as_it_is() -> None:
    """With the mode that the unit has given it, so that a group of users can use it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "o.sock"
        with activated(str(path), str(path)) as service:
            assert service.started()
            path.chmod(0o660)
            with service.http() as http:
                assert http.post("/v1/offsets", json=GOOD).json()["accepted"] == 1
            assert service.stop() == 0
        assert path.stat().st_mode & 0o777 == 0o660


def test_a_socket_of_systemd_at_another_path_is_refused() -> None:
    """The error names both addresses."""
    with TemporaryDirectory() as folder:
        given, wanted = f"{folder}/given.sock", f"{folder}/wanted.sock"
        with activated(given, wanted) as service:
            assert service.wait() == 1
        text = "".join(service.lines)
        assert given in text
        assert wanted in text


def test_the_probe_tells_a_living_service_from_a_dead_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit status is 0, also while Kafka is away: a restart would not bring that back."""
    # A socket that systemd has passed to a parent process is the parent's.
    env = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    with TemporaryDirectory() as folder:
        url = f"unix://{folder}/o.sock"
        options = "stalled", f"listen={url}", "stop_timeout_s=1"
        with memory_process(*options, env=env) as service:
            assert service.address == url
            assert health.main([url]) == 0
            assert service.stop() == 0
        assert health.main([url]) == 1
        assert "cannot be reached: connection refused" in capsys.readouterr().err


def runs_on(service: ServeProcess) -> bool:
    """True if the service is there after it has looked for its clients."""
    with pytest.raises(subprocess.TimeoutExpired):
        service.process.wait(2 * SWEEP_INTERVAL_S)
    return True


def test_it_ends_when_its_last_client_has_closed() -> None:
    """Not before the first has come, nor with the first of two that closes; with status 0."""
    with memory_process("exit_after_last_client_s=0.1", "lease_s=3600") as service:
        assert service.started()
        assert runs_on(service)
        with (
            OffsetClient(service.address, "first") as first,
            OffsetClient(service.address, "second") as second,
        ):
            first.submit("g", {("t", 0): 7}, sync=True, timeout=WAIT_S)
            second.submit("g", {("t", 1): 7}, sync=True, timeout=WAIT_S)
            first.close(timeout=WAIT_S)
            assert runs_on(service)
            second.submit("g", {("t", 1): 8}, sync=True, timeout=WAIT_S)
            second.close(timeout=WAIT_S)
        assert service.wait() == 0
        assert service.wait_for("last_client_left")["grace_s"] == 0.1


def test_it_ends_when_its_last_client_was_killed() -> None:
    """Its lease has to lapse first; what it had submitted is committed."""
    options = "exit_after_last_client_s=1", "lease_s=2", "commit.commit_interval_s=60"
    with memory_process(*options) as service:
        with service.http("driver") as driver:
            driver.post("/v1/offsets", json=GOOD).raise_for_status()
        assert service.wait() == 0
        assert service.wait_for("client_lapsed")["managers"] == 1
        assert service.wait_for("drained")["uncommitted"] == 0
