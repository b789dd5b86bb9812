"""A client's token and certificates, and the authority it trusts; all from files."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_HEADERS: Final[Mapping[str, str]] = {}


class Credentials:
    """Paths of PEM files, and of one with the token; what is in them shows nowhere."""

    def __init__(
        self,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Without ``ca_file`` the authorities of the system count.  Raises InvalidValueError."""
        self.files = {
            name: None if path is None else _path(name, path)
            for name, path in (
                ("token_file", token_file),
                ("ca_file", ca_file),
                ("cert_file", cert_file),
                ("key_file", key_file),
            )
        }
        if key_file is not None and cert_file is None:
            raise InvalidValueError("cert_file", None, "is missing", "give it with key_file")
        self._token = self._read_token()
        if ca_file is not None or cert_file is not None:
            try:
                self.tls_context()
            except ssl.SSLError as error:
                names = ", ".join(name for name in ("ca_file", "cert_file") if self.files[name])
                fix = "give PEM files: a certificate, and its own key without a password"
                raise InvalidValueError(names, None, f"cannot be used ({error})", fix) from None

    @classmethod
    def from_environment(cls, env: Mapping[str, str], token_file: str | None = None) -> Credentials:
        """Return those that commands have: ``OFFSETMGR_TOKEN_FILE``, ``OFFSETMGR_CA_FILE`` ..."""

        def given(name: str) -> str | None:
            return env.get(f"OFFSETMGR_{name}_FILE") or None

        return cls(token_file or given("TOKEN"), given("CA"), given("CERT"), given("KEY"))

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def headers(self) -> Mapping[str, str]:
        """Return the headers that carry the token."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else NO_HEADERS

    def reread(self) -> bool:
        """Read a token that was refused again; return True if it has changed."""
        before = self._token
        try:
            self._token = self._read_token()
        except InvalidValueError:
            return False  # the file is being replaced: the token is tried again, and so is this
        return self._token != before

    def tls_context(self) -> ssl.SSLContext:
        """Return a context with the certificates as the files have them now.

        It checks the service's name.  Raises OSError, of which ssl.SSLError is one.
        """
        context = ssl.create_default_context(cafile=self.files["ca_file"])
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        certificate = self.files["cert_file"]
        if certificate is not None:
            # Without the third one an encrypted key would ask for its password on the terminal.
            context.load_cert_chain(certificate, self.files["key_file"], lambda: "")
        return context

    def _read_token(self) -> str:
        path = self.files["token_file"]
        if path is None:
            return ""
        try:
            found = Path(path).read_text(encoding="ascii").split()
        except (OSError, UnicodeDecodeError):
            found = []
        if not found:
            fix = "give a file whose first line is the token"
            raise InvalidValueError("token_file", path, "does not hold a token", fix)
        return found[0]


def _path(name: str, given: object) -> str:
    """Return a path of a file that can be read.  Raises InvalidValueError."""
    fix = "give the path of a readable file"
    try:
        path = os.fspath(given)  # type: ignore[call-overload]
        with Path(path).open("rb"):
            return str(path)
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no path"
        raise InvalidValueError(name, given, f"cannot be read ({reason})", fix) from None
