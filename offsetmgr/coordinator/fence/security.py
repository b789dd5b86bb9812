"""How the fence's connections are made safe: the same settings as librdkafka's, by other means.

A setting of ``ssl.*`` or ``sasl.*`` that is not understood here is refused, never ignored: the
fence must not be a weaker way into the cluster than the rest of the service.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNDERSTOOD: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MECHANISMS: Final = ("PLAIN", *_HASHES)
_ITERATIONS: Final = range(4_096, 1_000_001)
"""What RFC 7677 asks for at least, and what would only keep this process busy."""


class RejectedError(Exception):
    """Who answers cannot be the broker that knows the password, or did not take ours."""


class Proof(Protocol):
    """One exchange that proves who the client is."""

    def begin(self) -> bytes:
        """The first message."""

    def reply(self, challenge: bytes) -> bytes | None:
        """The next one; None where all is said.  Raises RejectedError."""


class Sasl(NamedTuple):
    """Name and password, and how they are shown."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Sasl({self.mechanism}, {self.username!r})"

    def proof(self) -> Proof:
        """Begin an exchange."""
        return Scram(self) if self.mechanism in _HASHES else Plain(self)


class Security(NamedTuple):
    """What a connection needs before its first request."""

    tls: ssl.SSLContext | None
    sasl: Sasl | None


class Plain:
    """RFC 4616."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl

    def begin(self) -> bytes:
        """Name and password."""
        return f"\0{self._sasl.username}\0{self._sasl.password}".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        """Nothing more."""
        del challenge
        return None


class Scram:
    """RFC 5802 and 7677, without channel binding."""

    def __init__(self, sasl: Sasl, nonce: str = "") -> None:
        """``nonce`` is random where none is given."""
        self._sasl = sasl
        self._hash = _HASHES[sasl.mechanism]
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = sasl.username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature: bytes | None = None
        """What the broker has to answer, once it is known."""

    def begin(self) -> bytes:
        """Name and nonce."""
        return f"n,,{self._bare}".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        """The proof; then check the broker's own."""
        try:
            return self._replied(challenge.decode())
        except (KeyError, ValueError) as error:
            raise RejectedError("the broker's SCRAM message makes no sense") from error

    def _replied(self, challenge: str) -> bytes | None:
        fields = dict(part.split("=", 1) for part in challenge.split(",") if "=" in part)
        if "e" in fields:
            raise RejectedError(f"SCRAM was refused: {fields['e']}")
        if self._signature is None:
            return self._prove(challenge, fields)
        if not hmac.compare_digest(base64.b64decode(fields["v"]), self._signature):
            raise RejectedError("the broker does not know the password: it is an impostor")
        return None

    def _prove(self, challenge: str, fields: Mapping[str, str]) -> bytes:
        nonce, salt, rounds = fields["r"], base64.b64decode(fields["s"]), int(fields["i"])
        if not nonce.startswith(self._nonce) or rounds not in _ITERATIONS:
            raise RejectedError("the broker's SCRAM challenge is not to be trusted")
        salted = hashlib.pbkdf2_hmac(self._hash, self._sasl.password.encode(), salt, rounds)
        key = self._mac(salted, b"Client Key")
        final = f"c=biws,r={nonce}"
        said = f"{self._bare},{challenge},{final}".encode()
        mask = self._mac(hashlib.new(self._hash, key).digest(), said)
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), said)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def security_of(config: Mapping[str, object]) -> Security:
    """What ``config`` asks for, in librdkafka's words.

    Raises InvalidValueError where it cannot be had here; secrets are not shown.
    """
    for key in sorted(config):
        if key.startswith(("ssl.", "sasl.")) and key not in _UNDERSTOOD:
            raise _unfit(f"kafka.{key}", "known to it: " + ", ".join(sorted(_UNDERSTOOD)))
    protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
    tls = _context(config) if protocol in {"SSL", "SASL_SSL"} else None
    return Security(tls, _sasl(config) if protocol.startswith("SASL_") else None)


def _sasl(config: Mapping[str, object]) -> Sasl:
    mechanism = str(config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI")))
    if mechanism not in _MECHANISMS:
        raise _unfit(f"kafka.sasl.mechanism {mechanism}", "known to it: " + ", ".join(_MECHANISMS))
    username, password = (str(config.get(f"sasl.{each}", "")) for each in ("username", "password"))
    return Sasl(mechanism, username, password)


def _context(config: Mapping[str, object]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if str(config.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    authorities, pem = config.get("ssl.ca.location"), config.get("ssl.ca.pem")
    try:
        if authorities or pem:
            context.load_verify_locations(
                cafile=str(authorities) if authorities else None,
                cadata=str(pem) if pem else None,
            )
        else:
            context.load_default_certs()
        certificate, key = config.get("ssl.certificate.location"), config.get("ssl.key.location")
        if certificate:
            # A function, as without one OpenSSL would ask at the terminal.
            password = str(config.get("ssl.key.password", ""))
            context.load_cert_chain(str(certificate), str(key) if key else None, lambda: password)
    except (OSError, ValueError) as error:  # of files, or of what is in them
        fix = "see kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location"
        problem = f"cannot be set up for TLS ({error})"
        raise InvalidValueError("fence", True, problem, fix) from error  # noqa: FBT003 -- its value
    return context


def _unfit(what: str, known: str) -> InvalidValueError:
    problem = f"cannot be used with {what}"
    fix = f"switch the fence off, or use what its own connections understand ({known})"
    return InvalidValueError("fence", True, problem, fix)  # noqa: FBT003 -- the setting's value
