"""Addresses, connections against raw sockets, and server-sent events however they are cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given

from offsetmgr.client import transport
from offsetmgr.client.transport import (
    MAX_EVENT_BYTES,
    Connection,
    Request,
    ServiceAddress,
    Session,
    Unreachable,
    parse_url,
    read_events,
)
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Serve = Callable[[socket.socket], None]

ASK = Request("GET", "/", {})
OK = b"HTTP/1.1 200 OK\r\nOffsetmgr-Instance: one\r\nContent-Length: 2\r\n\r\n{}"


class Listener:
    """Serves each connection in turn by one of `serves`."""

    def __init__(self, listening: socket.socket, *serves: Serve) -> None:
        self._listening = listening
        self._serves = serves
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for serve in self._serves:
            connection, _ = self._listening.accept()
            with connection:
                connection.settimeout(WAIT_S)
                serve(connection)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(listening: socket.socket) -> ServiceAddress:
    return ServiceAddress(*listening.getsockname())


def session_at(where: ServiceAddress) -> Session:
    return Session("http://it", where, "etl", lambda _instance: None)


def ask(where: ServiceAddress, timeout_s: float = WAIT_S) -> dict[str, object]:
    """Ask in a session of its own, which keeps no connection."""
    session = session_at(where)
    try:
        return session.ask("/", Deadline(timeout_s), dict)
    finally:
        session.end()


def answer(*texts: bytes) -> Serve:
    """Answer one request after the other with `texts`, then hang up."""

    def serve(connection: socket.socket) -> None:
        for text in texts:
            if not connection.recv(65536):
                return
            connection.sendall(text)

    return serve


def breaking(connection: socket.socket) -> None:
    """Answer one request, and hang up at the next."""
    answer(OK)(connection)
    connection.recv(65536)


@pytest.mark.parametrize(
    "serves",
    [[answer(OK, OK)], [answer(OK), answer(OK)], [breaking, answer(OK)]],
    ids=["kept", "closed", "breaking"],
)
def test_a_connection_is_kept_while_it_works(listening: socket.socket, serves: list[Serve]) -> None:
    """One that the service has closed, or that breaks with the next request, is replaced."""
    Listener(listening, *serves)
    session = session_at(address(listening))
    assert [session.ask("/", Deadline(WAIT_S), dict) for _ in range(2)] == [{}, {}]
    session.end()


def test_nobody_there(listening: socket.socket) -> None:
    """If nobody listens, the request was certainly not received."""
    where = address(listening)
    listening.close()
    with pytest.raises(Unreachable, match="cannot be reached: connection refused"):
        ask(where)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + 70_000 * b"x" + b"\r\n\r\n",
    ],
    ids=["nothing", "short", "chunk", "ssh", "header"],
)
def test_broken_answers_are_one_error(listening: socket.socket, text: bytes) -> None:
    """All that comes instead of a whole answer is one kind of error."""
    Listener(listening, answer(text))
    with pytest.raises(Unreachable):
        ask(address(listening))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        (CHUNKED, b"1"),
        (CHUNKED + b"0\r\n", b"X: y\r\n"),
    ],
    ids=["status line", "head", "body", "chunk", "trailer"],
)
def test_a_trickling_answer_ends_at_its_deadline(
    listening: socket.socket, first: bytes, drop: bytes
) -> None:
    """A server that sends a little now and then holds a caller up no longer, wherever it does."""
    hung_up = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(first)
        with suppress(OSError):
            for _ in range(2_000):
                if hung_up.wait(0.05):
                    return
                connection.sendall(drop)

    Listener(listening, drip)
    with pytest.raises(Unreachable, match=r"within 0\.2 s"):
        ask(address(listening), 0.2)
    hung_up.set()


def test_http_to_a_port_with_tls_is_explained(listening: socket.socket) -> None:
    """The other side hangs up; the error says what may be the reason."""
    Listener(listening, answer(b"\x15\x03\x03\x00\x02\x02\x46"))
    with pytest.raises(Unreachable, match="TLS needs https://"):
        ask(address(listening))


def test_the_zone_of_an_address_is_decoded() -> None:
    """As RFC 6874 writes it in a URL; the system wants it bare."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        Listener(server, answer(OK))
        where = parse_url(f"http://[::1%251]:{server.getsockname()[1]}")
        assert ask(where) == {}


