"""Security defaults, each as a refusal: tokens, rights, certificates, reloads, foreign pages."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.datastructures import Headers
from typer.testing import CliRunner

from offsetmgr.cli.app import app
from offsetmgr.errors import InvalidValueError
from offsetmgr.http import files
from offsetmgr.http.connections import ClientCertificate
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.http.files import Tokens
from offsetmgr.service.access import Access
from offsetmgr.workers import Question
from tests.certificates import Authority
from tests.service.identities import (
    OWN,
    TOKENS,
    as_identity,
    identities,
    over_tls,
    refusal,
    tls_client,
    token_file,
    trusting,
)
from tests.service.support import Running, memory_process, running, settings_of
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Callable


def test_every_operation_but_health_and_the_document_asks_for_a_token(secured: Running) -> None:
    """Also those that come later.  A wrong token is refused like none, and is not shown."""
    wrong = [{"Authorization": f"{scheme} wrong-token-of-nobody"} for scheme in ("Basic", "Bearer")]
    with secured.http("job") as client:
        open_paths = set()
        for each in secured.service.assembly.app.operations:
            path = each.path.replace("{", "").replace("}", "")
            for headers in ({}, *wrong):
                answer = client.request(each.method, path, json=OWN, headers=headers)
                if answer.status_code != 401:
                    open_paths.add(path)
                    continue
                assert refusal(answer) == (401, "unauthorized")
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert "wrong-token-of-nobody" not in answer.text
        assert client.get("/openapi.json").status_code == 200
        body = client.post("/v1/offsets", content=b"x" * 10_000_000)  # which is not read
        assert refusal(body) == (401, "unauthorized")
    assert open_paths == {"/livez", "/readyz"}
    assert not secured.service.assembly.factory.managers()


def test_metrics_need_a_right_to_all_groups(secured: Running, tmp_path: Path) -> None:
    with as_identity(secured, "admin") as admin, as_identity(secured, "etl") as etl:
        assert admin.get("/metrics").status_code == 200
        assert refusal(etl.get("/metrics")) == (403, "forbidden")
    with running(**identities(tmp_path), open_metrics=True) as service, service.http() as anyone:
        assert anyone.get("/metrics").status_code == 200


def test_a_read_only_identity_changes_nothing(secured: Running) -> None:
    with as_identity(secured, "reader") as reader:
        assert reader.post("/v1/heartbeat", json={}).status_code == 200
        assert reader.get("/v1/offsets", params={"group": "orders-etl"}).status_code == 200
        for path in ("/v1/offsets", "/v1/rewind"):
            answer = reader.post(path, json=OWN)
            assert refusal(answer) == (403, "forbidden")
            assert "identities.reader.read_only" in answer.json()["error"]["message"]
        for path in ("/v1/flush", "/v1/stop"):
            assert refusal(reader.post(path, json={})) == (403, "forbidden")


def test_a_token_is_changed_without_a_restart(tmp_path: Path) -> None:
    """Both count while the file has both; what becomes readable for others counts no more.

    An event stream ends with its token, though nothing happens on it; streams of others go on.
    """
    path, old, new = tmp_path / "etl.token", TOKENS["etl"], "a-new-token-9876543210"
    with (
        running(**identities(tmp_path)) as service,
        service.http("job") as client,
        as_identity(service, "admin") as admin,
        admin.stream("GET", "/v1/events") as others,
    ):
        lines = others.iter_lines()
        assert next(lines) == ": connected"

        def becomes(status: int, token: str) -> None:
            headers = {"Authorization": f"Bearer {token}"}
            eventually(lambda: client.get("/v1/managers", headers=headers).status_code, status)

        path.write_text(f"{new}\n{old}\n")
        becomes(200, new)
        changes: tuple[tuple[str, Callable[[], object]], ...] = (
            (old, lambda: path.write_text(f"{new}\n")),
            (new, lambda: path.chmod(0o644)),
            (new, path.unlink),
        )
        for token, change in changes:
            path.chmod(0o600)
            becomes(200, token)
            with service.http("job") as reader:
                reader.headers["Authorization"] = f"Bearer {token}"
                with reader.stream("GET", "/v1/events") as stream:
                    change()
                    assert ended(stream)
            becomes(401, token)
        admin.post("/v1/offsets", json=OWN).raise_for_status()
        assert next(line for line in lines if "data" in line)


def ended(stream: httpx.Response) -> bool:
    """Read a stream to its end, which the guard of the test run waits for."""
    with contextlib.suppress(httpx.RemoteProtocolError):
        for _ in stream.iter_lines():
            pass
    return True


def test_a_token_file_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: the service looks at its files each second, and their file server may be dead.

    What is known of that file counts meanwhile, other files are read again, also at a reload.
    """
    looks, gate, look = Counter[str](), threading.Event(), files._file_state

    def hanging(path: Path) -> object:
        looks[path.name] += 1
        if path.name == "etl.token":
            gate.wait(WAIT_S)
        return look(path)

    with (
        running(**identities(tmp_path)) as service,
        as_identity(service, "etl") as etl,
        as_identity(service, "reader") as reader,
    ):
        monkeypatch.setattr(files, "_file_state", hanging)
        until(lambda: looks["etl.token"])
        (tmp_path / "reader.token").write_text("a-new-token-9876543210\n")
        eventually(lambda: reader.get("/v1/managers").status_code, 401)
        assert service._loop is not None
        service._loop.call_soon_threadsafe(service.service._on_reload_signal)
        until(lambda: looks["etl.token"] > 1)
        assert etl.get("/v1/managers").status_code == 200
        gate.set()
        (tmp_path / "etl.token").unlink()
        eventually(lambda: etl.get("/v1/managers").status_code, 401)


