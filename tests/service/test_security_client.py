"""The client, and the commands, with tokens and over TLS."""

from __future__ import annotations

import logging
import os
import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from offsetmgr import OffsetClient
from offsetmgr.cli.app import app
from offsetmgr.client import health
from offsetmgr.errors import InvalidValueError, OffsetManagerError, ServiceError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.certificates import Authority
from tests.service.identities import TOKENS, identities, over_tls
from tests.service.support import Running, memory_process, running
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

WHERE: Final = ("orders", 0)


def committed(client: OffsetClient) -> int | None:
    """Submit an offset; return the committed one."""
    client.submit("orders-etl", {WHERE: 7}, sync=True, timeout=WAIT_S)
    found = client.committed("orders-etl", timeout=WAIT_S)
    return next(iter(found.values())).offset


def test_a_client_with_a_token_and_certificates_is_served(
    authority: Authority, tmp_path: Path
) -> None:
    """Also after it was pickled, as Spark may do; its events come too."""
    given = over_tls(authority, tmp_path, tls__client_ca=str(authority.file))
    files = authority.sign("etl.test")
    with (
        running(**given) as service,
        OffsetClient(
            service.address,
            "job",
            token_file=tmp_path / "etl.token",
            ca_file=authority.file,
            cert_file=files.certificate,
            key_file=files.key,
        ) as client,
    ):
        handle = client.spawn("orders-etl", *WHERE)
        events = handle.committed_offsets()
        assert committed(client) == 7
        assert events.get(WAIT_S).offset == 7
        with pickle.loads(pickle.dumps(client)) as other:  # noqa: S301 -- our own
            found = other.committed("orders-etl", timeout=WAIT_S)
            assert [each.offset for each in found.values()] == [7]


def test_a_bad_certificate_is_explained(authority: Authority, tmp_path: Path) -> None:
    """The error says whose it is and what to do; an untrusted service is sent nothing."""
    others = Authority(tmp_path, "others")
    given = over_tls(authority, tmp_path, tls__client_ca=str(authority.file))
    mine = authority.sign("etl.test")
    token = {"token_file": str(tmp_path / "etl.token")}
    cert = token | {"cert_file": mine.certificate, "key_file": mine.key}
    known = cert | {"ca_file": str(authority.file)}

    def error(url: str, **files: Any) -> str:
        with OffsetClient(url, "job", **files) as client:
            with pytest.raises(OffsetManagerError) as caught:
                client.committed("orders-etl", timeout=2)
            return str(caught.value)

    with running(**given) as service:
        url = service.address
        assert "is not trusted" in error(url, **cert, ca_file=others.file)
        elsewhere = url.replace("127.0.0.1", "localhost")
        assert "is not trusted (Hostname mismatch" in error(elsewhere, **known)
        assert "cert_file and key_file" in error(url, **token, ca_file=authority.file)
        assert "closed the connection" in error(url.replace("https", "http"), **cert)
        assert not service.service.assembly.registry.clients()
    authority.sign("service.test", timedelta(days=-1))
    with running(**given) as service:
        assert "is not trusted (certificate has expired)" in error(service.address, **known)
    with running() as service:
        url = service.address.replace("http", "https")
        assert "does not speak TLS" in error(url, ca_file=authority.file)


def test_a_refused_token_is_read_again(secured: Running, tmp_path: Path) -> None:
    """The client backs off with what it holds; it goes on once the file has the right one."""
    path = tmp_path / "job.token"
    path.write_text("not-yet-the-right-token\n")
    with OffsetClient(secured.address, "job", token_file=path) as client:
        client.submit("orders-etl", {WHERE: 7})
        with pytest.raises(ServiceError, match="does not know this token") as caught:
            client.committed("orders-etl", timeout=WAIT_S)
        assert caught.value.status == 401
        assert "not-yet-the-right-token" not in str(caught.value)
        path.write_text(TOKENS["etl"])
        assert client.flush(timeout=WAIT_S).ok
        found = client.committed("orders-etl", timeout=WAIT_S)
        assert [each.offset for each in found.values()] == [7]


