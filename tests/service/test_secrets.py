"""A secret shows nowhere, however it was given, mistyped or misplaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from typer.testing import CliRunner

from offsetmgr.cli.app import app
from tests.service.support import serve_process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CANARY: Final = "canary-4711"
KAFKA: Final = '[kafka]\nbootstrap.servers = "127.0.0.1:1"\n'

FILES: Final = {
    "top level": f'sasl.password = "{CANARY}"\n{KAFKA}',
    "wrong table": f'{KAFKA}[commit]\nsasl_password = "{CANARY}"\n',
    "a number": f"{KAFKA}sasl.passwords = 47110815\n",
    "mistyped": f'{KAFKA}sasl.pasword = "{CANARY}"\n',
    "upper case": f'{KAFKA}SASL.JAAS.CONFIG = "password={CANARY};"\n',
    "path": f'{KAFKA}sasl.password_file = "{CANARY}"\n',
    "list": f'{KAFKA}sasl.password = ["{CANARY}"]\n',
    "control character": f'{KAFKA}sasl.password = "{CANARY}\\u0001"\n',
    "key file": f'{KAFKA}security.protocol = "ssl"\nssl.key.location = "/{CANARY}"\n',
    "key": f'{KAFKA}security.protocol = "ssl"\nssl.key.pem = "{CANARY}"\n',
    "keystore": f'{KAFKA}security.protocol = "ssl"\nssl.keystore.location = "/{CANARY}"\n'
    f'ssl.keystore.password = "{CANARY}"\n',
    "refused by librdkafka": f'{KAFKA}sasl.oauthbearer.config = "{CANARY}"\n'
    'security.protocol = "sasl_plaintext"\nsasl.mechanism = "OAUTHBEARER"\nclient.id = ""\n'
    'sasl.oauthbearer.method = "oidc"\n',
    "url": f'{KAFKA}sasl.oauthbearer.token.endpoint.url = "https://me:{CANARY}@idp/token"\n',
    "broker": f'[kafka]\nbootstrap.servers = "127.0.0.1:1,me:{CANARY}@127.0.0.1:2"\n',
    "broker with a fence": f'fence = true\n[kafka]\nbootstrap.servers = "me:{CANARY}@b:x"\n',
    "fenced": f'fence = true\n{KAFKA}security.protocol = "ssl"\nssl.key.password = "{CANARY}"\n'
    f'ssl.certificate.location = "/cert"\nssl.key.location = "/{CANARY}"\n',
    "all of librdkafka's log": f'{KAFKA}debug = "all"\nsecurity.protocol = "sasl_plaintext"\n'
    f'sasl.mechanism = "PLAIN"\nsasl.username = "me"\nsasl.password = "{CANARY}"\n',
    "address": f'listen = "http://me:{CANARY}@127.0.0.1:8741"\n{KAFKA}',
    "not TOML": f"{KAFKA}sasl.password = {CANARY}\n",
}
"""Configurations with a canary at a place of a secret."""
SERVED: Final = {"key file", "fenced"}
"""Of these a service is started as well; the others meet the same as the commands."""

ENVIRONMENTS: Final = (
    {"OFFSETMGR_SASL_PASSWORD": CANARY},
    {"OFFSETMGR_KAFKA__SASL__PASSWORD": CANARY},
    {"OFFSETMGR_KAFKA__SASL_PASSWORD_FILE": CANARY},
    {"OFFSETMGR_COMMIT__TOKEN": CANARY},
    {"OFFSETMGR_LISTEN": f"unix://me:{CANARY}@host"},
)
OPTIONS: Final = (
    f"sasl.password={CANARY}",
    f"kafka.sasl.password:{CANARY}",
    f"kafka.ssl.key.password_file={CANARY}",
    f"kafka.credentials={CANARY}",
    f"={CANARY}",
)


class Typed:
    """Runs commands in this process; ``said`` is all that they and librdkafka have written."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.said = ""

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        done = CliRunner().invoke(app, arguments, env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        self.said += done.output + "".join(self._capfd.readouterr())
        return done.output


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capfd)


@pytest.mark.parametrize("place", FILES)
def test_a_secret_in_a_file_is_not_shown(run: Typed, tmp_path: Path, place: str) -> None:
    """Neither by the check nor by a service that starts, or does not."""
    config = tmp_path / "o.toml"
    config.write_text(FILES[place])
    checked = run("config", "check", "--config", str(config))
    options = ["--config", str(config), "--set", "stop_timeout_s=1", "--listen", "127.0.0.1:0"]
    said = ""
    if place in SERVED and not checked.startswith("offsetmgr: "):
        with serve_process(*options, "--log-level", "debug") as service:
            if service.started():
                with service.http() as client:
                    said += client.get("/readyz").text + client.get("/metrics").text
                service.stop()
            else:
                assert service.wait() == 1
            said += "".join(service.lines)
    run("lag", "orders", "--config", str(config), "--timeout", "0.1")
    run("history", "orders", "--config", str(config), "--timeout", "0.1")
    said += run.said
    assert said
    assert "Traceback" not in said
    assert CANARY not in said
    assert "47110815" not in said


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: next(iter(env)))
def test_a_secret_in_the_environment_is_not_shown(run: Typed, env: dict[str, str]) -> None:
    """The variable is named."""
    run("config", "check", "--bootstrap-servers", "127.0.0.1:1", env=env)
    assert next(iter(env)) in run.said
    assert CANARY not in run.said


@pytest.mark.parametrize("option", OPTIONS)
def test_a_secret_in_an_option_is_not_shown(run: Typed, option: str) -> None:
    """The option is named."""
    run("config", "check", "--bootstrap-servers", "127.0.0.1:1", "--set", option)
    assert "--set" in run.said
    assert CANARY not in run.said