@pytest.mark.parametrize(
    ("mode", "content", "told"),
    [
        (0o644, "0123456789abcdef", "may be read or changed by others (mode 0644)"),
        (0o620, "0123456789abcdef", "may be read or changed by others (mode 0620)"),
        (0o600, "short", "does not hold tokens of 16"),
        (0o600, "", "does not hold tokens of 16"),
        (0o600, TOKENS["admin"], "holds another one's token"),
        (None, "", "cannot be read"),
        (0o600, "pipe", "is not a regular file"),  # whose read could block all requests
        (0o600, "x" * 1_048_577, "has more than 1048576 bytes"),
    ],
)
def test_a_bad_token_file_is_refused(
    tmp_path: Path, mode: int | None, content: str, told: str
) -> None:
    """The setting and the fix are named, the token is not shown."""
    path = tmp_path / "bad"
    if content == "pipe":
        os.mkfifo(path, 0o600)
    elif mode is not None:
        path.write_text(content)
        path.chmod(mode)
    given = {"groups": [], "topics": [], "token_file": str(path)}
    settings = settings_of(
        **identities(tmp_path), **{f"identities__bad__{name}": each for name, each in given.items()}
    )
    with pytest.raises(InvalidValueError) as caught:
        Access(settings)
    assert told in str(caught.value)
    assert caught.value.field == "identities.bad.token_file"
    assert content in {"", "pipe"} or content not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listen": "0.0.0.0:1"}, "tls.certificate and tls.key) and authentication"),
        ({"listen": "[::]:1"}, "tls.certificate and tls.key) and authentication"),
        ({"listen": "192.0.2.1:1", "identities__a__token_file": "/t", "identities__a__groups": [],
          "identities__a__topics": []}, "without TLS"),
        ({"listen": "0.0.0.0:1", "tls__certificate": "/c", "tls__key": "/k"},
         "without authentication (add an"),
        ({"listen": "unix:///run/o", "tls__certificate": "/c", "tls__key": "/k"}, "is for TCP"),
        ({"tls__certificate": "/c"}, "give tls.certificate and tls.key"),
        ({"tls__client_ca": "/c"}, "give tls.certificate and tls.key"),
        ({"identities__a__groups": ["*"], "identities__a__topics": ["*"]}, "give a token_file"),
        ({"identities__a__token_file": "/t"}, "identities.a.groups is missing"),
        ({"identities__a__groups": "*"}, "identities.a.groups must be a list"),
        ({"identities__a b__token_file": "/t", "identities__a b__groups": [],
          "identities__a b__topics": []}, "is not an identity's name"),
        ({"identities__a__certificate": "x", "identities__a__groups": [],
          "identities__a__topics": []}, "set tls.client_ca"),
        ({"identities__a__group": [], "identities__a__topics": []}, "group"),
        ({"identities__a__token_file": "/t", "identities__a__groups": [],
          "identities__a__topics": [], "identities__a__readonly": True},
         "identities.a.readonly (test) '***' is an unknown setting; did you mean read_only?"),
    ],
)  # fmt: skip
def test_settings_that_would_leave_it_open_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        settings_of(**given)
    assert told in str(caught.value)


