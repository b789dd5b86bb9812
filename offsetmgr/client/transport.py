"""HTTP/1.1 over kept connections, each request within its deadline.

Knows nothing of offsets. No proxy is ever taken from the environment: the service is a sidecar.
"""

from __future__ import annotations

import io
import socket
from collections import deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.client.deadline import Deadline
from offsetmgr.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsetmgr.client.address import Address

CONNECT_TIMEOUT_S: Final = 5.0
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_MAX_IDLE: Final = 2
_NOT_ASKED: Final = "was not asked: no time was left"
_CHUNK_BYTES: Final = 65536


class Unreachable(ServiceUnavailableError):  # noqa: N818 -- raised to users as its base
    """No whole answer came.

    The message goes on where "the service at http://127.0.0.1:8741" begins.
    """

    def __init__(self, message: str, *, sent: bool = False, no_http: bool = False) -> None:
        """`sent`: the request may have been received, and had its effect.

        `no_http`: what listens there may speak another protocol.
        """
        super().__init__(message)
        self.sent = sent
        self.no_http = no_http


class Request(NamedTuple):
    """What goes to the service; repeating it must be harmless."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None


class Answer(NamedTuple):
    """A whole answer of the service."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class _TimedReader(io.RawIOBase):
    """Reads of a socket that all end by one deadline: a server that drips cannot hold us."""

    def __init__(self, connection: _Http, sock: socket.socket) -> None:
        self._connection = connection
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the descriptor open, as http.client's

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        left_s = self._connection.deadline.within_s()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Http(HTTPConnection):
    """A connection that is opened once, by an address of any family."""

    auto_open = 0

    def __init__(self, address: Address, deadline: Deadline) -> None:
        super().__init__(address.authority)
        self._address = address
        self.deadline = deadline
        self.response_class = self._response  # type: ignore[assignment]

    def connect(self) -> None:
        if self.deadline.over:
            raise Unreachable(_NOT_ASKED)
        self.sock = self._address.connect(self.deadline.within_s(CONNECT_TIMEOUT_S))

    def _response(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None
    ) -> HTTPResponse:
        response = HTTPResponse(sock, debuglevel, method)
        response.fp.close()
        response.fp = io.BufferedReader(_TimedReader(self, sock), _CHUNK_BYTES)
        return response


