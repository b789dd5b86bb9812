"""Identities, their tokens and certificates, and the groups and topics that these may use.

Without identities in the settings nobody is asked for a token, and everybody has all rights.  Each
operation declares the names for which a request needs a right; they are checked once, on the
decoded request.  Answers that list groups or topics hold those alone that the sender may see.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.http.files import Tokens, bearer_token, unauthorized
from offsetmgr.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from starlette.datastructures import Headers

    from offsetmgr.http.connections import ClientCertificate
    from offsetmgr.service.messages import Caller, PartitionRef
    from offsetmgr.service.settings import Settings

ALL: Final = "*"


class Names(NamedTuple):
    """The groups and topics that a request names."""

    groups: Collection[str] = ()
    topics: Collection[str] = ()


EVERYTHING: Final = Names((ALL,), (ALL,))
"""The name that only a right to all names permits."""


def names_in(groups: str = "", topics: str = "") -> Callable[[Any], Names]:
    """Return a function that returns the names in these fields of a request.

    A field is a name or a list of names, or a list of partitions for its topics.
    """

    def names_of(request: object, field: str) -> Collection[str]:
        given = getattr(request, field) if field else None
        if given is None or isinstance(given, str):
            return () if given is None else (given,)
        return {each if isinstance(each, str) else each.topic for each in given}

    return lambda request: Names(names_of(request, groups), names_of(request, topics))


no_names: Final = names_in()
"""For an operation whose requests have none."""


def partitions_of(group: str | None, partitions: Sequence[PartitionRef] | None) -> Names:
    topics = {partition.topic for partition in partitions or ()}
    return Names(() if group is None else (group,), topics)


class Rights(NamedTuple):
    """Patterns of the names that an identity may use; by default none."""

    groups: Sequence[str] = ()
    topics: Sequence[str] = ()
    read_only: bool = True


ALL_RIGHTS: Final = Rights((ALL,), (ALL,), read_only=False)


def matches(pattern: str, name: str) -> bool:
    """Return True if ``name`` fits ``pattern``, in which only ``*`` is special."""
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


def _permits(patterns: Sequence[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


class Requester(NamedTuple):
    """The sender of a request.  Nothing is permitted unless ``rights`` says so."""

    identity: str = ""
    """Empty where the service has no identities."""
    rights: Rights = Rights()
    caller: Caller | None = None
    """The client that the request names; a POST always names one."""
    peer: str = ""
    """The address that the request came from; empty for a socket's."""
    is_current: Callable[[], bool] = lambda: True
    """False once the token, the certificate or the identity is no longer valid as it was."""

    @property
    def client(self) -> str:
        """The name of the client, empty without one."""
        return "" if self.caller is None else self.caller.name

    @property
    def sender(self) -> Caller:
        """The client of a POST."""
        assert self.caller is not None, "a POST names its client"  # noqa: S101 -- for mypy
        return self.caller

    @property
    def who(self) -> str:
        """The name under which its requests under way are counted."""
        return f"identity {self.identity}" if self.identity else self.client

    @property
    def sees_everything(self) -> bool:
        return ALL in self.rights.groups and ALL in self.rights.topics

    def sees(self, group: str | None, topic: str | None = None) -> bool:
        """Return True if the group and the topic, where given, may be shown to the sender."""
        return (group is None or _permits(self.rights.groups, group)) and (
            topic is None or _permits(self.rights.topics, topic)
        )

    def check(self, names: Callable[[], Names], *, changes: bool) -> None:
        """Raise HttpStatusError if the sender has no right to do that.

        ``names`` returns the names of the request; ``changes`` says that it changes offsets.
        """
        if self.rights is ALL_RIGHTS:
            return
        if changes and self.rights.read_only:
            raise self._forbidden("anything that changes offsets", "read_only", "true")
        found = names()
        for kind, given, patterns in (
            ("group", found.groups, self.rights.groups),
            ("topic", found.topics, self.rights.topics),
        ):
            for name in given:
                if not _permits(patterns, name):
                    what = f"all {kind}s" if name == ALL else f"{kind} {shown(name)}"
                    raise self._forbidden(what, f"{kind}s", shown(patterns))

    def _forbidden(self, what: str, setting: str, value: str) -> HttpStatusError:
        text = (
            f"identity {self.identity!r} may not ask for {what}: the service's setting "
            f"identities.{self.identity}.{setting} is {value}"
        )
        return HttpStatusError(HTTPStatus.FORBIDDEN, "forbidden", text)


def tokens_of(settings: Settings) -> Tokens:
    """Return the tokens of all identities.  Raises InvalidValueError if a file is of no use."""
    return Tokens(
        {
            name: (f"identities.{name}.token_file", identity.token_file)
            for name, identity in settings.identities.items()
            if identity.token_file
        }
    )


OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})


class Access:
    """The identities of the settings, with their tokens as the files have them now."""

    def __init__(self, settings: Settings) -> None:
        """Raise InvalidValueError if a token's file is of no use."""
        self.open_paths = OPEN_PATHS | ({"/metrics"} if settings.open_metrics else set())
        """Paths that need no identity."""
        self._cluster = settings.cluster_name
        self._tokens = tokens_of(settings)
        self._identities = settings.identities

    @property
    def required(self) -> bool:
        """True if every request needs an identity."""
        return bool(self._identities)

    def reload(self, settings: Settings, tokens: Tokens) -> None:
        """Take the identities of ``settings``, and nothing else of them; ``tokens`` are theirs.

        The socket in use stays as it is, so a reload never ends authentication, whatever address
        the settings have now.  Raises InvalidValueError, having changed nothing.
        """
        if self.required and not settings.identities:
            problem = "is missing in the reloaded settings, which would open the service to all"
            fix = "keep one identity or more; to run without, restart the service"
            raise InvalidValueError("identities", None, problem, fix)
        self._tokens = tokens
        self._identities = settings.identities

    def share(self, identity: str, limit: int, *, reads: bool = False) -> int:
        """Return how much of a limit an identity may use: half, if others need it as well.

        ``reads`` is for a limit that those need as well who change nothing.
        """
        users = sum(reads or not each.read_only for each in self._identities.values())
        return max(1, limit // 2) if identity and users > 1 else limit

    def refresh(self) -> None:
        """Read the tokens that have changed; call it every second or so."""
        self._tokens.refresh()

    def identify(self, headers: Headers, certificate: ClientCertificate) -> Requester:
        """Return the sender of these headers, still without client.  Raises HttpStatusError."""
        if not self._identities:
            return Requester(rights=ALL_RIGHTS, is_current=lambda: not self._identities)
        token = bearer_token(headers)

        def owner() -> str | None:
            if token is None:
                return self._owner_of(certificate)
            return self._tokens.owner_of(token)

        name = owner()
        if name is None:
            raise unauthorized(token)
        identity = self._identities[name]
        if not any(matches(pattern, self._cluster) for pattern in identity.clusters):
            text = (
                f"identity {name!r} may not ask for cluster {self._cluster!r}: the service's "
                f"setting identities.{name}.clusters is {shown(identity.clusters)}"
            )
            raise HttpStatusError(HTTPStatus.FORBIDDEN, "forbidden", text)
        return Requester(
            name,
            Rights(identity.groups, identity.topics, identity.read_only),
            is_current=lambda: owner() == name and self._identities.get(name) == identity,
        )

    def _owner_of(self, certificate: ClientCertificate) -> str | None:
        """Return the identity of a certificate, None if it has none or has expired."""
        names = certificate.valid_names()
        for name, identity in self._identities.items():
            if identity.certificate and identity.certificate in names:
                return name
        return None
