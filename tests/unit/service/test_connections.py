"""When a connection ends, told by its timers; time stands until a test moves it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from offsetmgr.service.connections import HEAD_TIMEOUT_S, STILL_S, HttpProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S: Final = 75
REQUEST: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Timer:
    """One that was set."""

    def __init__(self, at: float, do: Callable[[], None]) -> None:
        self.at = at
        self.do = do
        self.cancelled = False

    def when(self) -> float:
        """Its time."""
        return self.at

    def cancel(self) -> None:
        """It will not fire."""
        self.cancelled = True


class Loop:
    """As much of an event loop as a connection uses; requests are begun and stand still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.begun: list[Timer] = []

    def call_later(self, delay: float, do: Callable[..., None], *given: object) -> Timer:
        """Set one."""
        return self.call_at(self.now + delay, do, *given)

    def call_at(self, at: float, do: Callable[..., None], *given: object) -> Timer:
        """Set one."""
        self.timers.append(Timer(at, lambda: do(*given)))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None], **_: object) -> Any:
        """Begin a request."""
        work.close()
        self.begun.append(Timer(self.now, lambda: None))
        return _Task()

    def pass_time(self, seconds: float) -> None:
        """Fire what falls due, in order."""
        end = self.now + seconds
        while due := [each for each in self.timers if not each.cancelled and each.at <= end]:
            first = min(due, key=Timer.when)
            self.timers.remove(first)
            self.now = first.at
            first.do()
        self.now = end


class _Task:
    def add_done_callback(self, do: Callable[[Any], None]) -> None:
        """It never ends."""


class Transport:
    """A connection whose writes are taken when the test says so."""

    def __init__(self, ours: socket.socket) -> None:
        self.ours = ours
        self.left = 0
        self.closing = self.aborted = self.paused = False

    def get_extra_info(self, name: str) -> Any:
        """Its socket, and no more."""
        return self.ours if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        """What is still here."""
        return self.left

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self.closing

    def close(self) -> None:
        """Ends when all is taken."""
        self.closing = True

    def abort(self) -> None:
        """Ends."""
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        """Nothing more may come."""
        self.paused = True

    def resume_reading(self) -> None:
        """It may."""
        self.paused = False


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Never runs."""


class Connection:
    """A connection that has just been made, and its other end."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.theirs = theirs
        self.loop = Loop()
        self.transport = Transport(ours)
        config = Config(app, http=HttpProtocol, log_config=None, timeout_keep_alive=KEEP_ALIVE_S)
        loop: Any = self.loop
        transport: Any = self.transport
        self.protocol = HttpProtocol(config, ServerState(), {}, loop)
        self.protocol.connection_made(transport)


@pytest.fixture
def connection() -> Iterator[Connection]:
    """One on which nothing has come."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours, theirs)


def test_stray_bytes_do_not_put_the_end_off(connection: Connection) -> None:
    """However often they come."""
    for _ in range(KEEP_ALIVE_S - 1):
        connection.loop.pass_time(1)
        connection.protocol.data_received(b"\r\n")
    assert not connection.transport.closing
    connection.loop.pass_time(1)
    assert connection.transport.closing


def test_a_request_has_the_time_of_a_request(connection: Connection) -> None:
    """Its head has its own, and while it is under way the connection is not idle."""
    connection.protocol.data_received(b"\r\n" + REQUEST[:-1])
    connection.loop.pass_time(HEAD_TIMEOUT_S - 1)
    connection.protocol.data_received(REQUEST[-1:])
    connection.loop.pass_time(10 * KEEP_ALIVE_S)
    assert not connection.transport.closing


def test_a_head_ends_in_time(connection: Connection) -> None:
    """Each byte of it puts nothing off."""
    connection.protocol.data_received(REQUEST[:1])
    connection.loop.pass_time(HEAD_TIMEOUT_S - 1)
    connection.protocol.data_received(REQUEST[1:2])
    connection.loop.pass_time(1)
    assert connection.transport.closing


def test_a_head_that_is_not_read_is_not_late(connection: Connection) -> None:
    """It may have come in time, behind requests that wait for the answer to an earlier one."""
    connection.protocol.data_received(REQUEST * 2 + REQUEST[:1])
    connection.loop.pass_time(10 * HEAD_TIMEOUT_S)
    assert not connection.transport.closing
    connection.protocol.on_response_complete()
    connection.protocol.on_response_complete()
    connection.loop.pass_time(HEAD_TIMEOUT_S)
    assert connection.transport.closing


def test_requests_that_wait_for_earlier_ones_stop_the_reading(connection: Connection) -> None:
    """Until the last of them is begun, whoever wants to read again before."""
    connection.protocol.data_received(REQUEST * 3)
    for waiting in (2, 1, 0):
        assert len(connection.protocol.pipeline) == waiting
        connection.protocol.flow.resume_reading()
        assert connection.transport.paused is bool(waiting)
        connection.protocol.on_response_complete()
    assert len(connection.loop.begun) == 3


def test_a_slow_reader_is_not_cut_off(connection: Connection) -> None:
    """One byte in all that time is enough, also where only the system's buffer gave it."""
    connection.protocol.data_received(REQUEST)
    for _ in range(11):
        connection.transport.ours.send(bytes(1_000))
    connection.transport.left = 100_000
    connection.protocol.pause_writing()
    for _ in range(10):
        connection.transport.left -= 1
        connection.loop.pass_time(STILL_S)
    for _ in range(10):
        connection.theirs.recv(1_000)
        connection.loop.pass_time(STILL_S)
    assert not connection.transport.closing


def test_a_reader_that_takes_nothing_is_cut_off(connection: Connection) -> None:
    """Also where it took something before."""
    connection.protocol.data_received(REQUEST)
    connection.transport.left = 100_000
    connection.protocol.pause_writing()
    connection.transport.left -= 1
    connection.loop.pass_time(STILL_S)
    assert not connection.transport.aborted
    connection.loop.pass_time(STILL_S)
    assert connection.transport.aborted


def test_a_reader_that_has_caught_up_may_rest(connection: Connection) -> None:
    """What is left then is little, and costs nobody anything."""
    connection.protocol.data_received(REQUEST)
    connection.transport.left = 100_000
    connection.protocol.pause_writing()
    connection.transport.left = 10_000
    connection.protocol.resume_writing()
    connection.transport.left = 60_000
    connection.loop.pass_time(10 * STILL_S)
    assert not connection.transport.closing


def test_an_end_does_not_wait_for_what_is_not_taken(connection: Connection) -> None:
    """An idle connection whose last answer stands in its way ends all the same."""
    connection.transport.left = 10_000
    connection.loop.pass_time(KEEP_ALIVE_S)
    assert connection.transport.closing
    connection.loop.pass_time(STILL_S)
    assert connection.transport.aborted


def test_a_last_answer_that_is_not_taken_holds_no_connection(connection: Connection) -> None:
    """One after which the connection was to end."""
    connection.protocol.data_received(REQUEST)
    connection.transport.left = 10_000
    connection.transport.close()
    connection.protocol.on_response_complete()
    connection.loop.pass_time(STILL_S)
    assert connection.transport.aborted


def test_what_is_gone_is_not_looked_at(connection: Connection) -> None:
    """No timer outlives its connection."""
    connection.protocol.on_message_begin()
    connection.transport.left = 100_000
    connection.protocol.pause_writing()
    assert len(connection.loop.timers) == 3
    connection.protocol.connection_lost(ConnectionResetError())
    assert [each for each in connection.loop.timers if not each.cancelled] == []
