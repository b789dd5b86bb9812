"""HTTP/1.1 to the service: its address, credentials, kept connections, and what its answers mean.

Knows nothing of offsets. No proxy is ever taken from the environment: the service is a sidecar.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 -- else a first request does, with the lock of imports
import io
import ipaddress
import json
import os
import socket
import ssl
import stat
import time
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlsplit

from offsetmgr.client.wire import failure_of, reading
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from http.client import HTTPMessage, HTTPResponse

_T = TypeVar("_T")

DEFAULT_PORT: Final = 8741
CONNECT_TIMEOUT_S: Final = 5.0
MAX_PATH_BYTES: Final = 107

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_EVENT_BYTES: Final = 1024 * 1024
"""A longer event does not come from our service."""

_URL_FIX: Final = (
    "give http://host:port, such as http://127.0.0.1:8741, https://host:port or "
    "unix:///path/of/the.sock, and nothing behind it"
)
_IS_IT_KAFKA: Final = (
    "was it killed, or is this not its port? Kafka's does not speak HTTP; TLS needs https://"
)
_NO_CERTIFICATE: Final = "was it killed, or does it refuse cert_file and key_file, or want them?"
_MAX_IDLE: Final = 2
_PLAIN: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Unescaped in a header, as are letters and digits; all else is percent-encoded."""

_CHUNK_BYTES: Final = 65536
_INSTANCE: Final = "offsetmgr-instance"


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
            "token_file": _path("token_file", token_file),
            "ca_file": _path("ca_file", ca_file),
            "cert_file": _path("cert_file", cert_file),
            "key_file": _path("key_file", key_file),
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

    def headers(self) -> dict[str, str]:
        """Return the header with the token, as the file has it now."""
        with suppress(InvalidValueError):  # the file is being replaced
            self._token = self._read_token()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

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
            is_regular = Path(path).is_file()  # to read a pipe could block
            found = Path(path).read_text(encoding="ascii").split() if is_regular else []
        except (OSError, UnicodeDecodeError):
            found = []
        if not found:
            fix = "give a file whose first line is the token"
            raise InvalidValueError("token_file", path, "does not hold a token", fix)
        return found[0]


def _path(name: str, given: object) -> str | None:
    """Return the whole path of a regular file; None without one.  Raises InvalidValueError."""
    if given is None:
        return None
    reason = "it is not a regular file"
    try:
        path = Path(given).absolute()  # type: ignore[arg-type]
        if stat.S_ISREG(path.stat().st_mode):  # to open a pipe could block
            with path.open("rb"):
                return str(path)
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or reason
    hint = "give the path of a readable file"
    raise InvalidValueError(name, given, f"cannot be read ({reason})", hint)


NO_CREDENTIALS: Final = Credentials()


class ServiceAddress(NamedTuple):
    """A host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False
    credentials: Credentials = NO_CREDENTIALS

    def connect(self, timeout_s: float) -> HTTPConnection:
        """Return an open connection, which is used as long as it lasts."""
        if self.tls:
            try:
                context = self.credentials.tls_context()
            except OSError as error:  # of a file, and not of the service
                text = "ca_file, cert_file or key_file cannot be used any more"
                raise Unreachable(f"cannot be asked: {text} ({error})") from None
            http: HTTPConnection = HTTPSConnection(self.host, self.port, context=context)
        else:
            http = HTTPConnection(self.host or "localhost", self.port)
        http.auto_open = 0
        http.timeout = timeout_s
        try:
            if self.path:
                http.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                http.sock.settimeout(timeout_s)
                http.sock.connect(self.path)
            else:
                http.connect()
        except BaseException:
            http.close()
            raise
        return http


def parse_url(url: object, credentials: Credentials = NO_CREDENTIALS) -> ServiceAddress:
    """Return where `url` leads.  Raises InvalidValueError."""
    text = url if isinstance(url, str) and url.isprintable() and url == url.strip() else ""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    is_unix = parts.scheme == "unix"
    if is_unix:
        leads_there = not parts.netloc and len(parts.path) > 1
    else:
        host = host.replace("%25", "%")  # before the zone of an IPv6 address, as RFC 6874 writes it
        leads_there = bool(host) and parts.scheme in {"http", "https"} and parts.path in {"", "/"}
        leads_there = leads_there and " " not in text
    if not leads_there or parts.username is not None or parts.query or parts.fragment:
        hidden = isinstance(url, str) and set(url) & set("@?#")  # a password must not reach a log
        named = "…" if hidden else url
        raise InvalidValueError("url", named, "is not the address of a service", _URL_FIX)
    if is_unix:
        if len(os.fsencode(parts.path)) > MAX_PATH_BYTES:
            problem = f"has a path of more than {MAX_PATH_BYTES} bytes"
            raise InvalidValueError("url", url, problem, "give a shorter path: no socket has more")
        return ServiceAddress(path=parts.path, credentials=credentials)
    tls = parts.scheme == "https"
    if credentials.headers() and not tls and not _is_loopback(host):
        fix = "give https://host:port, for everybody on the way could read the token"
        raise InvalidValueError("url", url, "leads to another machine without TLS", fix)
    return ServiceAddress(host, DEFAULT_PORT if port is None else port, "", tls, credentials)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Unreachable(ServiceUnavailableError):  # noqa: N818 -- raised to users as its base
    """No whole answer came; the message begins after "the service at http://127.0.0.1:8741"."""


class Request(NamedTuple):
    """A request; repeating it must be harmless."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None


