"""Rights that end, and settings that are reloaded: access never widens."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.datastructures import Headers

from offsetmgr.http.connections import ClientCertificate
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.service.access import Access
from tests.certificates import Authority
from tests.service.support import WAIT_S, memory_process, running, settings_of
from tests.service.test_security import (
    OWN,
    TOKENS,
    as_identity,
    identities,
    refusal,
    token_file,
    trusting,
)

if TYPE_CHECKING:
    from pathlib import Path


# The end of a right


def ended(stream: httpx.Response) -> bool:
    """Read a stream to its end, which the guard of the test run waits for."""
    with contextlib.suppress(httpx.RemoteProtocolError):
        for _ in stream.iter_lines():
            pass
    return True


@pytest.mark.parametrize("how", ["removed", "replaced", "readable"])
def test_an_event_stream_ends_with_its_token(tmp_path: Path, how: str) -> None:
    """Within a heartbeat, though nothing happens on it; streams of others go on."""
    with (
        running(**identities(tmp_path)) as service,
        as_identity(service, "etl") as etl,
        as_identity(service, "admin") as admin,
        admin.stream("GET", "/v1/events") as others,
        etl.stream("GET", "/v1/events") as stream,
    ):
        lines = others.iter_lines()
        assert next(lines) == ": connected"
        path = tmp_path / "etl.token"
        match how:
            case "removed":
                path.unlink()
            case "replaced":
                path.write_text("another-token-0123456789\n")
            case "readable":
                path.chmod(0o644)
        assert ended(stream)
        # On a new connection: the service may close that of the stream.
        with as_identity(service, "etl") as later:
            assert later.get("/v1/events").status_code == 401
        admin.post("/v1/offsets", json=OWN).raise_for_status()
        assert next(line for line in lines if "data" in line)


def test_an_event_stream_ends_with_its_identity(tmp_path: Path) -> None:
    """After a SIGHUP; where the identity is still there, the next stream has its new rights."""
    config = tmp_path / "o.toml"
    # Once: while a file is written the service may find no token in it.
    tokens = {name: token_file(tmp_path, name) for name in ("etl", "admin")}

    def write(etl: str | None) -> None:
        rights = {"admin": '["*"]'} if etl is None else {"etl": etl, "admin": '["*"]'}
        config.write_text(
            "".join(
                f'[identities.{name}]\ngroups = {groups}\ntopics = ["*"]\n'
                f'token_file = "{tokens[name]}"\n'
                for name, groups in rights.items()
            )
        )

    write('["*"]')
    with memory_process(env={"OFFSETMGR_CONFIG": str(config)}) as service:
        for left, status in (('["orders"]', 403), (None, 401)):
            with service.http() as etl:
                etl.headers["Authorization"] = f"Bearer {TOKENS['etl']}"
                group = "payments" if left else "orders"
                with etl.stream("GET", f"/v1/events?group={group}") as stream:
                    write(left)
                    service.process.send_signal(signal.SIGHUP)
                    assert ended(stream)
            # On a new connection: the service may close that of the stream.
            with service.http() as later:
                later.headers["Authorization"] = f"Bearer {TOKENS['etl']}"
                assert later.get(f"/v1/events?group={group}").status_code == status


def test_a_certificate_that_has_expired_gives_no_rights(tmp_path: Path) -> None:
    """Not even on a connection that was open before."""
    settings = settings_of(
        tls__certificate="c", tls__key="k", tls__client_ca="ca",
        **{f"identities__machine__{name}": value for name, value in (
            ("certificate", "machine.test"), ("groups", ["*"]), ("topics", ["*"]))},
    )  # fmt: skip
    access, names = Access(settings), frozenset({"machine.test"})
    valid = access.identify(Headers(), ClientCertificate(names, time.time() + WAIT_S))
    assert (valid.identity, valid.is_current()) == ("machine", True)
    with pytest.raises(HttpStatusError) as refused:
        access.identify(Headers(), ClientCertificate(names, time.time() - 1))
    assert refused.value.status == 401


# Reloads


def test_a_reload_never_opens_the_socket_in_use(tmp_path: Path) -> None:
    """It is refused in the log and in the status, also with another address in the file."""
    changes = (
        "",  # as where the file was emptied, or a mount is gone
        'listen = "127.0.0.1:0"\n',
        "[identities]\n",
        'open_metrics = true\nlisten = "unix:///tmp/o.sock"\n',
        "not TOML",
        "a = " + 100_000 * "[",
        '[identities.etl]\ngroups = ["*"]\ntopics = ["*"]\ntoken_file = "/absent"\n',
    )
    authority = Authority(tmp_path)
    files = authority.sign("service.test")
    config = tmp_path / "o.toml"
    good = (
        f'listen = "0.0.0.0:0"\n[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
        f'[identities.etl]\ngroups = ["*"]\ntopics = ["*"]\n'
        f'token_file = "{token_file(tmp_path, "etl")}"\n'
    )
    config.write_text(good)
    token = {"Authorization": f"Bearer {TOKENS['etl']}"}
    with memory_process("listen=", env={"OFFSETMGR_CONFIG": str(config)}) as service:
        url = service.address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        with httpx.Client(base_url=url, verify=trusting(authority), timeout=WAIT_S) as client:
            for number, change in enumerate(changes, 1):
                assert client.get("/readyz").json()["reload_refused"] is False
                config.write_text(change)
                service.process.send_signal(signal.SIGHUP)
                error = service.wait_for("reload_failed", number)["error"]
                assert refusal(client.get("/v1/managers")) == (401, "unauthorized")
                assert refusal(client.get("/metrics")) == (401, "unauthorized")
                assert client.get("/readyz").json()["reload_refused"] is True
                overview = client.get("/v1/overview", headers=token)
                assert overview.json()["reload_error"]["message"] == error
                metrics = client.get("/metrics", headers=token)
                assert "offsetmgr_reload_refused 1.0" in metrics.text
                config.write_text(good)
                service.process.send_signal(signal.SIGHUP)
                service.wait_for("reloaded", number)


def test_a_reload_takes_identities_and_log_level_alone(tmp_path: Path) -> None:
    """The log names the other settings that have changed: they need a restart."""
    config = tmp_path / "o.toml"
    identity = (
        '[identities.etl]\ngroups = ["*"]\ntopics = ["*"]\nclusters = ["west"]\n'
        f'token_file = "{token_file(tmp_path, "etl")}"\n'
    )
    config.write_text(identity)
    with memory_process(env={"OFFSETMGR_CONFIG": str(config)}) as service, service.http() as etl:
        etl.headers["Authorization"] = f"Bearer {TOKENS['etl']}"
        assert refusal(etl.get("/v1/managers")) == (403, "forbidden")
        config.write_text(f'cluster_name = "west"\nopen_metrics = true\n{identity}')
        service.process.send_signal(signal.SIGHUP)
        record = service.wait_for("reloaded")
        assert record["needs_restart"] == ["cluster_name", "open_metrics"]
        assert refusal(etl.get("/v1/managers")) == (403, "forbidden")
        del etl.headers["Authorization"]
        assert refusal(etl.get("/metrics")) == (401, "unauthorized")
