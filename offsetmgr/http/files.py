"""Files with tokens and certificates: private, and read again when they change."""

from __future__ import annotations

import hmac
import ssl
import stat
import time
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.errors import HttpStatusError, MissingError
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.datastructures import Headers

MIN_TOKEN_CHARS: Final = 16
MAX_TOKENS: Final = 10
"""In one file: while a token is replaced, the old one is below the new one."""
MAX_FILE_BYTES: Final = 1024 * 1024
HANGS_S: Final = 10.0
"""A look at files that takes longer is in the log."""

log = SafeLogger("offsetmgr.http")


def check_regular(path: str, setting: str) -> int:
    """Return the mode of a regular file of a moderate size.  Raises InvalidValueError."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({getattr(error, 'strerror', None) or 'not a path'})"
        raise InvalidValueError(setting, path, problem, "give a readable file") from None
    if not stat.S_ISREG(found.st_mode):  # to read a pipe could block
        raise InvalidValueError(setting, path, "is not a regular file", "give a regular file")
    if found.st_size > MAX_FILE_BYTES:
        problem = f"has more than {MAX_FILE_BYTES} bytes"
        raise InvalidValueError(setting, path, problem, "give another file")
    return found.st_mode


def check_private(path: str, setting: str) -> None:
    """Raise InvalidValueError unless a secret's file is regular, and not for everybody to read.

    A group may read it, as Kubernetes' ``fsGroup`` does.
    """
    mode = check_regular(path, setting)
    if mode & 0o027:
        problem = f"may be read or changed by others (mode {mode & 0o777:04o})"
        fix = "chmod 600 it, and replace what it held"
        raise InvalidValueError(setting, path, problem, fix)


class FileWatch:
    """Reads files again when one of them was written or replaced, in a thread.

    A file server that hangs holds up nothing but the reading of its own files.
    """

    def __init__(self, kind: str, paths: list[Path], read: Callable[[], object]) -> None:
        """``kind`` is for the log; ``read`` raises InvalidValueError."""
        self._events = f"{kind}_read", f"{kind}_refused", f"{kind}_hangs"
        self._paths = paths
        self._read = read
        self._seen = self._state()
        self._refusal = ""
        """Why the files are refused as they are now."""
        self._looking: Question[None] | None = None
        self._repeats = RepeatLimiter()

    def refresh(self) -> None:
        """Begin to look at the files, unless a look is under way; call it every second or so."""
        if self._looking is None or self._looking.wait():
            self._looking = Question(self.look)
            return
        now_s = time.monotonic()
        is_late = now_s - self._looking.asked_at_s >= HANGS_S
        if is_late and self._repeats.suppressed(None, now_s) is not None:
            hint = "they count as they were before; check their file system"
            log.error(self._events[2], files=[str(path) for path in self._paths], hint=hint)

    def look(self) -> None:
        """Read files that have changed, and log the result.

        What was refused is read again: it may have been for lack of descriptors, or for a token
        that its former owner has given up since.
        """
        taken, refused, _ = self._events
        before, self._seen = self._seen, self._state()
        if self._seen == before and not self._refusal:
            return
        last, self._refusal = self._refusal, ""
        try:
            self._read()
        except InvalidValueError as error:
            self._refusal = str(error)
            if self._seen != before or self._refusal != last:
                log.error(refused, error=self._refusal)  # noqa: TRY400 -- its text is complete
        else:
            log.info(taken, files=[str(path) for path in self._paths])

    def _state(self) -> list[object]:
        return [_file_state(path) for path in self._paths]


def _file_state(path: Path) -> object:
    """Return values that change when a file is written or replaced."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


class Tokens:
    """The tokens of each owner, as the files have them now; a bad or missing file has none."""

    def __init__(self, files: Mapping[str, tuple[str, str]]) -> None:
        """``files`` has the setting and the path of each owner's file.

        Raises InvalidValueError if a file is of no use, or a token has two owners.
        """
        self._files = files
        self._lock = Lock()
        self._tokens: dict[str, list[bytes]] = {owner: [] for owner in files}
        self.watches = [
            FileWatch("token_file", [Path(path)], partial(self._read, owner))
            for owner, (_, path) in files.items()
        ]
        for owner in files:  # after the first look: what is written meanwhile is read again
            self._read(owner)

    def refresh(self) -> None:
        """Read the files that have changed; call it every second or so."""
        for watch in self.watches:
            watch.refresh()

    def _read(self, owner: str) -> None:
        setting, path = self._files[owner]
        try:
            tokens = _tokens_in(path, setting)
        except InvalidValueError:
            self._tokens[owner] = []
            raise
        with self._lock:
            for other, taken in self._tokens.items():
                if other != owner and not set(tokens).isdisjoint(taken):
                    self._tokens[owner] = []
                    fix = f"make another one; {self._files[other][0]} has it too"
                    raise InvalidValueError(setting, None, "holds another one's token", fix)
            self._tokens[owner] = tokens

    def owner_of(self, token: bytes) -> str | None:
        found = None
        for owner, tokens in self._tokens.items():  # all of them, so that time tells nothing
            for each in tokens:
                if hmac.compare_digest(each, token):
                    found = owner
        return found


def _tokens_in(path: str, setting: str) -> list[bytes]:
    check_private(path, setting)
    try:
        found = Path(path).read_text(encoding="ascii").encode().split()
    except (OSError, UnicodeDecodeError):
        found = []
    short = any(len(token) < MIN_TOKEN_CHARS for token in found)
    if short or not 0 < len(found) <= MAX_TOKENS:
        problem = f"does not hold tokens of {MIN_TOKEN_CHARS} ASCII characters or more"
        fix = "make one: openssl rand -hex 32 > FILE"
        raise InvalidValueError(setting, None, problem, fix)
    return found


def bearer_token(headers: Headers) -> bytes | None:
    """Return the token that a request carries, None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" else None


def unauthorized(token: bytes | None) -> HttpStatusError:
    """Return the refusal of a request with ``token``, or without one."""
    problem = (
        "this service asks for a token, or for a certificate that it knows"
        if token is None
        else "the service does not know this token: it was changed, or is of another service; "
        "compare the client's token file with the service's"
    )
    fix = "send Authorization: Bearer TOKEN (--token-file, or token_file of the client)"
    challenge = {"www-authenticate": 'Bearer realm="offsetmgr"'}
    status = HTTPStatus.UNAUTHORIZED
    return HttpStatusError(status, "unauthorized", f"{problem}; {fix}", challenge)


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
        self.watch = FileWatch("certificate", [Path(each) for each in paths if each], self._load)
        self._load()

    def _load(self) -> None:
        """Take the files for new connections; with an error nothing changes."""
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
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
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = getattr(error, "strerror", None) or str(error)
            fix = "give readable PEM files: a certificate with chain and its key without password"
            raise InvalidValueError(name, None, f"cannot be used ({reason})", fix) from None
        self.context = context
