"""The service as a process: start, signals, supervisors, exit status, and what it says."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from offsetmgr import OffsetClient
from offsetmgr.cli.app import app
from offsetmgr.client import health
from offsetmgr.http.server import SWEEP_INTERVAL_S
from offsetmgr.service.run import SLOW_READS
from tests.service.support import (
    MEMORY_SERVICE,
    NO_AUTHORITIES,
    ROOT,
    ServeProcess,
    memory_process,
    serve_process,
)
from tests.waiting import WAIT_S

GOOD = {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 7}]}


def test_signals_of_an_operator(tmp_path: Path) -> None:
    """SIGUSR1 shows all stacks, SIGHUP reads the log level again, SIGINT drains as SIGTERM does.

    A configuration that broke meanwhile changes nothing, and its secrets are not in the log.  One
    that cannot be read to its end, however often, holds up neither requests nor the next reload.
    """
    config = tmp_path / "o.toml"
    config.write_text('log_level = "info"\n')
    with memory_process(env={"OFFSETMGR_CONFIG": str(config)}) as service:
        assert service.address
        service.process.send_signal(signal.SIGUSR1)
        config.write_text("log_level = 7\n")
        service.process.send_signal(signal.SIGHUP)
        assert str(config) in service.wait_for("reload_failed")["error"]
        config.write_text('sasl.password = "canary-4711"\n')
        service.process.send_signal(signal.SIGHUP)
        assert "sasl.password" in service.wait_for("reload_failed", 2)["error"]
        config.write_text('log_level = "debug"\n')
        service.process.send_signal(signal.SIGHUP)
        assert service.wait_for("reloaded")["log_level"] == "debug"
        config.unlink()
        os.mkfifo(config)
        with service.http() as client:
            for _ in range(SLOW_READS):
                service.process.send_signal(signal.SIGHUP)
                assert client.get("/livez").status_code == 200
        config.unlink()
        config.touch()
        service.process.send_signal(signal.SIGHUP)
        assert service.wait_for("reloaded", 2)["log_level"] == "info"
        assert service.stop([signal.SIGINT]) == 0
        log = "".join(service.lines)
        assert "canary-4711" not in log
        assert "Thread 0x" in log
        assert "Current thread 0x" in log


def test_a_unix_socket_serves_its_owner_and_sigterm_commits() -> None:
    """0600, any Host; the one of a process that is gone is replaced.

    An offset submitted a moment before is in Kafka when the process is gone, with status 0.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "o.sock"
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
        options = f"listen=unix://{path}", "commit.commit_interval_s=60"
        with memory_process(*options) as service:
            assert service.address == f"unix://{path}"
            with service.http() as client:
                answer = client.post("/v1/offsets", json=GOOD, headers={"Host": "anything"})
                assert answer.status_code == 200
            assert path.stat().st_mode & 0o777 == 0o600
            path.unlink()  # as a cleaner of old files does; it went deaf in silence
            assert service.wait_for("socket_lost")["path"] == str(path)
            assert service.stop() == 0
            assert service.wait_for("drained")["uncommitted"] == 0


