"""Certificates for tests: an authority, and what it signs; also of the past."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

_DAY = timedelta(days=1)


class CertificateFiles(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates of the address 127.0.0.1, and of a name."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, self._name, self._key.public_key(), _DAY)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        signed = builder.add_extension(constraints, critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}-ca.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, left: timedelta = _DAY) -> CertificateFiles:
        """Return a certificate of ``name`` that is good for ``left``, which may be negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName(name)]
        builder = _builder(subject, self._name, key.public_key(), left)
        signed = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
            self._key, hashes.SHA256()
        )
        certificate, secret = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret.touch(mode=0o600)
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return CertificateFiles(str(certificate), str(secret))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, left: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - 10 * _DAY,
        not_valid_after=now + left,
    )