def test_an_empty_identity_does_not_turn_authentication_off(tmp_path: Path) -> None:
    config = tmp_path / "o.toml"
    config.write_text('kafka."bootstrap.servers" = "b:1"\n[identities.etl]\n')
    done = CliRunner().invoke(app, ["serve", "--config", str(config)])
    assert done.exit_code == 1
    assert "identities.etl.groups is missing" in done.stderr


# TLS


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_without_tls_1_2_and_a_certificate_of_the_authority_nobody_connects(
    authority: Authority, tmp_path: Path
) -> None:
    """No certificate, an expired one, or one of another authority: no valid token helps.

    Nor does a connection without TLS, and a client that does not know the authority asks nothing.
    """
    given = over_tls(authority, tmp_path, tls__client_ca=str(authority.file))
    mine = authority.sign("etl.test")
    late = authority.sign("late.test", timedelta(days=-1))
    foreign = Authority(tmp_path, "others").sign("foreign.test")
    old = trusting(authority)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with running(**given) as service:
        plain = service.address.replace("https", "http")
        for context, files, url in (
            (trusting(authority), None, service.address),
            (trusting(authority), late, service.address),
            (trusting(authority), foreign, service.address),
            (trusting(authority), mine, plain),
            (ssl.create_default_context(), mine, service.address),
            (old, mine, service.address),
        ):
            if files is not None:
                context.load_cert_chain(*files)
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{url}/livez", verify=context, timeout=WAIT_S)
        context = trusting(authority)
        context.load_cert_chain(*mine)
        with tls_client(service, context) as client:
            assert client.post("/v1/offsets", json=OWN).json()["accepted"] == 1


def test_a_certificate_is_an_identity(authority: Authority, tmp_path: Path) -> None:
    """A name in it is that of an identity; an unknown name is refused.

    An authority that is replaced gives no more rights, without a restart.
    """
    given = over_tls(
        authority,
        tmp_path,
        tls__client_ca=str(authority.file),
        identities__machine__certificate="machine.test",
        identities__machine__groups=["orders-*"],
        identities__machine__topics=["*"],
    )
    with running(**given) as service:
        for name, status in (("machine.test", 200), ("nobody.test", 401)):
            context = trusting(authority)
            context.load_cert_chain(*authority.sign(name))
            with httpx.Client(base_url=service.address, verify=context, timeout=WAIT_S) as client:
                assert client.get("/v1/managers").status_code == status
                if status == 200:
                    answer = client.get("/v1/managers?group=payments")
                    assert "identity 'machine'" in answer.json()["error"]["message"]
        context.load_cert_chain(*authority.sign("machine.test"))
        authority.file.write_bytes(Authority(tmp_path, "others").file.read_bytes())

        def is_refused() -> bool:
            with httpx.Client(base_url=service.address, verify=context, timeout=WAIT_S) as client:
                try:
                    return client.get("/livez").status_code != 200
                except httpx.TransportError:
                    return True

        until(is_refused)


