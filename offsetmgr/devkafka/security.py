"""A second listener of a local Kafka: TLS, a password for each user, and Kafka's own ACLs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.devkafka.broker import HOST
from offsetmgr.devkafka.errors import DevKafkaError
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_STORE: Final = "broker.p12"
_CERTIFICATE: Final = "broker.pem"
# The key is of a throw-away certificate for 127.0.0.1, and its file is the owner's alone.
_STORE_PASSWORD: Final = "on-this-machine"  # noqa: S105 -- as said above
_DAYS: Final = "3650"
_KEYTOOL_S: Final = 60.0


class Secured(NamedTuple):
    """What clients and brokers have to know of the listener."""

    users: Mapping[str, str]
    """Passwords by name."""
    ports: Sequence[int]
    """Where each broker listens for them."""
    store: Path
    """The brokers' key."""
    certificate: Path
    """What clients have to trust: the brokers' own certificate, as PEM."""

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def properties(self, node_id: int) -> dict[str, str]:
        """Return what the listener adds to the server.properties of broker ``node_id``."""
        address = f"SASL_SSL://{HOST}:{self.ports[node_id - 1]}"
        users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        return {
            "listeners": address,
            "advertised.listeners": address,
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            # Its passwords are Kafka's to keep: whoever wants one asks an admin client.
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            ),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.store),
            "ssl.keystore.password": _STORE_PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Whoever comes over the plain listener has no name, and may do everything.
            "super.users": "User:ANONYMOUS",
        }

    def login(self, user: str) -> dict[str, str]:
        """Return librdkafka's settings for ``user``.  Raises DevKafkaError for an unknown one."""
        if user not in self.users:
            message = f"there is no user {user!r}: this Kafka knows {', '.join(self.users)}"
            raise DevKafkaError(message)
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self.users[user],
            "ssl.ca.location": str(self.certificate),
        }


def check_users(users: Mapping[str, str]) -> dict[str, str]:
    """Return ``users``, passwords by name.  Raises InvalidValueError, without the password."""
    for name, password in users.items():
        if not _PLAIN_WORD.fullmatch(name):
            raise InvalidValueError(
                "users", name, "is no name for a user", "give letters, digits and ._- only"
            )
        if not _PLAIN_WORD.fullmatch(password):
            raise InvalidValueError(
                "users", name, "has no usable password", "give letters, digits and ._- only"
            )
    return dict(users)


def secure(folder: Path, users: Mapping[str, str], ports: Sequence[int], java: str) -> Secured:
    """Describe the listener; its key is made in ``folder``, or is there from an earlier start.

    Raises DevKafkaError where Java's keytool does not make one.
    """
    store, certificate = folder / _STORE, folder / _CERTIFICATE
    keytool = str(Path(java).resolve().with_name("keytool"))
    common = ("-alias", "broker", "-keystore", str(store), "-storepass", _STORE_PASSWORD)
    if not certificate.exists():
        store.unlink(missing_ok=True)
        _run(
            [
                *(keytool, "-genkeypair", *common, "-storetype", "PKCS12", "-validity", _DAYS),
                *("-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=offsetmgr-dev-kafka"),
                *("-ext", f"san=ip:{HOST},dns:localhost"),
            ]
        )
        store.chmod(0o600)
        _run([keytool, "-exportcert", "-rfc", *common, "-file", str(certificate)])
    return Secured(users, tuple(ports), store, certificate)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_KEYTOOL_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", None) or error
        message = f"Java's keytool made no key for Kafka's TLS listener: {said}"
        raise DevKafkaError(message) from error
