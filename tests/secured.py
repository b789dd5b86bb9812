"""A Kafka with a second listener: TLS, a password for one user, and Kafka's own ACLs."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.cluster import HOST, free_ports
from offsetmgr.devkafka.jars import find_java

if TYPE_CHECKING:
    from typing_extensions import Self

USER = "etl"
"""Knows the password of the shared ``kafka``'s other listener, and may do nothing there."""

TOKEN_USER = "token-etl"  # noqa: S105 -- a name
"""Logs in by a token, and may do everything."""

_PASSWORD = "tell-nobody"  # noqa: S105 -- of a Kafka that ends with the tests
_STORE_PASSWORD = "on-this-machine"  # noqa: S105 -- the same
_MODULES = "org.apache.kafka.common.security"


class SecuredKafka(DevKafka):
    """One broker; ``folder`` holds its key and certificate."""

    def __init__(self, folder: Path) -> None:
        port, self._secured, controller = free_ports(3)
        self._certificate, store = folder / "broker.pem", folder / "broker.p12"
        keytool = str(Path(find_java()).resolve().with_name("keytool"))
        subprocess.run(
            [
                *(keytool, "-genkeypair", "-alias", "broker", "-keystore", str(store)),
                *("-storepass", _STORE_PASSWORD, "-storetype", "PKCS12", "-validity", "3650"),
                *("-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=offsetmgr-tests"),
                *("-ext", "san=ip:127.0.0.1,dns:localhost"),
            ],
            check=True,
            capture_output=True,
        )
        addresses = f"PLAINTEXT://{HOST}:{port},SASL_SSL://{HOST}:{self._secured}"
        listener = "listener.name.sasl_ssl"
        properties = {
            "listeners": f"{addresses},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": addresses,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            # An admin client adds its users and passwords, which Kafka keeps.
            f"{listener}.scram-sha-512.sasl.jaas.config": (
                f"{_MODULES}.scram.ScramLoginModule required;"
            ),
            f"{listener}.plain.sasl.jaas.config": (
                f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{_PASSWORD}";'
            ),
            # It takes unsigned tokens, so that a test can write them.
            f"{listener}.oauthbearer.sasl.jaas.config": (
                f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": _STORE_PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients of the plain listener have no name, and may do everything.
            "super.users": f"User:ANONYMOUS;User:{TOKEN_USER}",
        }
        super().__init__(ports=[port], properties=properties)

    def __enter__(self) -> Self:
        super().__enter__()
        self._certificate.write_text(ssl.get_server_certificate((HOST, self._secured)))
        return self

    def login(self) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{HOST}:{self._secured}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": _PASSWORD,
            "ssl.ca.location": str(self._certificate),
        }

    def token_login(self) -> dict[str, object]:
        """Return librdkafka's settings for ``TOKEN_USER``, but for ``oauth_cb``."""
        login = {name: value for name, value in self.login().items() if "sasl" not in name}
        return {**login, "sasl.mechanism": "OAUTHBEARER"}


def user_login(kafka: DevKafka) -> dict[str, str]:
    """Return librdkafka's settings for ``USER`` of the shared ``kafka``."""
    assert isinstance(kafka, SecuredKafka)
    return kafka.login()