class Answer(NamedTuple):
    status: int
    headers: HTTPMessage | Mapping[str, str]
    body: bytes = b""


class _TimedSocket:
    """A connected socket as HTTPConnection uses it, all whose reads share one deadline.

    A time-out of the socket itself begins again with each byte that trickles in.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline = Deadline(0.0)
        self.sendall, self.close = sock.sendall, sock.close

    def makefile(self, _mode: str) -> io.BufferedReader:
        # As a file of the socket's own it keeps the socket open until it is closed itself.
        return io.BufferedReader(_TimedReader(self._sock.makefile("rb", buffering=0), self))

    def wait(self) -> None:
        """Give the next step what is left of the deadline; TimeoutError if nothing is."""
        if self.deadline.over:
            raise TimeoutError
        self._sock.settimeout(self.deadline.within_s())


class _TimedReader(io.RawIOBase):
    def __init__(self, raw: socket.SocketIO, timed: _TimedSocket) -> None:
        super().__init__()
        self._raw, self._timed = raw, timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._timed.wait()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        super().close()
        self._raw.close()


class Connection:
    """One connection to the service, used for one request after the other."""

    def __init__(self, address: ServiceAddress, deadline: Deadline) -> None:
        """Connect; Unreachable when that fails within the deadline."""
        self._credentials = address.credentials
        try:
            self._http = address.connect(deadline.within_s(CONNECT_TIMEOUT_S))
        except ssl.SSLError as error:
            raise Unreachable(_tls_trouble(error)) from None
        except (OSError, ValueError) as error:
            text = f"cannot be reached: {_text(error)}; is it running, and is the url right?"
            raise Unreachable(text) from None
        self._sock = self._http.sock
        self._timed = _TimedSocket(self._sock)
        self._http.sock = cast("socket.socket", self._timed)

    def exchange(self, request: Request, deadline: Deadline) -> Answer:
        """Send `request`, with the token, and read its whole answer; Unreachable otherwise."""
        return self._whole(self._ask(request, deadline), deadline)

    def _whole(self, response: HTTPResponse, deadline: Deadline) -> Answer:
        late = f"did not complete its answer within {deadline.timeout} s"
        body = bytearray()
        while piece := self._read(response, late):
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise Unreachable(f"answered with more than {MAX_BODY_BYTES} bytes")
        if response.length:
            raise Unreachable("closed the connection in the middle of its answer")
        response.close()
        return Answer(response.status, response.headers, bytes(body))

    def stream(self, request: Request, read_timeout_s: float) -> tuple[Answer, Iterator[bytes]]:
        """Send `request`; return the head of its answer, and the pieces of its body.

        A failure is a whole answer without pieces.
        """
        deadline = Deadline(read_timeout_s)
        response = self._ask(request, deadline)
        if response.status != HTTPStatus.OK:
            return self._whole(response, deadline), iter(())
        late = f"sent nothing for {read_timeout_s} s"

        def pieces() -> Iterator[bytes]:
            while True:
                self._timed.deadline = Deadline(read_timeout_s)
                piece = self._read(response, late)
                if not piece:
                    return
                yield piece

        return Answer(response.status, response.headers), pieces()

    def _ask(self, request: Request, deadline: Deadline) -> HTTPResponse:
        try:
            self._timed.deadline = deadline
            self._timed.wait()
            headers = {**request.headers, **self._credentials.headers()}
            self._http.request(request.method, request.target, request.body, headers)
            return self._http.getresponse()
        except TimeoutError:
            raise Unreachable(f"did not answer within {deadline.timeout} s") from None
        except ssl.SSLError as error:
            raise Unreachable(_tls_trouble(error)) from None
        except ConnectionError:
            is_tls = isinstance(self._sock, ssl.SSLSocket)
            why = _NO_CERTIFICATE if is_tls else _IS_IT_KAFKA
            raise Unreachable(f"closed the connection without an answer; {why}") from None
        except HTTPException:
            raise Unreachable(f"did not answer in HTTP; {_IS_IT_KAFKA}") from None
        except (OSError, ValueError) as error:
            raise Unreachable(f"gave no answer: {_text(error)}") from None

    def _read(self, response: HTTPResponse, late: str) -> bytes:
        try:
            return response.read1(_CHUNK_BYTES)
        except TimeoutError:
            raise Unreachable(late) from None
        except (OSError, HTTPException, ValueError) as error:
            text = f"closed the connection in the middle of its answer ({_text(error)})"
            raise Unreachable(text) from None

    @property
    def open(self) -> bool:
        """True if the service lets the next request use this connection."""
        return self._http.sock is not None

    def abort(self) -> None:
        """End what another thread is reading here, at once."""
        with suppress(OSError):  # not TLS's own, which another thread may be using
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


def read_events(pieces: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Yield the fields of server-sent events as our service writes them: lines that end with LF."""
    rest = b""
    for piece in pieces:
        *texts, rest = (rest + piece).split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise Unreachable(f"sent an event of more than {MAX_EVENT_BYTES} bytes")
        for text in texts:
            lines = text.decode("utf-8", "replace").split("\n")
            event = dict(line.split(": ", 1) for line in lines if ": " in line)
            if "data" in event:
                yield event


