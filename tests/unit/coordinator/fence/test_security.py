"""What the fence's own connections understand of librdkafka's settings, and what they refuse."""

from __future__ import annotations

import base64
import ssl

import pytest

from offsetmgr.coordinator.fence.security import (
    Plain,
    RejectedError,
    Sasl,
    Scram,
    security_of,
)
from offsetmgr.errors import InvalidValueError

USER = Sasl("SCRAM-SHA-256", "user", "pencil")
NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
CHALLENGE = f"r={BOTH},s={SALT},i=4096".encode()
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_is_that_of_its_rfc() -> None:
    """The exchange in RFC 7677, section 3."""
    proof = Scram(USER, NONCE)
    assert proof.begin() == f"n,,n=user,r={NONCE}".encode()
    final = f"c=biws,r={BOTH},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert proof.reply(CHALLENGE) == final.encode()
    assert proof.reply(SIGNATURE) is None


@pytest.mark.parametrize(
    "challenge",
    [
        pytest.param(f"r=another,s={SALT},i=4096", id="nonce of another exchange"),
        pytest.param(f"r={BOTH},s={SALT},i=4095", id="too few rounds"),
        pytest.param(f"r={BOTH},s={SALT},i=1000001", id="rounds that take for ever"),
        pytest.param(f"r={BOTH},s={SALT},i=many", id="no number"),
        pytest.param(f"r={BOTH},i=4096", id="no salt"),
        pytest.param("e=unknown-user", id="an error"),
        pytest.param("", id="nothing"),
    ],
)
def test_a_challenge_that_is_not_to_be_trusted(challenge: str) -> None:
    """It ends the exchange: no proof of the password is given."""
    with pytest.raises(RejectedError):
        Scram(USER, NONCE).reply(challenge.encode())


def test_a_challenge_that_is_no_text() -> None:
    """Whoever sends it is not trusted either, at either step."""
    proof = Scram(USER, NONCE)
    with pytest.raises(RejectedError, match="no sense"):
        proof.reply(b"e=\xff")
    proof.reply(CHALLENGE)
    with pytest.raises(RejectedError, match="no sense"):
        proof.reply(b"v=\xff")


def test_a_broker_that_does_not_know_the_password() -> None:
    """Who cannot sign the exchange is an impostor."""
    proof = Scram(USER, NONCE)
    proof.reply(CHALLENGE)
    with pytest.raises(RejectedError, match="impostor"):
        proof.reply(b"v=" + base64.b64encode(bytes(32)))


def test_names_are_escaped_in_scram() -> None:
    """A comma would end the name."""
    assert Scram(USER._replace(username="a=b,c"), "x").begin() == b"n,,n=a=3Db=2Cc,r=x"


def test_plain() -> None:
    """Name and password in one message, and no second one."""
    proof = Plain(Sasl("PLAIN", "user", "pencil"))
    assert proof.begin() == b"\0user\0pencil"
    assert proof.reply(b"") is None


def test_no_secret_is_shown() -> None:
    """The password stays out of logs and tracebacks."""
    assert "pencil" not in repr(USER)


def test_nothing_is_asked_for_by_default() -> None:
    """As with librdkafka."""
    assert security_of({"bootstrap.servers": "a:1", "client.id": "x"}) == (None, None)


def test_tls_is_verified_unless_it_is_switched_off() -> None:
    """The certificate and the name in it, each by its own setting."""
    strict = security_of({"security.protocol": "ssl"}).tls
    nameless = security_of(
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    ).tls
    blind = security_of(
        {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    ).tls
    assert strict is not None
    assert nameless is not None
    assert blind is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (nameless.verify_mode, nameless.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert (blind.verify_mode, blind.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    "config",
    [
        {"security.protocol": "SASL_SSL"},  # librdkafka's own default is Kerberos
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        {"ssl.crl.location": "/x"},
        {"sasl.kerberos.service.name": "kafka"},
        {"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"},
        {"security.protocol": "SSL", "ssl.ca.pem": "nonsense"},
    ],
)
def test_what_it_cannot_do_is_refused_at_the_start(config: dict[str, object]) -> None:
    """A setting that says how safe a connection has to be is never ignored."""
    with pytest.raises(InvalidValueError) as refused:
        security_of(config)
    assert refused.value.field == "fence"
