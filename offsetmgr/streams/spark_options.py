"""Options of Spark's Kafka source and sink, from librdkafka's settings: TLS is set once.

Spark's clients are Java's.  What an executor could not read from a file of the driver is sent as
text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.topics import setting_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAME: Final = (
    *("bootstrap.servers", "security.protocol", "sasl.kerberos.service.name"),
    *("ssl.key.password", "ssl.keystore.location", "ssl.keystore.password"),
)
"""Settings that have one name and meaning in both."""

_OURS: Final = frozenset(
    [
        *("topic", "subscribe", "subscribepattern", "assign", "includeheaders"),
        *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
        "maxoffsetspertrigger",
    ]
)
"""Options that would change what a processor reads or where it writes."""

_TEXTS: Final = {
    "ssl.truststore.certificates": ("ssl.ca.location", "ssl.ca.pem"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.location", "ssl.certificate.pem"),
    "ssl.keystore.key": ("ssl.key.location", "ssl.key.pem"),
}
"""Java's settings of PEM texts, with librdkafka's for the file and for the text."""

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OLD_KEY: Final = "BEGIN RSA PRIVATE KEY"


def spark_options(kafka: Mapping[str, object], options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for Spark: of ``kafka`` what names brokers and security, and ``options``.

    Of two that are the same, that of ``options`` counts.  Raises InvalidValueError for an option of
    the processor's own, and for a setting of security that Java's clients do not have, unless
    ``options`` have ``kafka.security.protocol``.
    """
    for name in options:
        if name.lower() in _OURS:
            raise InvalidValueError("kafka_options", name, "is set by the processor", "remove it")
    # Spark's own options have no case; this one is read here, too.
    loss = "failOnDataLoss"
    own = {
        loss if name.lower() == loss.lower() else name: setting_text(value)
        for name, value in options.items()
    }
    java = {name: str(kafka[name]) for name in _SAME if name in kafka}
    if "kafka.security.protocol" not in options:
        java |= _trust(kafka) | _login(kafka)
    return {f"kafka.{name}": value for name, value in java.items()} | own


def _trust(kafka: Mapping[str, object]) -> dict[str, str]:
    java: dict[str, str] = {}
    if str(kafka.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        raise _untranslated("enable.ssl.certificate.verification", "give ssl.ca.location instead")
    for name, (location, text) in _TEXTS.items():
        path = str(kafka.get(location) or "")
        if path and path != "probe":
            java[name] = _read(location, path)
        elif text in kafka:
            java[name] = str(kafka[text])
    if _OLD_KEY in java.get("ssl.keystore.key", ""):
        raise _untranslated("ssl.key.location", "convert it: openssl pkcs8 -topk8 -nocrypt -in KEY")
    if "ssl.truststore.certificates" in java:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in java:
        java["ssl.keystore.type"] = "PEM"
    elif "ssl.keystore.location" in kafka:
        java["ssl.keystore.type"] = "PKCS12"
    if "ssl.endpoint.identification.algorithm" in kafka:
        algorithm = str(kafka["ssl.endpoint.identification.algorithm"])
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return java


def _login(kafka: Mapping[str, object]) -> dict[str, str]:
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "")
    if not mechanism:
        return {}
    module = _MODULES.get(mechanism)
    if module is None:
        fix = "give kafka.security.protocol and kafka.sasl.* in kafka_options, as Java has them"
        raise _untranslated("sasl.mechanism", fix)
    user, password = (_quoted(kafka.get(f"sasl.{name}", "")) for name in ("username", "password"))
    jaas = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        fix = f"give a file in PEM ({error})"
        raise InvalidValueError(name, path, "cannot be read as text", fix) from None


def _quoted(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _untranslated(name: str, fix: str) -> InvalidValueError:
    return InvalidValueError(name, None, "cannot be given to Spark's clients as it is", fix)