def test_a_missing_right_ends_a_wait_at_once(secured: Running, tmp_path: Path) -> None:
    """A flush and a stop that named a forbidden partition were refused as a whole.

    The kind: one that the service refuses for good holds up its peers until the deadline.
    """
    foreign = ("secret", 0)
    with OffsetClient(secured.address, "job", token_file=tmp_path / "etl.token") as client:
        of_others = client.spawn("payments", "orders", 0)
        client.submit("payments", {WHERE: 1})
        with pytest.raises(ServiceError, match=r"identities\.etl\.topics"):
            client.submit("orders-etl", {WHERE: 7, foreign: 1}, sync=True, timeout=600)
        assert client.committed("orders-etl") == {WHERE: OffsetAndMetadata(7)}
        assert "identities.etl.groups" in str(of_others.errors().get(WAIT_S))
        with pytest.raises(ServiceError, match=r"identities\.etl\.topics"):
            client.spawn("orders-etl", "secret", 1).initial_offset()
        left = client.stop_managers(group="orders-etl", timeout=600).uncommitted
        assert list(left) == [ManagerKey("orders-etl", *foreign)]
        assert not secured.service.assembly.factory.managers()
    with OffsetClient(secured.address, "job", token_file=tmp_path / "reader.token") as reader:
        with pytest.raises(ServiceError, match=r"identities\.reader\.read_only"):
            reader.submit("orders-etl", {WHERE: 8}, sync=True, timeout=600)
        reader.close(timeout=600)


@pytest.mark.parametrize(
    ("url", "content", "told"),
    [
        ("http://192.0.2.1:8741", TOKENS["etl"], "leads to another machine without TLS"),
        ("http://service.test", TOKENS["etl"], "leads to another machine without TLS"),
        ("http://127.0.0.1:1", "", "token_file .* does not hold a token"),
        ("http://127.0.0.1:1", None, "token_file .* cannot be read"),
    ],
)
def test_a_token_that_would_leak_or_is_none_is_refused(
    tmp_path: Path, url: str, content: str | None, told: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidValueError, match=told) as caught:
        OffsetClient(url, token_file=path)
    assert not content or content not in str(caught.value)


def test_files_without_certificates_are_refused(tmp_path: Path, authority: Authority) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # to open it would block
    other = authority.sign("other.test")
    mine = authority.sign("etl.test")
    wrong: tuple[dict[str, Any], ...] = (
        {"ca_file": path},
        {"cert_file": path},
        {"cert_file": mine.certificate, "key_file": other.key},
        {"key_file": mine.key},
        {"ca_file": tmp_path / "absent"},
        {"ca_file": 7},
        {"ca_file": pipe},
        {"token_file": pipe},
    )
    for given in wrong:
        with pytest.raises(InvalidValueError) as caught:
            OffsetClient("https://127.0.0.1:1", **given)
        assert caught.value.hint


def test_secrets_are_nowhere_in_a_run(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the logs of client and service, the configuration, a repr, or an error."""
    password = "sasl-password-4711"  # noqa: S105 -- of nothing
    files = authority.sign("service.test")
    tokens = identities(tmp_path)
    config = tmp_path / "o.toml"
    config.write_text(
        'log_level = "debug"\n'
        f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
        '[identities.etl]\ngroups = ["orders-*"]\ntopics = ["*"]\n'
        f'token_file = "{tokens["identities__etl__token_file"]}"\n'
        '[kafka]\nbootstrap.servers = "127.0.0.1:1"\ndebug = "all"\n'
        'security.protocol = "sasl_plaintext"\nsasl.mechanism = "PLAIN"\n'
        f'sasl.username = "me"\nsasl.password = "{password}"\n'
    )
    env = {"OFFSETMGR_CONFIG": str(config)}
    said = []
    caplog.set_level(logging.DEBUG)
    with memory_process(env=env) as service:
        path = tmp_path / "job.token"
        path.write_text(TOKENS["reader"])
        with OffsetClient(
            service.address, "job", token_file=path, ca_file=authority.file
        ) as client:
            with pytest.raises(ServiceError) as caught:
                client.committed("orders-etl", timeout=WAIT_S)
            path.write_text(TOKENS["etl"])
            said += [repr(caught.value), repr(client), repr(vars(client)), repr(caught.traceback)]
            assert committed(client) == 7
        assert service.stop() == 0
        said += [*service.lines, caplog.text]
    for command in (["config", "check"], ["groups", "--timeout", "1"]):
        said.append(CliRunner().invoke(app, [*command, "--config", str(config)]).output)
    text = "\n".join(said)
    assert "identities.etl.groups" in text
    for secret in (*TOKENS.values(), password):
        assert secret not in text


def test_commands_send_the_token(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option or the environment names it, next to the certificates."""
    with running(**over_tls(authority, tmp_path)) as service:
        env = {"OFFSETMGR_CA_FILE": str(authority.file)}
        token = str(tmp_path / "etl.token")

        def run(*options: str, **more: str) -> Result:
            asked = ["errors", *options, "--service", service.address]
            return CliRunner().invoke(app, asked, env=env | more)

        assert run("--token-file", token).exit_code == 0
        assert run(OFFSETMGR_TOKEN_FILE=token).exit_code == 0
        refused = run()
        assert refused.exit_code != 0
        assert "--token-file" in refused.stderr
        monkeypatch.setenv("OFFSETMGR_CA_FILE", str(authority.file))
        assert health.main([service.address]) == 0