def test_certificates_are_read_again(authority: Authority, tmp_path: Path) -> None:
    """Files that have changed are taken, but not while they do not fit."""
    files = authority.sign("service.test", timedelta(hours=1))
    with memory_process(f"tls.certificate={files.certificate}", f"tls.key={files.key}") as service:

        def shown() -> str:
            _, _, port = service.address.rpartition(":")
            return ssl.get_server_certificate(("127.0.0.1", int(port)))

        first = shown()
        key = Path(files.key)
        fitting = key.read_bytes()
        key.write_text("half of a key")
        assert "tls.certificate" in service.wait_for("certificate_refused")["error"]
        assert shown() == first
        key.write_bytes(fitting)
        service.wait_for("certificate_read")
        os.mkfifo(tmp_path / "pipe", 0o600)  # to read it would hold up all requests
        certificate = Path(files.certificate)
        certificate.rename(tmp_path / "kept")
        (tmp_path / "pipe").rename(certificate)
        until(lambda: "is not a regular file" in "".join(service.lines))
        certificate.unlink()
        authority.sign("service.test")
        until(lambda: shown() != first)
        url = f"{service.address}/livez"
        assert httpx.get(url, verify=trusting(authority), timeout=WAIT_S).status_code == 200


# Pages


def test_a_page_changes_nothing_without_a_token(service: Running, secured: Running) -> None:
    """Also on loopback: every page of the browser could be made to look like ours."""
    page = {"Sec-Fetch-Site": "same-origin"}
    with service.http("page") as client:
        assert client.get("/v1/managers", headers=page).status_code == 200
        assert refusal(client.post("/v1/offsets", json=OWN, headers=page)) == (403, "token_needed")
        origin = {"Origin": service.address}
        assert refusal(client.post("/v1/rewind", json=OWN, headers=origin)) == (403, "token_needed")
    with as_identity(secured, "etl", "page") as client:
        assert client.post("/v1/offsets", json=OWN, headers=page).status_code == 200


# The end of a right


def test_a_read_that_waits_is_not_answered_after_its_token_has_ended(
    secured: Running, tmp_path: Path
) -> None:
    """The kind: what was asked with a right is answered when the right is gone."""
    secured.coordinator.pause()
    with as_identity(secured, "etl") as etl, as_identity(secured, "etl") as later:
        wanted = {"group": "orders-etl", "partitions": [{"topic": "orders", "partition": 0}]}
        etl.post("/v1/managers", json=wanted).raise_for_status()
        read = Question(lambda: etl.get("/v1/initial-offsets?group=orders-etl&wait_s=60"))
        until(lambda: secured.service.assembly.app.waiting.taken)
        (tmp_path / "etl.token").unlink()
        eventually(lambda: later.get("/v1/managers").status_code, 401)
        secured.coordinator.resume()
        assert refusal(read.answer.result(WAIT_S)) == (403, "forbidden")


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