@pytest.mark.parametrize("early", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_is_handled_after_it(
    tmp_path: Path, early: signal.Signals
) -> None:
    """It ended the process, without a line of its log, or was lost."""
    config = tmp_path / "o.toml"
    os.mkfifo(config)
    text = 'listen = "127.0.0.1:0"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'
    with serve_process("--config", str(config)) as service:
        with config.open("w") as pipe:  # once the service has opened it as well
            service.process.send_signal(early)
            config.unlink()
            config.write_text(text)
            pipe.write(text)
        if early is signal.SIGHUP:
            assert service.wait_for("reloaded")
            service.process.send_signal(signal.SIGTERM)
        assert service.wait() == 0
        assert service.wait_for("drained")["uncommitted"] == 0


def test_a_port_in_use_is_one_line_and_exit_1() -> None:
    """Before Kafka is asked for anything."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--listen", f"127.0.0.1:{port}", "--bootstrap-servers", "127.0.0.1:1"]
        with serve_process(*options) as service:
            assert service.wait() == 1
            (line,) = service.lines
            assert f"127.0.0.1:{port}' is in use" in line


@pytest.mark.fault(32)
def test_systemd_is_notified_of_each_phase() -> None:
    """READY when it serves, STOPPING when it drains; its watchdog as often as it wants.

    A second signal does not wait for Kafka.
    """
    with (
        TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        address = str(Path(folder) / "notify.sock")
        systemd.bind(address)
        systemd.settimeout(60)
        env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "150000"}
        with memory_process("stalled", "stop_timeout_s=600", env=env) as service:
            assert systemd.recv(100) == b"READY=1"
            with service.http() as client:
                client.post("/v1/offsets", json=GOOD).raise_for_status()
            systemd.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    systemd.recv(100)  # or STOPPING would be lost if the queue is full
            systemd.settimeout(60)
            service.process.send_signal(signal.SIGTERM)
            while systemd.recv(100) != b"STOPPING=1":
                pass  # until the signal has arrived, or the guard of the test run ends it
            assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert service.stop() == 143


def test_a_log_that_nobody_reads_holds_nothing_up() -> None:
    """With a full pipe for a log, offsets are committed; what was logged comes when it is read."""
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb", buffering=0) as log,
        subprocess.Popen(
            [sys.executable, str(MEMORY_SERVICE)], stderr=writing, cwd=ROOT
        ) as service,
    ):
        try:
            address = json.loads(log.readline())["address"]
            os.set_blocking(writing, False)  # of the service's end too: both are one pipe's end
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(writing, b"x" * select.PIPE_BUF)
            os.set_blocking(writing, True)
            service.send_signal(signal.SIGHUP)  # says that it has read its settings again
            headers = {"Offsetmgr-Client": "test"}
            with httpx.Client(
                base_url=address, headers=headers, timeout=60, verify=NO_AUTHORITIES
            ) as client:
                committed = client.post("/v1/offsets", json=GOOD | {"wait": True}).json()
                assert [each["offset"] for each in committed["committed"]] == [7]
                assert "offsetmgr_dropped_log_records_total 0.0" in client.get("/metrics").text
            while b'"reloaded"' not in log.readline():
                pass  # or the guard of the test run ends it
        finally:
            os.close(writing)
            service.kill()


@pytest.mark.fault(12, 31)
def test_it_starts_without_kafka_and_is_not_ready() -> None:
    """Alive, with the reason in /readyz; clients are served, their offsets wait.

    Stopped, it exits with 3 by the deadline.  The log has a hundred partitions with offset and
    reason, then a count.
    """
    offsets = [{"topic": "t", "partition": number, "offset": 7} for number in range(130)]
    with serve_process(
        "--listen", "127.0.0.1:0", "--bootstrap-servers", "127.0.0.1:1",
        "--set", "stop_timeout_s=4", fresh=True,
    ) as service:  # fmt: skip
        with service.http() as client:
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert client.get("/livez").status_code == 200
            submitted = client.post("/v1/offsets", json={"group": "g", "offsets": offsets})
            assert submitted.json()["accepted"] == 130
            service.wait_for("kafka_unreachable")
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert "no answer from Kafka in time" in ready.json()["kafka"]
            assert "127.0.0.1:1/bootstrap: Connect to" in ready.json()["kafka"]
        assert psutil.Process(service.process.pid).num_threads() <= 64
        assert service.stop() == 3
    named = [each for each in service.records if each["event"] == "uncommitted"]
    assert {(each["group"], each["offset"]) for each in named} == {("g", 7)}
    assert all("Kafka" in each["error"] for each in named)
    assert len({each["partition"] for each in named}) == len(named) == 100
    assert service.wait_for("uncommitted_more")["partitions"] == 30


def test_help_tells_the_exit_statuses() -> None:
    """The help of ``serve`` has the exit statuses that a supervisor's author needs."""
    text = CliRunner().invoke(app, ["serve", "--help"]).stdout
    assert "3: stopped with offsets that Kafka did not acknowledge" in text


def test_a_missing_extra_is_one_line() -> None:
    """With what to run."""
    script = "import sys; sys.modules['typer'] = None\nfrom offsetmgr.cli import main\nmain()\n"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr == (
        "offsetmgr: this command needs the package typer: pip install 'offsetmgr[server]'\n"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("serve", "--set", "lease_s=x"), "lease_s (--set lease_s) must be a number"),
        (("config", "check", "--set", "kafka.security.protocol=no"), "kafka ['security.protocol']"),
        (("config", "check", "--set", "kafka.debug=no"), "kafka ['debug']"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_1(words: tuple[str, ...], error: str) -> None:
    """Without a traceback; also one that only librdkafka refuses, as it would at the start."""
    done = CliRunner().invoke(app, [*words, "--bootstrap-servers", "b:1"])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"offsetmgr: {error}")


def test_closed_standard_streams_end_no_command() -> None:
    """The output is lost then, and goes to no connection of the same number."""
    command = f"{sys.executable} -m offsetmgr config check --bootstrap-servers broker:9092"
    for closed in ("<&- >&-", "<&- >&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{command} {closed}"], cwd=ROOT, check=False)
        assert done.returncode == 0


def test_an_output_that_cannot_be_written_is_one_line_at_most() -> None:
    """A command whose output goes to ``head`` ends without a word, as others do."""
    read, write = os.pipe()
    os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", "offsetmgr", "config", "check", "--bootstrap-servers", "h:1"]
    lines = []
    for output in (write, full):
        done = subprocess.run(
            command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.PIPE, text=True
        )
        lines.append((done.returncode, done.stderr))
        os.close(output)
    assert lines == [(141, ""), (1, "offsetmgr: [Errno 28] No space left on device\n")]


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
