"""A Kafka with ACLs and more listeners: passwords or tokens, certificates, a wrong address."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from offsetmgr.devkafka import KAFKA_VERSION, DevKafka
from offsetmgr.devkafka.cluster import HOST, free_ports
from tests.certificates import Authority
from tests.waiting import until

VERSION = os.environ.get("TEST_KAFKA_VERSION", KAFKA_VERSION)
"""The release of the shared ``kafka``, which `make compat-kafka` chooses."""

USER = "etl"
"""Knows the password of the shared ``kafka``'s other listener, and may do nothing there."""

TOKEN_USER = "token-etl"  # noqa: S105 -- a name
"""Logs in by a token, and may do everything."""

PASSWORDS = {
    USER: "tell-nobody",
    "offsetmgr": "tell-anybody",
    # As Azure Event Hubs and Confluent Cloud call their users.
    "$ConnectionString": (
        "Endpoint=sb://orders.servicebus.windows.net/;"
        "SharedAccessKeyName=offsetmgr;SharedAccessKey=bm9ib2R5Cg=="
    ),
    "ABCDEFGH23456789": "cflt+tell/nobody",
}
"""By user, of a Kafka that ends with the tests."""

_WAIT_S = 60.0
_MODULES = "org.apache.kafka.common.security"


class SecuredKafka(DevKafka):
    """One broker; ``folder`` holds keys and certificates."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        broker = self._authority.sign("localhost")
        store = folder / "broker.pem"
        store.write_text(Path(broker.key).read_text() + Path(broker.certificate).read_text())
        port, self._secured, self._mutual, self._unresolved, controller = free_ports(5)
        addresses = (
            f"PLAINTEXT://{HOST}:{port},SASL_SSL://{HOST}:{self._secured},"
            f"SSL://{HOST}:{self._mutual}"
        )
        listener = "listener.name.sasl_ssl"
        users = "".join(f' user_{name}="{word}"' for name, word in PASSWORDS.items())
        properties = {
            "listeners": (
                f"{addresses},UNRESOLVED://{HOST}:{self._unresolved},"
                f"CONTROLLER://{HOST}:{controller}"
            ),
            "advertised.listeners": f"{addresses},UNRESOLVED://broker.invalid:{self._unresolved}",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,"
                "UNRESOLVED:PLAINTEXT"
            ),
            f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            # An admin client adds its users and passwords, which Kafka keeps.
            f"{listener}.scram-sha-512.sasl.jaas.config": (
                f"{_MODULES}.scram.ScramLoginModule required;"
            ),
            f"{listener}.plain.sasl.jaas.config": (
                f"{_MODULES}.plain.PlainLoginModule required{users};"
            ),
            # It takes unsigned tokens, so that a test can write them.
            f"{listener}.oauthbearer.sasl.jaas.config": (
                f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.file),
            "listener.name.ssl.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients of the plain listener have no name, and may do everything.
            "super.users": f"User:ANONYMOUS;User:{TOKEN_USER}",
        }
        super().__init__(ports=[port], properties=properties, version=VERSION)

    def login(self) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{HOST}:{self._secured}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORDS[USER],
            "ssl.ca.location": str(self._authority.file),
        }

    def certificate_login(self) -> dict[str, str]:
        """Return librdkafka's settings for a user that has a certificate."""
        files = self._authority.sign(USER)
        return {
            "bootstrap.servers": f"{HOST}:{self._mutual}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._authority.file),
            "ssl.certificate.location": files.certificate,
            "ssl.key.location": files.key,
        }

    @property
    def unresolved(self) -> str:
        """Bootstrap servers of a listener that advertises a name that cannot be resolved."""
        return f"{HOST}:{self._unresolved}"

    def token_login(self) -> dict[str, object]:
        """Return librdkafka's settings for ``TOKEN_USER``, but for ``oauth_cb``."""
        login = {name: value for name, value in self.login().items() if "sasl" not in name}
        return {**login, "sasl.mechanism": "OAUTHBEARER"}


def allow(
    kafka: DevKafka,
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    user: str = USER,
    prefixed: bool = False,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> None:
    """Give the user rights (or deny them), and see that the broker goes by them."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    for operation in operations:
        rule = kind, name, pattern, f"User:{user}", "*", operation, permission
        binding = AclBinding(*rule)
        admin.create_acls([binding])[binding].result(_WAIT_S)
        # The controller has it then; the broker itself learns of it a moment later.
        until(partial(_is_known, admin, AclBindingFilter(*rule)))


def _is_known(admin: AdminClient, wanted: AclBindingFilter) -> bool:
    return bool(admin.describe_acls(wanted).result(_WAIT_S))


def user_login(kafka: DevKafka) -> dict[str, str]:
    """Return librdkafka's settings for ``USER`` of the shared ``kafka``."""
    assert isinstance(kafka, SecuredKafka)
    return kafka.login()