def test_a_reload_never_opens_the_socket_in_use(authority: Authority, tmp_path: Path) -> None:
    """It is refused in the log and in the status, also with another address in the file.

    An address for others has TLS, asks for a token, and has no other name than ``hosts`` says, but
    the IP address, which Kubernetes' probes use.
    """
    changes = (
        "",  # as where the file was emptied, or a mount is gone
        'listen = "127.0.0.1:0"\n',
        "[identities]\n",
        'open_metrics = true\nlisten = "unix:///tmp/o.sock"\n',
        "not TOML",
        "a = " + 100_000 * "[",
        '[identities.etl]\ngroups = ["*"]\ntopics = ["*"]\ntoken_file = "/absent"\n',
    )
    files = authority.sign("service.test")
    config = tmp_path / "o.toml"
    good = (
        'listen = "0.0.0.0:0"\nhosts = "service.test, other.test"\n'
        f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
        f'[identities.etl]\ngroups = ["*"]\ntopics = ["*"]\n'
        f'token_file = "{token_file(tmp_path, "etl")}"\n'
    )
    config.write_text(good)
    token = {"Authorization": f"Bearer {TOKENS['etl']}"}
    with memory_process("listen=", env={"OFFSETMGR_CONFIG": str(config)}) as service:
        url = service.address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        with httpx.Client(base_url=url, verify=trusting(authority), timeout=WAIT_S) as client:
            assert service.wait_for("serving")["tls"] is True
            assert client.get("/livez", headers={"Host": "other.test"}).status_code == 200
            probing = trusting(authority)
            probing.check_hostname = False
            probe = httpx.get(url.replace("127.0.0.1", "127.0.0.2") + "/livez", verify=probing)
            assert probe.status_code == 200
            assert refusal(client.get("/livez", headers={"Host": "evil"})) == (421, "foreign_host")
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
    """The log names the other settings that have changed, secrets as well: they need a restart."""
    config = tmp_path / "o.toml"
    identity = (
        '[identities.etl]\ngroups = ["*"]\ntopics = ["*"]\nclusters = ["west"]\n'
        f'token_file = "{token_file(tmp_path, "etl")}"\n'
    )
    config.write_text(f'{identity}[kafka]\nsasl.password = "old"\n')
    with memory_process(env={"OFFSETMGR_CONFIG": str(config)}) as service, service.http() as etl:
        etl.headers["Authorization"] = f"Bearer {TOKENS['etl']}"
        assert refusal(etl.get("/v1/managers")) == (403, "forbidden")
        config.write_text(
            'cluster_name = "west"\nopen_metrics = true\n'
            f'{identity}[kafka]\nsasl.password = "new"\n'
        )
        service.process.send_signal(signal.SIGHUP)
        changed = ["cluster_name", "kafka.sasl.password", "open_metrics"]
        assert service.wait_for("reloaded")["needs_restart"] == changed
        assert refusal(etl.get("/v1/managers")) == (403, "forbidden")
        del etl.headers["Authorization"]
        assert refusal(etl.get("/metrics")) == (401, "unauthorized")


def test_a_token_can_be_moved_to_another_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was refused is read again, as the reason may have gone; it is logged once."""
    files = {name: tmp_path / name for name in ("a", "b")}

    def write(name: str, token: str) -> None:
        files[name].write_text(token)
        files[name].chmod(0o600)

    write("a", "first-token-0123456789")
    write("b", "other-token-0123456789")
    tokens = Tokens({name: (name, str(path)) for name, path in files.items()})
    write("a", "other-token-0123456789")
    for _ in range(3):
        for watch in tokens.watches:
            watch.look()
    assert tokens.owner_of(b"other-token-0123456789") == "b"
    write("b", "third-token-01234567890")
    for _ in range(2):
        for watch in tokens.watches:
            watch.look()
    assert tokens.owner_of(b"other-token-0123456789") == "a"
    assert tokens.owner_of(b"third-token-01234567890") == "b"
    refusals = [each for each in caplog.messages if each.startswith("token_file_refused")]
    assert len(refusals) == 1


def test_a_token_that_is_replaced_while_it_is_read_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: a file that changes between its first reading and the first look at it."""
    path, read = tmp_path / "token", files._tokens_in
    path.touch(mode=0o600)
    path.write_text("first-token-0123456789")

    def reading(*given: str) -> list[bytes]:
        found = read(*given)
        path.write_text("another-token-0123456789")
        return found

    monkeypatch.setattr(files, "_tokens_in", reading)
    tokens = Tokens({"a": ("a", str(path))})
    for watch in tokens.watches:
        watch.look()
    assert tokens.owner_of(b"first-token-0123456789") is None
    assert tokens.owner_of(b"another-token-0123456789") == "a"
