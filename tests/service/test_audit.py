"""The audit log: a line for each change, whatever happens to its file or to the log level."""

from __future__ import annotations

import json
import os
import stat
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.service import audit
from offsetmgr.service.audit import AuditLog
from tests.logs import capture_logs
from tests.service.identities import OWN, as_identity, identities
from tests.service.support import Running, asking, identity, memory_process, running
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


def test_each_change_is_in_the_audit_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With identity, operation, old and new offset, before it is answered; not each submit."""
    path = tmp_path / "audit.log"
    monkeypatch.setattr(audit, "WRITTEN_S", WAIT_S)
    with (
        running(**identities(tmp_path), audit_log=str(path)) as service,
        as_identity(service, "etl") as etl,
        as_identity(service, "admin", "operator") as admin,
    ):
        waiting = OWN | {"wait": True}
        etl.post("/v1/offsets", json=waiting).raise_for_status()
        back = [{"topic": "orders", "partition": 0, "offset": 3}]
        admin.post("/v1/rewind", json=waiting | {"offsets": back}).raise_for_status()
        again = [{"topic": "orders", "partition": 0, "offset": 1, "rewind": True}]
        etl.post("/v1/offsets", json=waiting | {"offsets": again}).raise_for_status()
        newer = {"Offsetmgr-Incarnation": "9"}
        etl.post("/v1/heartbeat", json={}, headers=newer).raise_for_status()
        etl.post("/v1/stop", json={}, headers=newer).raise_for_status()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.stat().st_mode & 0o777 == 0o600
    told = [(each["operation"], each["identity"], each["client"]) for each in lines]
    assert told == [
        ("spawn", "etl", "etl/job"),
        ("rewind", "admin", "admin/operator"),
        ("submit_rewind", "etl", "etl/job"),
        ("take_over", "etl", "etl/job"),
        ("stop", "etl", "etl/job"),
    ]
    assert [each["partitions"] for each in lines[1:3]] == [
        [{"topic": "orders", "partition": 0, "from": 7, "to": 3}],
        [{"topic": "orders", "partition": 0, "from": 3, "to": 1}],
    ]
    assert all(each["peer"].startswith("127.0.0.1:") and each["time"] for each in lines)


def test_an_unwritable_line_is_in_the_log(tmp_path: Path) -> None:
    """It is counted, and the change goes on."""
    path = tmp_path / "audit.log"
    with memory_process(f"audit_log={path}") as service:
        with service.http() as client:
            path.unlink()
            path.mkdir()
            client.post("/v1/offsets", json=OWN).raise_for_status()
            line = service.wait_for("audit")
            assert (line["operation"], line["group"]) == ("spawn", "orders-etl")
            metrics = client.get("/metrics").text
            assert "offsetmgr_dropped_audit_lines 1.0" in metrics
        assert service.stop() == 0
    with pytest.raises(InvalidValueError, match="audit_log"):
        AuditLog(os.fspath(path), lambda: 0.0)


def test_a_file_system_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: the event loop writes to a file, whose server may be dead.

    The lines are in the file once it answers; the log has those that are left at the end.
    """
    path, gate, write = tmp_path / "audit.log", threading.Event(), AuditLog._write

    def hanging(log: AuditLog, line: bytes) -> None:
        if line:
            gate.wait(WAIT_S)
        write(log, line)

    def changed(service: Running) -> None:
        with service.http("job") as client:
            client.post("/v1/offsets", json=OWN).raise_for_status()
            client.post("/v1/stop", json={}).raise_for_status()

    monkeypatch.setattr(AuditLog, "_write", hanging)
    with capture_logs() as records, running(audit_log=str(path), listen="[::1]:0") as service:
        changed(service)
        assert path.read_text() == ""
    told = [each["operation"] for each in records if each["event"] == "audit"]
    assert told == ["spawn", "stop"]
    with capture_logs() as records, running(audit_log=str(path)) as service:
        changed(service)
        gate.set()
    assert {each["operation"] for each in lines_of(path)} == {"spawn", "stop"}
    assert any(each["peer"].startswith("[::1]:") for each in lines_of(path))
    assert not [each for each in records if each["event"] == "audit"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def recorded(path: Path) -> AuditLog:
    made = AuditLog(os.fspath(path), lambda: 0.0)
    record(made)
    return made


def record(made: AuditLog) -> None:
    made.record(None, "lapse", "done")
    made.close(WAIT_S)


def test_no_log_level_hides_a_change(tmp_path: Path) -> None:
    """Without a file the lines are in the log of the service."""
    path = tmp_path / "s"
    with memory_process("log_level=error", f"listen=unix://{path}") as service:
        until(path.exists)
        over = httpx.HTTPTransport(uds=str(path), retries=9)
        headers = identity("job")
        with httpx.Client(base_url="http://localhost", transport=over, headers=headers) as client:
            client.post("/v1/offsets", json=OWN).raise_for_status()
        assert service.stop() == 0
        assert {each["operation"] for each in service.records if each["event"] == "audit"}


def test_an_existing_file_becomes_private(tmp_path: Path) -> None:
    """At the start, and where logrotate has made a new one with its own mode."""
    path = tmp_path / "audit.log"
    path.touch(0o644)
    made = recorded(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "audit.log.1")
    path.touch(0o666)
    path.chmod(0o666)
    record(made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(lines_of(path)) == 1


@pytest.mark.parametrize("torn", [b'{"operation": "sta', b'{"a": 1}\n{', b"\xff"])
def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path, torn: bytes) -> None:
    """As after a crash in the middle of a line, or a full disk."""
    path = tmp_path / "audit.log"
    path.write_bytes(torn)
    recorded(path)
    *_, last = path.read_bytes().splitlines()
    assert json.loads(last)["operation"] == "lapse"


def test_only_a_regular_file_is_taken(tmp_path: Path) -> None:
    """At once: a fifo without a reader would hold up every change."""
    for number, make in enumerate((os.mkfifo, os.mkdir)):
        path = tmp_path / str(number)
        make(path)
        with pytest.raises(InvalidValueError, match=r"audit_log .* cannot be written"):
            AuditLog(os.fspath(path), lambda: 0.0)
    path = tmp_path / "later"
    made = recorded(path)
    path.unlink()
    os.mkfifo(path)
    record(made)
    assert made.dropped == 1


def test_a_reset_that_a_stop_overtakes_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: something is changed behind the last line of the audit log."""
    asked, stopped, left = threading.Event(), threading.Event(), threading.Event()
    committed: list[object] = []

    class SlowKafka:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            left.set()

        def check_free(self, _group: str) -> None:
            asked.set()
            assert stopped.wait(WAIT_S)

        def check_unchanged(self, *_: object, **__: object) -> dict[Any, str]:
            return {}

        def commit(self, *changes: object) -> dict[Any, str]:
            committed.append(changes)
            return {}

    monkeypatch.setattr("offsetmgr.service.changes.GroupChanges", lambda *_, **__: SlowKafka())
    row = {"topic": "orders", "partition": 0, "current": None, "new": 3}
    body = json.dumps({"group": "g", "partitions": [row]}).encode()
    with capture_logs() as records, ExitStack() as waiting:
        with running() as service:
            waiting.enter_context(asking(service, "POST /v1/reset", body))
            assert asked.wait(WAIT_S)
        stopped.set()
        assert left.wait(WAIT_S)
    told = [each for each in records if each["event"] == "audit"]
    assert (committed, told) == ([], [])
