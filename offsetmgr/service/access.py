"""Identities, their tokens, certificates and rights; and the audit log of what they change.

Without identities in the settings nobody is asked for a token, and everybody sees everything.
"""

from __future__ import annotations

import json
import os
import threading
from contextvars import ContextVar
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import structlog

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.http.files import Tokens, bearer_token, unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.datastructures import Headers

    from offsetmgr.service.openapi import Operation
    from offsetmgr.service.settings import Identity, Settings

EVERYTHING: Final = "*"
OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})

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
            name: (f"identities.{name}.token_file", each.token_file)
            for name, each in settings.identities.items()
            if each.token_file
        }
        tokens = Tokens(files)
        self._cluster = settings.cluster_name
        self._open_paths = OPEN_PATHS | ({"/metrics"} if settings.open_metrics else set())
        self._identities, self._tokens = settings.identities, tokens

    def refresh(self) -> None:
        """Read the tokens that have changed; call it every second or so."""
        self._tokens.refresh()

    def identify(self, headers: Headers, certificate_names: frozenset[str]) -> Asker:
        """Return who sends these headers, still without client.  Raises HttpStatusError."""
        if not self._identities:
            return Asker()
        token = bearer_token(headers)
        if token is not None:
            found = self._tokens.owner_of(token)
        else:
            owners = (
                name
                for name, each in self._identities.items()
                if each.certificate and each.certificate in certificate_names
            )
            found = next(owners, None)
        if found is None:
            raise unauthorized(token)
        rights = self._identities[found]
        if not _allowed(self._cluster, rights.clusters):
            _forbidden(found, f"cluster {self._cluster!r}", "clusters", rights.clusters)
        return Asker(found, rights)

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
