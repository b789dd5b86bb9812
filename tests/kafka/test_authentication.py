"""docs/authentication.md: each block of settings logs in to a listener of a real Kafka."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.oauth import AWS_MSK_IAM
from offsetmgr.service.settings import from_toml, load
from tests.kafka.test_oauth import Tokens
from tests.secured import PASSWORDS, SecuredKafka
from tests.spark.documents import Block, blocks
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.devkafka import DevKafka

PAGE = Path(__file__).parents[2] / "docs" / "authentication.md"
SETTINGS = [block for block in blocks(PAGE) if block.language == "toml"]


class Provider(BaseHTTPRequestHandler):
    """Answers with a token that the broker takes."""

    def do_GET(self) -> None:
        """As Azure's metadata service."""
        asked = self.path.endswith("resource=https://orders.servicebus.windows.net")
        self._answer(200 if asked and self.headers["Metadata"] == "true" else 400)

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        known = "assertion=" in asked or self.headers["Authorization"] is not None
        self._answer(200 if known and "grant_type=" in asked else 400)

    def _answer(self, status: int) -> None:
        token, expires_s = Tokens()(None)
        answer = {"access_token": token, "token_type": "Bearer"}
        body = json.dumps({**answer, "expires_in": int(expires_s - time.time())}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def scram_user(kafka: DevKafka) -> None:
    """The user that the page names, with a password of Kafka's own."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("offsetmgr", info, PASSWORDS["offsetmgr"].encode())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.alter_user_scram_credentials([change])["offsetmgr"].result(WAIT_S)


@pytest.fixture
def overrides(kafka: DevKafka, provider: str, tmp_path: Path) -> dict[str, object]:
    """Addresses and files of this machine, by the name of the setting."""
    assert isinstance(kafka, SecuredKafka)
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "assertion.key").write_bytes(key)
    (tmp_path / "word").write_text("of the provider")
    (tmp_path / "company_tokens.py").write_text("from tests.kafka.test_oauth import get_token")
    return {
        **kafka.certificate_login(),
        **kafka.login(),
        "sasl.password_file": str(tmp_path / "word"),
        "sasl.oauthbearer.client.secret_file": str(tmp_path / "word"),
        "sasl.oauthbearer.token.endpoint.url": provider,
        "sasl.oauthbearer.assertion.private.key.file": str(tmp_path / "assertion.key"),
        "https.ca.location": kafka.login()["ssl.ca.location"],
    }


KEPT = {"security.protocol", "sasl.mechanism", "sasl.username"}
"""Settings of a block that say how to log in, and as whom."""


@pytest.mark.usefixtures("scram_user")
@pytest.mark.parametrize("block", SETTINGS, ids=lambda block: block.place)
def test_the_lines_of_the_page_log_in(
    kafka: DevKafka,
    overrides: dict[str, object],
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With this machine's addresses and files in place of those shown."""
    assert isinstance(kafka, SecuredKafka)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "offsetmgr.toml"
    config.write_text(block.text)
    shown = {name.removeprefix("kafka."): value for name, (value, _) in from_toml(config).items()}
    if shown.get("oauth") == AWS_MSK_IAM:
        assert load(config, {}, {}).kafka.oauth_cb is not None  # only AWS has an MSK
        return
    placed = {name: overrides[name] for name in shown if name in overrides.keys() - KEPT}
    if "sasl.password_file" in placed:
        (tmp_path / "word").write_text(PASSWORDS[str(shown["sasl.username"])])
    if "ssl.key.location" in shown:
        placed |= kafka.certificate_login()
    # Public clouds' certificates are of the system's authorities; Azure's address is the default.
    placed["ssl.ca.location"] = overrides["ssl.ca.location"]
    if "sasl.oauthbearer.metadata.authentication.type" in shown:
        name = "sasl.oauthbearer.token.endpoint.url"
        placed[name] = overrides[name]
    settings = load(config, {}, {f"kafka.{name}": (at, "test") for name, at in placed.items()})
    with ClusterReader(settings.kafka.for_librdkafka(), timeout_s=WAIT_S) as reader:
        assert reader.admin.list_topics(timeout=WAIT_S).brokers


def test_every_kind_has_its_lines() -> None:
    """Each mechanism, and each form of it that a public cloud has."""
    text = "".join(block.text for block in SETTINGS)
    for words in ("SCRAM-SHA-512", "$ConnectionString", "confluent", "aws-msk-iam", "azure_imds"):
        assert words in text
