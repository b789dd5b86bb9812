"""Requests of one client as the service knows it, by its name and incarnation."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.client.transport import Answer, Connection, Pool, Request, Unreachable
from offsetmgr.client.wire import failure_of, header_text
from offsetmgr.errors import ServiceUnavailableError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offsetmgr.client.address import Address
    from offsetmgr.client.deadline import Deadline

_INSTANCE: Final = "offsetmgr-instance"
LONGEST_RETRY_AFTER_S: Final = 5.0
_MAX_DIGITS: Final = 9

_OK: Final = 200
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERRORS: Final = 500
_UNAVAILABLE: Final = 503


class BusyError(ServiceUnavailableError):
    """The service is there and took nothing: it is stopping, or at a limit."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FullError(BusyError):
    """A limit of its own is reached."""


class Identity(NamedTuple):
    """Who a client is to the service."""

    name: str
    incarnation: int
    """Larger is newer: it takes over what an older one of the name has."""

    @classmethod
    def new(cls, name: str) -> Identity:
        """An incarnation that is newer than those before."""
        return cls(name, time.time_ns())


class Session:
    """Speaks to the service as one client; for any thread."""

    def __init__(
        self,
        url: str,
        address: Address,
        identity: Identity,
        heard: Callable[[str], None],
        met: Callable[[str], None],
    ) -> None:
        """`heard` is told which process of the service took a request, `met` which refused one."""
        self.url = url
        self.identity = identity
        self._address = address
        self._heard = heard
        self._met = met
        self._pool = Pool(address)
        self._is_ours = False
        """True if a service was heard at the address."""
        self._headers = {
            "Offsetmgr-Client": header_text(identity.name),
            "Offsetmgr-Incarnation": str(identity.incarnation),
            "Accept": "application/json",
        }

    # Both raise Unreachable when no whole answer came within the deadline, BusyError,
    # ClientFencedError and, for all else that is no success, what the service says.

    def post(
        self,
        path: str,
        body: bytes,
        deadline: Deadline,
        instance: str | None = None,
    ) -> dict[str, Any]:
        """Ask for a change; `instance` is the only process of the service that may do it."""
        headers = {**self._headers, "Content-Type": "application/json"}
        if instance is not None:
            headers[_INSTANCE] = instance
        return self._exchange(Request("POST", path, headers, body), deadline)

    def get(self, target: str, deadline: Deadline) -> dict[str, Any]:
        """Ask for what is."""
        return self._exchange(Request("GET", target, self._headers), deadline)

    def stream(
        self, connection: Connection, target: str, last_id: str, read_timeout_s: float
    ) -> Iterator[bytes]:
        """Open an event stream: its pieces."""
        headers = {**self._headers, "Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        request = Request("GET", target, headers)
        answer, pieces = connection.stream(request, read_timeout_s)
        if answer.status != _OK and "content-length" in answer.headers:
            answer = answer._replace(body=b"".join(pieces))
        self._heard(self._check(answer))
        return pieces

    def connect(self, deadline: Deadline) -> Connection:
        """A connection of its own."""
        try:
            return Connection(self._address, deadline)
        except Unreachable as error:
            raise self._explained(error) from None

    def close(self) -> None:
        """Close what connections are kept."""
        self._pool.close()

    def end(self) -> None:
        """Break off what is being asked; nothing is asked any more."""
        self._pool.end()

    def _exchange(self, request: Request, deadline: Deadline) -> dict[str, Any]:
        try:
            answer = self._pool.exchange(request, deadline)
        except Unreachable as error:
            raise self._explained(error) from None
        instance = self._check(answer)
        data = self._object(answer.body)
        self._heard(instance)
        return data

    def _check(self, answer: Answer) -> str:
        """The process of the service that answered; raises what it says unless it is a success."""
        instance = self._instance(answer)
        if answer.status == _OK:
            return instance
        failure = failure_of(answer.status, answer.body)
        if answer.status in {_TOO_MANY_REQUESTS, _UNAVAILABLE}:
            kind = FullError if answer.status == _TOO_MANY_REQUESTS else BusyError
            raise kind(str(failure), _retry_after_s(answer))
        if answer.status < _SERVER_ERRORS:
            self._met(instance)
        raise failure

    def _instance(self, answer: Answer) -> str:
        instance = answer.headers.get(_INSTANCE)
        if instance is None:
            raise Unreachable(
                f"what answers at {self.url} (status {answer.status}) is not offsetmgr: its "
                "answer has no Offsetmgr-Instance header; check the url and what listens there"
            )
        self._is_ours = True
        return instance

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise Unreachable(
                f"the service at {self.url} answered with what is no JSON object: {shown(body)}",
                sent=True,
            )
        return data

    def _explained(self, error: Unreachable) -> Unreachable:
        text = f"the service at {self.url} {error}"
        if error.no_http and not self._is_ours:
            text += (
                f"; is {self._address.authority} the service's port? Kafka's does not speak HTTP"
            )
        return Unreachable(text, sent=error.sent)


def _retry_after_s(answer: Answer) -> float:
    """The pause asked for; 0 where none is, or not in whole seconds."""
    asked = answer.headers.get("retry-after", "")
    if not (asked.isascii() and asked.isdigit()):
        return 0.0
    # Thousands of digits are more than `int` reads.
    return (
        LONGEST_RETRY_AFTER_S
        if len(asked) > _MAX_DIGITS
        else min(int(asked), LONGEST_RETRY_AFTER_S)
    )
