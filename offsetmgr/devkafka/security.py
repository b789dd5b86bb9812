"""A second listener of a local Kafka: TLS, a password for each user, and Kafka's own ACLs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.devkafka.process import DevKafkaError, run_tool
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
# The key is of a throw-away certificate for 127.0.0.1, and its file is the owner's alone.
_STORE_PASSWORD: Final = "on-this-machine"  # noqa: S105 -- as said above
_KEYTOOL_S: Final = 60.0


class UserListener(NamedTuple):
    """The listener for users with a password: what brokers and clients have to know of it."""

    passwords: Mapping[str, str]
    """By user."""
    addresses: Sequence[str]
    """Of each broker, host:port."""
    store: Path
    """The brokers' key."""
    certificate: Path
    """The brokers' certificate as PEM, which clients have to trust."""

    def properties(self) -> dict[str, str]:
        """Return what every broker adds to its server.properties."""
        users = " ".join(f'user_{name}="{word}"' for name, word in self.passwords.items())
        login = "org.apache.kafka.common.security"
        return {
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            # An admin client adds its users and passwords, which Kafka keeps.
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                f"{login}.scram.ScramLoginModule required;"
            ),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f"{login}.plain.PlainLoginModule required {users};"
            ),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.store),
            "ssl.keystore.password": _STORE_PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients of the plain listener have no name, and may do everything.
            "super.users": "User:ANONYMOUS",
        }

    def login(self, user: str) -> dict[str, str]:
        """Return librdkafka's settings for ``user``.  Raises DevKafkaError for an unknown one."""
        if user not in self.passwords:
            known = ", ".join(self.passwords)
            raise DevKafkaError(f"there is no user {user!r}: this Kafka knows {known}")
        return {
            "bootstrap.servers": ",".join(self.addresses),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.certificate),
        }


def check_users(users: Mapping[str, str]) -> dict[str, str]:
    """Return ``users``, passwords by name.  Raises InvalidValueError, without the password."""
    for name, password in users.items():
        for word, problem in (
            (name, "is no name for a user"),
            (password, "has no usable password"),
        ):
            if not _PLAIN_WORD.fullmatch(word):
                fix = "give letters, digits and ._- only"
                raise InvalidValueError("users", name, problem, fix)
    return dict(users)


def user_listener(
    folder: Path, passwords: Mapping[str, str], addresses: Sequence[str], java: str
) -> UserListener:
    """Make the listener's key in ``folder``, unless an earlier start has.

    Raises DevKafkaError where Java's keytool fails.
    """
    store, certificate = folder / "broker.p12", folder / "broker.pem"
    keytool = str(Path(java).resolve().with_name("keytool"))
    common = ("-alias", "broker", "-keystore", str(store), "-storepass", _STORE_PASSWORD)
    if not certificate.exists():
        store.unlink(missing_ok=True)
        _run(
            *(keytool, "-genkeypair", *common, "-storetype", "PKCS12", "-validity", "3650"),
            *("-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=offsetmgr-dev-kafka"),
            *("-ext", "san=ip:127.0.0.1,dns:localhost"),
        )
        store.chmod(0o600)
        _run(keytool, "-exportcert", "-rfc", *common, "-file", str(certificate))
    return UserListener(passwords, addresses, store, certificate)


def _run(*command: str) -> None:
    advice = "install the whole of Java"
    done = run_tool("Java's keytool", command, timeout_s=_KEYTOOL_S, advice=advice)
    if done.returncode != 0:
        output = f"{done.stdout}{done.stderr}"
        raise DevKafkaError(f"Java's keytool made no key for Kafka's TLS listener: {output}")
