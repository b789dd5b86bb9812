"""The ``[kafka]`` table: which of librdkafka's settings may be given, and which are secret.

An allow-list, since some of librdkafka's settings load code (``plugin.library.paths``,
``ssl.engine.location``) or run commands (``sasl.kerberos.kinit.cmd``).
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.config import LARGEST
from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.service.problems import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECRET: Final = frozenset(
    {
        "sasl.oauthbearer.client.secret",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
"""Masked wherever they are shown; each may come from a file, as ``<key>_file``."""

ALLOWED: Final = SECRET | {
    "api.version.request.timeout.ms",
    "bootstrap.servers",
    "broker.address.family",
    "broker.address.ttl",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "debug",
    "enable.ssl.certificate.verification",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.max.fails",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.sigalgs.list",
    "topic.metadata.refresh.interval.ms",
}
"""What reaches librdkafka."""

LONGEST_PAUSE_MS: Final = 600_000
"""Between tries to connect; from an hour on librdkafka (2.16) makes none at all between them."""

FILE_SUFFIX: Final = "_file"
MASK: Final = "***"
SECRET_FILE_BYTES: Final = 65_536
"""A larger file is no secret but a mistake."""


class KafkaSettings:
    """Settings for librdkafka, by key; secrets never show in its repr."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """``values`` as ``check_kafka`` gave them."""
        self._values = dict(values)

    def for_librdkafka(self) -> dict[str, object]:
        """Everything, secrets as they are."""
        return dict(self._values)

    def masked(self) -> dict[str, str]:
        """Everything, fit to be shown."""
        return {key: MASK if key in SECRET else value for key, value in self._values.items()}

    def __repr__(self) -> str:
        return f"KafkaSettings({self.masked()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaSettings) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]


def env_keys() -> dict[str, str]:
    """Names by which the environment gives each key: ``SASL_PASSWORD_FILE`` and so on."""
    keys = [*ALLOWED, *(key + FILE_SUFFIX for key in SECRET)]
    return {key.replace(".", "_").upper(): key for key in keys}


def flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Keys and values of a table; unquoted TOML keys make tables of ``bootstrap.servers``."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check_kafka(values: Mapping[str, tuple[object, str]]) -> KafkaSettings:
    """``values`` (each with its source) as librdkafka takes them; secret files are read.

    Raises InvalidValueError naming the setting, its source and the fix.
    """
    checked: dict[str, str] = {}
    for key, (value, source) in values.items():
        field = f"kafka.{key} ({source})"
        secret_key = key.removesuffix(FILE_SUFFIX)
        if secret_key != key and secret_key in SECRET:
            if secret_key in values:
                fix = f"give either {secret_key} or {key}"
                raise InvalidValueError(field, value, f"comes beside {secret_key}", fix)
            checked[secret_key] = _read_secret(value, field)
        elif key in ALLOWED:
            checked[key] = _text(key, value, field)
            _check_pause(key, checked[key], field)
        else:
            raise _unknown(key, value, field)
    if not checked.get("bootstrap.servers", "").strip():
        fix = "give --bootstrap-servers host:port, or bootstrap.servers in the [kafka] table"
        raise MissingError("kafka.bootstrap.servers", fix)
    return KafkaSettings(checked)


def _unknown(key: str, value: object, field: str) -> InvalidValueError:
    near = difflib.get_close_matches(key, ALLOWED, n=1)
    fix = f"did you mean {near[0]}?" if near else "remove it; some settings would load code"
    # What it holds may be a secret under a mistyped name.
    del value
    return InvalidValueError(field, MASK, "is not a setting that may be given here", fix)


def _text(key: str, value: object, field: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and abs(value) <= LARGEST:
        return str(value)
    if isinstance(value, (int, float)):
        fix = f"give a number of at most {LARGEST}"
        raise InvalidValueError(field, MASK, "is too large", fix)
    if not isinstance(value, str):
        problem = f"is a {type(value).__name__}"
        raise InvalidValueError(field, MASK, problem, "give text, a number or true/false")
    unprintable = not value.isprintable() and not key.endswith(".pem")
    if unprintable or "\0" in value:
        hidden = MASK if key in SECRET else value
        raise InvalidValueError(field, hidden, "holds a control character", "remove it")
    return value


def _check_pause(key: str, text: str, field: str) -> None:
    if key.startswith("reconnect.") and text.isdecimal() and float(text) > LONGEST_PAUSE_MS:
        fix = f"give at most {LONGEST_PAUSE_MS}, which are ten minutes"
        raise InvalidValueError(field, text, "is too long a pause", fix)


def _read_secret(path: object, field: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidValueError(field, path, "is not a path", "give the path of a readable file")
    try:
        with Path(path).open("rb") as file:
            raw = file.read(SECRET_FILE_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise InvalidValueError(field, path, problem, "give a readable file") from None
    try:
        secret = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidValueError(field, path, "is not UTF-8 text", "give a text file") from None
    if not secret or len(raw) > SECRET_FILE_BYTES or "\0" in secret:
        problem = f"holds no secret ({shown(len(raw))} bytes)"
        raise InvalidValueError(field, path, problem, "write the secret alone into the file")
    return secret
