"""Librdkafka's settings as Spark's clients take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.spark_options import spark_options

if TYPE_CHECKING:
    from pathlib import Path


def test_tls_and_passwords_are_passed_on(tmp_path: Path) -> None:
    """Files as text, which executors need not have; quotes of a password are escaped."""
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"PEM of {name}")
    kafka = {
        "bootstrap.servers": "one:1,two:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "etl",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.endpoint.identification.algorithm": "none",
        "fetch.wait.max.ms": 5,
    }
    given: dict[str, Any] = {"kafka.linger.ms": 5, "failondataloss": False}
    options = spark_options(kafka, given)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert options == {
        "kafka.bootstrap.servers": "one:1,two:2",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="etl" password="a\\"b\\\\c";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "PEM of ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "PEM of cert",
        "kafka.ssl.keystore.key": "PEM of key",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.linger.ms": "5",
        "failOnDataLoss": "false",
    }


@pytest.mark.parametrize("content", [None, b"\x30\x82\xff"], ids=["folder", "DER"])
def test_a_certificate_that_is_not_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing file, a folder, and another format."""
    path = tmp_path if content is None else tmp_path / "ca.der"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidValueError, match=r"ssl.ca.location .* give a file in PEM"):
        spark_options({"ssl.ca.location": str(path)}, {})


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, "give kafka.security.protocol and kafka.sasl"),
        ({"enable.ssl.certificate.verification": False}, "give ssl.ca.location instead"),
        ({"ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "openssl pkcs8 -topk8"),
    ],
)
def test_settings_unknown_to_java_are_refused(settings: dict[str, Any], hint: str) -> None:
    """Unless the options for Spark say how."""
    kafka = {"bootstrap.servers": "one:1", **settings}
    with pytest.raises(InvalidValueError, match=hint):
        spark_options(kafka, {})
    own = {"kafka.security.protocol": "SSL"}
    assert spark_options(kafka, own) == {"kafka.bootstrap.servers": "one:1", **own}
