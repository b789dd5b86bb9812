"""What a running service knows of a group, asked over HTTP."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from offsetmgr.client.transport import parse_url
from offsetmgr.errors import ServiceError, ServiceUnavailableError
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADERS: Final = {"Offsetmgr-Client": "offsetmgr-admin", "Accept": "application/json"}
_OK: Final = 200
_UNREADY: Final = 503


class LiveManager(NamedTuple):
    """A manager of a service, as its operator sees it."""

    group: str
    partition: TopicPartition
    client: str
    error: str
    """Why its newest offset is not committed; empty where all is well."""


class ServiceFacts(NamedTuple):
    """What a service says of itself."""

    url: str
    ready: bool
    draining: bool
    kafka: str
    """``ok``, or what is wrong with it."""
    fenced_groups: int
    """Groups that another service has taken over."""
    managers: list[LiveManager]


class ServiceReader:
    """Asks one service; each question has a connection of its own."""

    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        """Raises InvalidValueError where ``url`` is none of a service."""
        self.url = url
        self._address = parse_url(url)
        self._timeout_s = timeout_s

    def managers(self, group: str | None = None) -> list[LiveManager]:
        """Return the live managers of a group, or all.

        Raises ServiceUnavailableError, ServiceError.
        """
        found: list[LiveManager] = []
        query = {} if group is None else {"group": group}
        after: str | None = ""
        while after is not None:
            page = self.ask("GET", f"/v1/managers?{urlencode(query)}")
            found += map(_manager, page["managers"])
            after = query["after"] = page["next"]
        return found

    def facts(self) -> ServiceFacts:
        """Return what the service says of itself.  Raises as ``managers``."""
        ready = self.ask("GET", "/readyz", also=_UNREADY)
        return ServiceFacts(
            self.url,
            ready["ready"],
            ready["draining"],
            ready["kafka"],
            ready["fenced_groups"],
            self.managers(),
        )

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


def _manager(view: Mapping[str, Any]) -> LiveManager:
    error = view["last_error"]
    failed = "" if error is None or not view["dirty"] else str(error["message"])
    where = TopicPartition(view["topic"], view["partition"])
    return LiveManager(view["group"], where, view["client"], failed)
