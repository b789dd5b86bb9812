"""What a running service knows of a group, asked over HTTP."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from offsetmgr.client.transport import parse_url
from offsetmgr.errors import ServiceError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADERS: Final = {"Offsetmgr-Client": "offsetmgr-admin", "Accept": "application/json"}
_OK: Final = 200
_UNREADY: Final = 503


class ServiceReader:
    """Asks one service; each question has a connection of its own."""

    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        """Raises InvalidValueError where ``url`` is none of a service."""
        self.url = url
        self._address = parse_url(url)
        self._timeout_s = timeout_s

    def managers(self, group: str) -> list[dict[str, Any]]:
        """Return the live managers of a group, as ``GET /v1/managers`` describes them.

        Raises ServiceUnavailableError, ServiceError.
        """
        found: list[dict[str, Any]] = []
        target = f"/v1/managers?group={quote(group, safe='')}"
        after: str | None = ""
        while after is not None:
            page = self.ask("GET", target + (f"&after={quote(after, safe='')}" if after else ""))
            found += page["managers"]
            after = page["next"]
        return found

    def ready(self) -> dict[str, Any]:
        """Return what ``GET /readyz`` says, also where the service is not ready."""
        return self.ask("GET", "/readyz", also=_UNREADY)

    def ask(
        self, method: str, target: str, body: Mapping[str, object] | None = None, also: int = _OK
    ) -> dict[str, Any]:
        """Return the answer to a request whose status is 200, or ``also``.

        Raises ServiceUnavailableError, ServiceError.
        """
        connection = HTTPConnection(self._address.authority)
        try:
            connection.sock = self._address.connect(self._timeout_s)
            sent = None if body is None else json.dumps(body)
            headers = _HEADERS if body is None else {**_HEADERS, "Content-Type": "application/json"}
            connection.request(method, target, sent, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
            data = json.loads(text)
        except (OSError, HTTPException, ValueError) as error:
            problem = f"the service at {self.url} did not answer: {error!r}"
            raise ServiceUnavailableError(f"{problem}; check the url and that it runs") from None
        finally:
            connection.close()
        if status not in {_OK, also} or not isinstance(data, dict):
            failure = data.get("error", {}) if isinstance(data, dict) else {}
            message = failure.get("message", f"the service at {self.url} answered {status}")
            raise ServiceError(status, message, failure.get("code", "service_error"))
        return data
