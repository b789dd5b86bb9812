"""TLS: the server's certificate, and the authority of its clients' certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.errors import MissingError
from offsetmgr.http.files import FileWatch, check_private, check_regular


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files.  With ``client_ca`` a client needs a certificate of that authority."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key) or (self.client_ca and not self.key):
            missing = "tls.key" if self.certificate else "tls.certificate"
            raise MissingError(missing, "give tls.certificate and tls.key, the paths of PEM files")


class Certificates:
    """The server's certificate, and the authority of its clients' certificates."""

    def __init__(self, tls: Tls) -> None:
        """Raise InvalidValueError where a file is of no use."""
        self._tls = tls
        paths = tls.certificate, tls.key, tls.client_ca
        self.watch = FileWatch("certificate", [Path(each) for each in paths if each], self._renew)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(self.context)
        if tls.client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED

    def _renew(self) -> None:
        """Take changed files for new connections; with an error nothing changes.

        A further authority of clients counts at once, one that was removed until the restart.
        """
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a try
        self._load(self.context)

    def factory(self, *_: object) -> ssl.SSLContext:
        """As uvicorn's ``ssl_context_factory``."""
        return self.context

    def _load(self, context: ssl.SSLContext) -> None:
        tls = self._tls
        check_private(tls.key, "tls.key")
        check_regular(tls.certificate, "tls.certificate")
        if tls.client_ca:
            check_regular(tls.client_ca, "tls.client_ca")
        name = f"tls.certificate and tls.key ({tls.certificate})"
        try:
            # An encrypted key would ask for its password on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, lambda: "")
            if tls.client_ca:
                name = "tls.client_ca"
                context.load_verify_locations(tls.client_ca)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = getattr(error, "strerror", None) or str(error)
            fix = "give readable PEM files: a certificate with chain and its key without password"
            raise InvalidValueError(name, None, f"cannot be used ({reason})", fix) from None