class Session:
    """Speaks to the service as one client, by its name and incarnation; for any thread.

    Its requests raise Unreachable when no whole answer came within the deadline,
    ServiceUnavailableError when the service takes nothing (429, 503), ClientFencedError and, for
    every other failure, the error that the service names.
    """

    def __init__(
        self, url: str, address: ServiceAddress, name: str, heard: Callable[[str], None]
    ) -> None:
        """`heard` is called with the process of the service that did what was asked."""
        self.url = url
        self._address = address
        self._heard = heard
        self._idle: list[Connection] = []
        self._busy: dict[Connection, None] = {}  # in order, as a simulation is replayed
        self._ended = False
        self.incarnation = time.time_ns()
        """Larger than that of an older client of the name, which this one replaces."""
        self._headers = {
            "Offsetmgr-Client": quote(name, safe=_PLAIN),
            "Offsetmgr-Incarnation": str(self.incarnation),
            "Accept": "application/json",
        }

    def stream(self, target: str, last_id: str, read_timeout_s: float) -> Generator[dict[str, str]]:
        """Open an event stream on a connection of its own, and yield its events."""
        headers = {**self._headers, "Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        connection = Connection(self._address, Deadline(CONNECT_TIMEOUT_S))
        with closing(connection), self._using(connection):
            head, pieces = connection.stream(Request("GET", target, headers), read_timeout_s)
            self._heard(self._check(head))
            yield from read_events(pieces)

    def end(self) -> None:
        """Break off all that is being asked, and the event stream; keep no connection."""
        self._ended = True
        for connection in list(self._busy):
            connection.abort()
        while self._idle:
            with suppress(IndexError):  # another thread was quicker
                self._idle.pop().close()

    def ask(
        self,
        target: str,
        deadline: Deadline,
        read: Callable[[dict[str, Any]], _T],
        body: bytes | None = None,
        instance: str | None = None,
    ) -> _T:
        """Return what `read` makes of the answer; a `body` asks for a change.

        `instance` is the only process of the service that may do it.
        """
        method, headers = "GET", dict(self._headers)
        if body is not None:
            method, headers["Content-Type"] = "POST", "application/json"
        if instance is not None:
            headers[_INSTANCE] = instance
        try:
            answer = self._exchange(Request(method, target, headers, body), deadline)
        except Unreachable as error:
            raise Unreachable(f"the service at {self.url} {error}") from None
        instance = self._check(answer)
        with reading(target):
            found = read(json.loads(answer.body))
        self._heard(instance)
        return found

    def _exchange(self, request: Request, deadline: Deadline) -> Answer:
        """Exchange on a kept connection or a new one.

        The service may have closed a kept one: then a new one is tried at once, which is harmless
        because every request may be repeated.
        """
        with suppress(IndexError):
            kept = self._idle.pop()
            try:
                return self._exchange_on(kept, request, deadline)
            except Unreachable:
                if deadline.over or self._ended:
                    raise
        return self._exchange_on(Connection(self._address, deadline), request, deadline)

    def _exchange_on(self, connection: Connection, request: Request, deadline: Deadline) -> Answer:
        with self._using(connection):
            answer = connection.exchange(request, deadline)
        if connection.open and len(self._idle) < _MAX_IDLE and not self._ended:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    @contextmanager
    def _using(self, connection: Connection) -> Iterator[None]:
        """Have ``end`` break off what is asked on a connection; close it after a failure."""
        try:
            # In this order, and in `end` the other way round: one of the two sees the other.
            self._busy[connection] = None
            if self._ended:
                connection.abort()
            yield
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.pop(connection, None)

    def _check(self, answer: Answer) -> str:
        """Return the process of the service that answered; raise the error of a failure."""
        instance = answer.headers.get(_INSTANCE)
        if instance is None:
            raise Unreachable(
                f"what answers at {self.url} (status {answer.status}) is not offsetmgr: its "
                "answer has no Offsetmgr-Instance header; check the url and what listens there"
            )
        if answer.status == HTTPStatus.OK:
            return instance
        failure = failure_of(answer.status, answer.body)
        if answer.status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
            raise ServiceUnavailableError(str(failure))
        raise failure


def _tls_trouble(error: ssl.SSLError) -> str:
    """Return what is wrong with a certificate, whose it is, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"has a certificate that is not trusted ({error.verify_message}); check ca_file, the "
            "host in the url, and the service's certificate"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return (
            f"refused the TLS connection ({reason}); it may want a certificate of its authority: "
            "give cert_file and key_file"
        )
    return f"does not speak TLS ({reason}); is it served by http://, or is the port another one?"


def _text(error: Exception) -> str:
    """Return the reason in the words of the system, such as "connection refused"."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