def test_an_endless_answer(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer longer than the limit is refused, not collected; in place of a stream as well."""
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 10)
    long = b" No\r\nContent-Length: 11\r\n\r\n" + 11 * b"x"
    Listener(listening, answer(b"HTTP/1.1 200" + long), answer(b"HTTP/1.1 404" + long))
    session = session_at(address(listening))
    with pytest.raises(Unreachable, match="more than 10 bytes"):
        session.ask("/", Deadline(WAIT_S), dict)
    with pytest.raises(Unreachable, match="more than 10 bytes"):
        next(session.stream("/", "", WAIT_S))


def test_unix_socket(tmp_path: Path) -> None:
    """A Unix socket serves as well; a missing one is called so."""
    path = str(tmp_path / "with space")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        Listener(server, answer(OK))
        assert ask(parse_url(f"unix://{path}")) == {}
    with pytest.raises(Unreachable, match="no such file"):
        ask(ServiceAddress(path=path + "x"))


def test_proxies_are_ignored(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxies are for the internet, not for a service on this machine."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    Listener(listening, answer(OK))
    assert ask(address(listening)) == {}


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_stream_in_pieces_until_it_falls_silent(listening: socket.socket) -> None:
    """It gives what has come, without waiting for more, until its end.

    One on which nothing comes for the read timeout is broken, not waited for.
    """
    hung_up = threading.Event()

    def fall_silent(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(HEAD + b"2\r\nab\r\n")
        hung_up.wait(WAIT_S)

    Listener(listening, fall_silent, answer(HEAD + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"))
    connection = Connection(address(listening), Deadline(WAIT_S))
    head, pieces = connection.stream(ASK, 3.0)
    assert head.status == 200
    assert next(pieces) == b"ab"
    with pytest.raises(Unreachable, match=r"sent nothing for 3\.0 s"):
        next(pieces)
    connection.close()
    hung_up.set()
    connection = Connection(address(listening), Deadline(WAIT_S))
    _, pieces = connection.stream(ASK, WAIT_S)
    assert b"".join(pieces) == b"abc"
    connection.close()


GOOD: dict[str, ServiceAddress] = {
    "http://127.0.0.1:8741": ServiceAddress("127.0.0.1", 8741),
    "http://localhost/": ServiceAddress("localhost", 8741),
    "http://[::1]:80": ServiceAddress("::1", 80),
    "https://host": ServiceAddress("host", 8741, tls=True),
    "http://[fe80::1%25eth0]:80": ServiceAddress("fe80::1%eth0", 80),
    f"unix:///{106 * 'x'}": ServiceAddress(path="/" + 106 * "x"),
    "unix:///run/off setmgr@1.sock": ServiceAddress(path="/run/off setmgr@1.sock"),
    "unix:///run/offsetmgr@1.sock": ServiceAddress(path="/run/offsetmgr@1.sock"),
}

BAD: dict[str, object] = {
    "no text": 8741,
    "empty": "",
    "no scheme": "127.0.0.1:8741",
    "https without host": "https://:8741",
    "no host": "http://:8741",
    "port": "http://127.0.0.1:99999",
    "port as text": "http://127.0.0.1:http",
    "path": "http://127.0.0.1:8741/v1",
    "query": "http://127.0.0.1:8741?a=b",
    "space": "http://127.0.0.1 :8741",
    "newline": "http://127.0.0.1:8741\r\nX: y",
    "number": 10**5_000,
    "bracket": "http://[::1",
    "relative": "unix://run/offsetmgr.sock",
    "no path": "unix://",
    "root": "unix:///",
    "space behind": "unix:///run/offsetmgr.sock ",
    "long path": "unix:///" + 107 * "x",
    "long path in bytes": "unix:///" + 54 * "é",
}


@pytest.mark.parametrize("url", GOOD)
def test_good_urls(url: str) -> None:
    """Hosts, ports, IPv6 and Unix sockets are read."""
    assert parse_url(url) == GOOD[url]


@pytest.mark.parametrize("case", BAD)
def test_bad_urls(case: str) -> None:
    """A URL that leads nowhere is refused with the field and a way out."""
    with pytest.raises(InvalidValueError) as caught:
        parse_url(BAD[case])
    assert caught.value.field == "url"
    assert caught.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1:8741", "127.0.0.1:http", "/v1", "[::1", "a b"])
def test_a_password_is_not_repeated(host: str) -> None:
    """A URL with a user is refused without its secret in the message."""
    with pytest.raises(InvalidValueError) as caught:
        parse_url(f"http://me:secret@{host}")
    assert "secret" not in str(caught.value)


STREAM = (
    b": connected\n\n"
    b'event: committed\ndata: {"a": 1}\n\n'
    b"id: 7\nevent: failed\ndata: gr\xc3\xb6\xc3\x9fe\n\n"
    b": keep-alive\n\n"
    b"event: without data\n\n"
    b"retry: 10\nunknown: x\ndata: y\n\n"
    b"data: unfinished"
)
EVENTS = [
    {"event": "committed", "data": '{"a": 1}'},
    {"id": "7", "event": "failed", "data": "größe"},
    {"retry": "10", "unknown": "x", "data": "y"},
]


@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_however_it_is_cut(cuts: list[int]) -> None:
    """The network's cuts change nothing, be it within a line end or within a character."""
    at = [0, *sorted(cuts), len(STREAM)]
    assert list(read_events(STREAM[start:end] for start, end in pairwise(at))) == EVENTS


def test_an_event_without_end() -> None:
    """An event that never ends is refused before it fills the memory."""
    line = b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n"
    pieces = iter([line, line, b"never read"])
    with pytest.raises(Unreachable):
        next(read_events(pieces))
    assert list(pieces) == [b"never read"]
