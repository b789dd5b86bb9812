"""Identities: their tokens, their certificates, and the rights that these give.

Without identities in the settings nobody is asked for a token, and everybody has all rights.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.http.files import Tokens, bearer_token, unauthorized
from offsetmgr.service.rights import ALL_RIGHTS, Requester, Rights, matches
from offsetmgr.text import shown

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from offsetmgr.http.connections import ClientCertificate
    from offsetmgr.service.settings import Identity, Settings

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})


class Access:
    """The identities of the settings, with their tokens as the files have them now."""

    def __init__(self, settings: Settings) -> None:
        """Raise InvalidValueError where a token's file is of no use."""
        self.open_paths = OPEN_PATHS | ({"/metrics"} if settings.open_metrics else set())
        """Paths that need no identity."""
        self._cluster = settings.cluster_name
        self._take(settings.identities)

    @property
    def required(self) -> bool:
        """True if every request needs an identity."""
        return bool(self._identities)

    def reload(self, settings: Settings) -> None:
        """Take the identities of ``settings``, and nothing else of them.

        The socket in use stays as it is, so a reload never ends authentication, whatever address
        the settings have now.  Raises InvalidValueError, having changed nothing.
        """
        if self.required and not settings.identities:
            problem = "is missing in the reloaded settings, which would open the service to all"
            fix = "keep one identity or more; to run without, restart the service"
            raise InvalidValueError("identities", None, problem, fix)
        self._take(settings.identities)

    def _take(self, identities: dict[str, Identity]) -> None:
        files = {
            name: (f"identities.{name}.token_file", identity.token_file)
            for name, identity in identities.items()
            if identity.token_file
        }
        self._tokens = Tokens(files)
        self._identities = identities

    def share(self, identity: str, limit: int) -> int:
        """Return how much of a limit an identity may use: half, if others need it as well."""
        writers = sum(not each.read_only for each in self._identities.values())
        return max(1, limit // 2) if identity and writers > 1 else limit

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
