"""Identities, their tokens, certificates and rights; and the audit log of what they change.

Without identities in the settings nobody is asked for a token, and everybody sees everything.
"""

from __future__ import annotations

import hmac
import json
import os
import threading
from contextvars import ContextVar
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import structlog

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.service.errors import HttpStatusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.datastructures import Headers

    from offsetmgr.service.openapi import Operation
    from offsetmgr.service.settings import Identity, Settings

MIN_TOKEN_CHARS: Final = 16
MAX_TOKENS: Final = 10
"""In one file: while a token is replaced, the old one stands below the new one."""
EVERYTHING: Final = "*"
OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})

log = structlog.get_logger("offsetmgr.http")
audit_log = structlog.get_logger("offsetmgr.audit")


class Asker(NamedTuple):
    """The sender of a request."""

    identity: str = ""
    rights: Identity | None = None
    """None, and no identity, where authentication is off."""
    client: str = ""
    peer: str = ""
    """The address that the request came from; empty for a socket's."""

    def sees(self, group: str | None, topic: str | None = None) -> bool:
        """Return True if they may know of the group and, where one is given, of the topic."""
        if self.rights is None:
            return True
        group_allowed = group is None or _allowed(group, self.rights.groups)
        return group_allowed and (topic is None or _allowed(topic, self.rights.topics))

    @property
    def who(self) -> str:
        """The name under which its requests under way are counted."""
        return f"identity {self.identity}" if self.identity else self.client