class Connection:
    """One connection to the service, used for one request after the other."""

    def __init__(self, address: Address, deadline: Deadline) -> None:
        """Connect; Unreachable when that fails within the deadline."""
        self._http = _Http(address, deadline)
        self._reusable = False
        try:
            self._http.connect()
        except (OSError, ValueError) as error:
            raise Unreachable(_why_not_connected(error)) from None
        # http.client lets go of its own while an answer that ends with the connection is read.
        self._sock = self._http.sock

    def exchange(self, request: Request, deadline: Deadline) -> Answer:
        """Send `request` and read its whole answer; Unreachable otherwise."""
        self._reusable = False
        response = self._ask(request, deadline)
        try:
            body = response.read(MAX_BODY_BYTES + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise Unreachable(_why_cut(error, deadline), sent=True) from None
        if len(body) > MAX_BODY_BYTES:
            raise Unreachable(f"answered with more than {MAX_BODY_BYTES} bytes", sent=True)
        if response.length:
            raise Unreachable("closed the connection in the middle of its answer", sent=True)
        self._reusable = not response.will_close
        return Answer(response.status, _headers(response), body)

    def stream(self, request: Request, read_timeout_s: float) -> tuple[Answer, Iterator[bytes]]:
        """Send `request`; the head of its answer, and the pieces of its body as they come.

        The body ends with Unreachable when nothing comes for `read_timeout_s`, and when the
        service breaks it off.
        """
        response = self._ask(request, Deadline(read_timeout_s))
        return Answer(response.status, _headers(response), b""), self._pieces(
            response, read_timeout_s
        )

    def _pieces(self, response: HTTPResponse, read_timeout_s: float) -> Iterator[bytes]:
        while True:
            self._http.deadline = Deadline(read_timeout_s)
            try:
                piece = response.read1(_CHUNK_BYTES)
            except (OSError, HTTPException, ValueError) as error:
                text = (
                    f"sent nothing for {read_timeout_s} s"
                    if isinstance(error, TimeoutError)
                    else f"closed the event stream ({_text(error)})"
                )
                raise Unreachable(text, sent=True) from None
            if not piece:
                return
            yield piece

    def _ask(self, request: Request, deadline: Deadline) -> HTTPResponse:
        self._http.deadline = deadline
        sent = False
        try:
            if self._http.sock is None or deadline.over:
                raise Unreachable(_NOT_ASKED)
            self._http.sock.settimeout(deadline.within_s())
            sent = True
            self._http.request(request.method, request.target, request.body, dict(request.headers))
            return self._http.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            raise _no_answer(error, deadline, sent=sent) from None

    @property
    def alive(self) -> bool:
        """True if the next request can use this connection: it is whole, and nobody hung up."""
        sock = self._http.sock
        if sock is None or not self._reusable:
            return False
        try:
            sock.settimeout(0)
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the end, or bytes that nobody asked for

    def abort(self) -> None:
        """End what another thread is reading here, at once."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._http.close()


class Pool:
    """A few kept connections; safe between threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._ended = False

    def exchange(self, request: Request, deadline: Deadline) -> Answer:
        """As `Connection.exchange`, on a kept connection or a new one.

        A kept one may have been closed by the service as it was picked: then a new one is tried
        at once, which is harmless because every request may be repeated.
        """
        kept = self._take()
        if kept is None:
            return self._exchange(Connection(self.address, deadline), request, deadline)
        try:
            return self._exchange(kept, request, deadline)
        except Unreachable as first:
            if deadline.over or self._ended:
                raise
            try:
                return self._exchange(Connection(self.address, deadline), request, deadline)
            except Unreachable as second:
                second.sent |= first.sent
                raise

    def _exchange(self, connection: Connection, request: Request, deadline: Deadline) -> Answer:
        try:
            self._begin(connection)
            answer = connection.exchange(request, deadline)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        self._keep(connection)
        return answer

    def _begin(self, connection: Connection) -> None:
        # In this order, and in `end` the other way round: one of the two sees the other.
        self._busy.add(connection)
        if self._ended:
            raise Unreachable("was not asked: the client was closed meanwhile")

    def _take(self) -> Connection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if connection.alive:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close what is kept; a later request opens anew."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def end(self) -> None:
        """Close all, and break off what is being asked; nothing can be asked any more."""
        self._ended = True
        for connection in list(self._busy):
            connection.abort()
        self.close()


def _headers(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _why_not_connected(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"cannot be reached: host name not known ({error.strerror}); check the url"
    if isinstance(error, TimeoutError):
        return "cannot be reached: no connection in the time given; check the url and the network"
    return f"cannot be reached: {_text(error)}; is it running, and is the url right?"


def _no_answer(error: Exception, deadline: Deadline, *, sent: bool) -> Unreachable:
    if isinstance(error, TimeoutError):
        return Unreachable(f"did not answer within {deadline.timeout} s", sent=sent)
    if isinstance(error, ConnectionError):
        text = "closed the connection without an answer"
        return Unreachable(text, sent=sent, no_http=True)
    if isinstance(error, HTTPException):
        return Unreachable("did not answer in HTTP", sent=sent, no_http=True)
    return Unreachable(f"gave no answer: {_text(error)}", sent=sent)


def _why_cut(error: Exception, deadline: Deadline) -> str:
    if isinstance(error, TimeoutError):
        return f"did not complete its answer within {deadline.timeout} s"
    return f"closed the connection in the middle of its answer ({_text(error)})"


def _text(error: Exception) -> str:
    """The reason in the words of the system, such as "connection refused"."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