def _allowed(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


_ASKER: ContextVar[Asker] = ContextVar("asker", default=Asker())  # noqa: B039 -- immutable
set_asker: Final = _ASKER.set
asker: Final = _ASKER.get


class Access:
    """The identities of the settings, with their tokens as the files have them now."""

    def __init__(self, settings: Settings) -> None:
        """Raise InvalidValueError where a token's file is of no use."""
        self.use(settings)

    @property
    def required(self) -> bool:
        """True if nobody may ask without being known."""
        return bool(self._identities)

    def use(self, settings: Settings) -> None:
        """Take the identities of ``settings``; with an error nothing changes."""
        files = {
            name: _TokenFile(f"identities.{name}.token_file", Path(each.token_file))
            for name, each in settings.identities.items()
            if each.token_file
        }
        owners: dict[bytes, str] = {}
        for name, file in files.items():
            for token in file.read():
                if owners.setdefault(token, name) != name:
                    fix = f"make another one; identities.{owners[token]} has it too"
                    raise InvalidValueError(file.setting, None, "holds another one's token", fix)
        self._cluster = settings.cluster_name
        self._open_paths = OPEN_PATHS | ({"/metrics"} if settings.open_metrics else set())
        self._identities, self._tokens = settings.identities, files

    def refresh(self) -> None:
        """Read the tokens that have changed; call it every second or so."""
        for each in self._tokens.values():
            each.watch.refresh()

    def identify(self, headers: Headers, certificate_names: frozenset[str]) -> Asker:
        """Return who sends these headers, still without client.  Raises HttpStatusError."""
        if not self._identities:
            return Asker()
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = self._owner_of(token.strip().encode())
            problem = (
                "the service does not know this token: it was changed, or is of another "
                "service; compare the client's token file with the service's"
            )
        else:
            owners = (
                name
                for name, each in self._identities.items()
                if each.certificate and each.certificate in certificate_names
            )
            found = next(owners, None)
            problem = "this service asks for a token, or for a certificate that it knows"
        if found is None:
            fix = "send Authorization: Bearer TOKEN (--token-file, or token_file of the client)"
            challenge = {"www-authenticate": 'Bearer realm="offsetmgr"'}
            status = HTTPStatus.UNAUTHORIZED
            raise HttpStatusError(status, "unauthorized", f"{problem}; {fix}", challenge)
        rights = self._identities[found]
        if not _allowed(self._cluster, rights.clusters):
            _forbidden(found, f"cluster {self._cluster!r}", "clusters", rights.clusters)
        return Asker(found, rights)

    def _owner_of(self, token: bytes) -> str | None:
        found = None
        for name, file in self._tokens.items():  # all of them, so that time tells nothing
            for each in file.tokens:
                if hmac.compare_digest(each, token):
                    found = name
        return found

    def needs_identity(self, operation: Operation) -> bool:
        """Return True for all but health, the document and, if they are open, the metrics."""
        return operation.path not in self._open_paths


def check_group_seen(group: str) -> None:
    """Raise HttpStatusError unless whoever asks may see the group."""
    by = asker()
    if by.rights is not None and not by.sees(group):
        _forbidden(by.identity, f"group {shown(group)}", "groups", by.rights.groups)


def check_rights(operation: Operation, asked: object) -> None:
    """Raise HttpStatusError where who asks may not do that, or not for the names in ``asked``."""
    by = asker()
    name, rights = by.identity, by.rights
    if rights is None:
        return
    if rights.read_only and operation.changes:
        _forbidden(name, "anything that changes offsets", "read_only", "true")
    if operation.path == "/metrics" and not (
        EVERYTHING in rights.groups and EVERYTHING in rights.topics
    ):
        _forbidden(name, "/metrics, which names all groups", "groups and topics", "less")
    for group in _texts(asked, "group", "consumer"):
        check_group_seen(group)
    for topic in _topics(asked):
        if not by.sees(None, topic):
            _forbidden(name, f"topic {shown(topic)}", "topics", rights.topics)


def _topics(asked: object) -> Iterator[str]:
    yield from _texts(asked, "topic")
    for field in ("offsets", "partitions"):
        yield from dict.fromkeys(each.topic for each in getattr(asked, field, None) or ())


def _texts(asked: object, *fields: str) -> Iterator[str]:
    for field in fields:
        value: Any = getattr(asked, field, None) or ()
        yield from [value] if isinstance(value, str) else value


def _forbidden(name: str, what: str, setting: str, allowed: object) -> NoReturn:
    text = (
        f"identity {name!r} may not ask for {what}: the service's setting "
        f"identities.{name}.{setting} is {shown(allowed)}"
    )
    raise HttpStatusError(HTTPStatus.FORBIDDEN, "forbidden", text)


class _TokenFile:
    """The tokens in a file, one in a line; a file of no use, or that is gone, has none."""

    def __init__(self, setting: str, path: Path) -> None:
        self.setting = setting
        self.tokens: list[bytes] = []
        self.watch = FileWatch("token_file", [path], self.read)
        self._path = path

    def read(self) -> list[bytes]:
        """Read and return the tokens.  Raises InvalidValueError."""
        self.tokens = []
        check_private(str(self._path), self.setting)
        try:
            found = self._path.read_text(encoding="ascii").encode().split()
        except (OSError, UnicodeDecodeError):
            found = []
        short = any(len(each) < MIN_TOKEN_CHARS for each in found)
        if short or not 0 < len(found) <= MAX_TOKENS:
            problem = f"does not hold tokens of {MIN_TOKEN_CHARS} ASCII characters or more"
            fix = "make one: openssl rand -hex 32 > FILE"
            raise InvalidValueError(self.setting, None, problem, fix)
        self.tokens = found
        return found


class FileWatch:
    """Has files read again when one of them was written or replaced."""

    def __init__(self, kind: str, paths: list[Path], read: Callable[[], object]) -> None:
        """``kind`` is for the log; ``read`` raises InvalidValueError."""
        self._events = f"{kind}_read", f"{kind}_refused"
        self._paths = paths
        self._read = read
        self._seen = self._state()

    def refresh(self) -> None:
        """Read files that have changed, and log whether they are of use."""
        before, self._seen = self._seen, self._state()
        if self._seen == before:
            return
        taken, refused = self._events
        try:
            self._read()
        except InvalidValueError as error:
            log.error(refused, error=str(error))  # noqa: TRY400 -- it says it all
        else:
            log.info(taken, files=[str(each) for each in self._paths])

    def _state(self) -> list[object]:
        return [_file_state(each) for each in self._paths]


def _file_state(path: Path) -> object:
    """Return what changes when a file is written or replaced."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


def check_private(path: str, setting: str) -> None:
    """Raise InvalidValueError unless a secret's file is there, and not for everybody to read.

    A group may read it, as Kubernetes' ``fsGroup`` does.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({getattr(error, 'strerror', None) or 'no path'})"
        raise InvalidValueError(setting, path, problem, "give a readable file") from None
    if mode & 0o027:
        problem = f"may be read or changed by others (mode {mode & 0o777:04o})"
        fix = "chmod 600 it, and replace what it held"
        raise InvalidValueError(setting, path, problem, fix)


class AuditLog:
    """Writes a line of JSON for each change: to its file, or to the service's log without one.

    A line that cannot be written is counted, and stands in the service's log instead.
    """

    def __init__(self, path: str, wall: Callable[[], float]) -> None:
        """``wall`` is the wall clock.  Raises InvalidValueError if the file cannot be written."""
        self.dropped = 0
        """Lines that are not in the file."""
        self._path = path
        self._wall = wall
        self._lock = threading.Lock()
        if path:
            try:
                self._write(b"")
            except OSError as error:
                fix = "give a file in a folder that the service may write"
                problem = f"cannot be written ({error.strerror})"
                raise InvalidValueError("audit_log", path, problem, fix) from None

    def record(self, operation: str, outcome: str, **what: Any) -> None:
        """Write that whoever asks now has done ``operation``."""
        by = asker()
        line = {
            "operation": operation,
            "outcome": outcome,
            "identity": by.identity or None,
            "client": by.client,
            "peer": by.peer,
            **what,
        }
        if not self._path:
            audit_log.info("audit", **line)
            return
        time = datetime.fromtimestamp(self._wall(), timezone.utc).isoformat()
        text = json.dumps({"time": time, **line}) + "\n"
        try:
            self._write(text.encode())
        except OSError as error:
            self.dropped += 1
            reason = error.strerror
            audit_log.error("audit", not_in_file=reason, **line)

    def _write(self, line: bytes) -> None:
        # Opened for each line, so that logrotate may move it away.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with self._lock, os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
            file.write(line)
