"""Between clients and the service: loses, delays, doubles and reorders what is sent.

The client's requests are its real ones, and the service's side is its real ASGI application.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from offsetmgr.client.transport import Answer, Unreachable
from tests.sim.threads import current_thread

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, MutableMapping
    from random import Random

    from offsetmgr.client.transport import Request
    from offsetmgr.deadlines import Deadline
    from tests.sim.processes import Host
    from tests.sim.server import ServiceProcess
    from tests.sim.threads import SimThread

REFUSED_S: Final = 0.001
"""The duration of a refused connection."""

VANISHED_S: Final = 5.0
"""After this long a client gives up a connection that nobody answers."""


@dataclass(eq=False)
class Call:
    """One request on its way, and its answer."""

    request: Request
    thread: SimThread
    answer: Answer | None = None
    broken: bool = False
    """True if the connection broke off."""
    pieces: deque[bytes] = field(default_factory=deque)
    """Of a stream's body."""
    streams: bool = False
    hang_up: Callable[[], None] = lambda: None
    """Tells the service that the client is gone."""

    @property
    def path(self) -> str:
        return urlsplit(self.request.target).path


class Network:
    """Every client's way to whatever service process lives."""

    def __init__(self, host: Host, rng: Random, met: Counter[str]) -> None:
        self._host = host
        self._rng = rng
        self.server: ServiceProcess | None = None
        self.cut: set[str] = set()
        """Clients whose packets vanish."""
        self.rate = rng.choice((0.0, 0.1, 0.3, 0.6))
        """The probability of a fault."""
        self.latest_s = rng.choice((0.05, 1.0, 2.5))
        """The longest time a request may be under way."""
        self._met = met
        self._open: list[Call] = []

    def exchange(self, call: Call, deadline: Deadline) -> Answer:
        """Send, and wait for the answer; in a thread of the client."""
        fate = self._send(call, deadline)
        try:
            while call.answer is None and not call.broken and not deadline.over:
                call.thread.pause(deadline.within_s())
        finally:
            call.hang_up()
            if call in self._open:
                self._open.remove(call)
        if call.answer is None:
            raise Unreachable(f"no answer: {fate}")
        return call.answer

    def _send(self, call: Call, deadline: Deadline) -> str:
        server = self.server
        if call.thread.process.name in self.cut:
            self._wait(call, deadline.within_s(VANISHED_S))
            raise Unreachable("packets vanish")
        if server is None or server.dead or deadline.over:
            self._wait(call, REFUSED_S)
            raise Unreachable("connection refused")
        self._open.append(call)
        fate = self._fate()
        self._met[f"request: {fate}"] += 1
        if fate == "lost":
            self._host.timers.call_after(self._delay_s(), lambda: self.break_off(call))
            return fate
        self._arrive(
            call, server, self._delay_s() if fate in {"slow", "delayed"} else self._short_s()
        )
        if fate == "doubled":
            self._arrive(call, server, self._delay_s())
        if fate in {"cut", "delayed"}:
            # The client hears nothing more, whatever the service does.
            self._host.timers.call_after(self._short_s(), lambda: self.break_off(call))
        return fate

    def _fate(self) -> str:
        if self._rng.random() >= self.rate:
            return "whole"
        return self._rng.choice(("lost", "cut", "slow", "delayed", "doubled"))

    def _arrive(self, call: Call, server: ServiceProcess, delay_s: float) -> None:
        def arrive() -> None:
            if not server.dead:
                server.receive(call)

        self._host.timers.call_after(delay_s, arrive)

    def answered(self, call: Call, answer: Answer) -> None:
        def deliver() -> None:
            if not call.broken:
                call.answer = call.answer or answer
                call.thread.wake()

        self._host.timers.call_after(self._short_s(), deliver)

    def reset(self) -> None:
        """The service process is gone, and with it all connections."""
        for call in self._open:
            self._host.timers.call_after(REFUSED_S, partial(self.break_off, call))

    def heal(self) -> None:
        self.rate = 0.0
        self.cut.clear()

    def break_off(self, call: Call) -> None:
        """The connection ends, and what was not answered yet never is."""
        if call.answer is None or call.streams:
            call.broken = True
            call.thread.wake()

    def _wait(self, call: Call, seconds: float) -> None:
        timer = self._host.timers.call_after(seconds, lambda: self.break_off(call))
        while not call.broken:
            call.thread.pause(None)
        timer.cancel()

    def _short_s(self) -> float:
        return self._rng.choice((0.0, 0.001, 0.01))

    def _delay_s(self) -> float:
        return self._rng.uniform(0.0, self.latest_s)

    # Streams

    def stream(self, call: Call, read_timeout_s: float) -> tuple[Answer, Iterator[bytes]]:
        server = self.server
        if call.thread.process.name in self.cut or server is None or server.dead:
            self._wait(call, REFUSED_S)
            raise Unreachable("connection refused")
        self._open.append(call)
        self._arrive(call, server, self._short_s())
        while call.answer is None and not call.broken:
            call.thread.pause(read_timeout_s)
        if call.answer is None:
            raise Unreachable("the stream broke off")
        return call.answer, self._pieces(call, read_timeout_s)

    def _pieces(self, call: Call, read_timeout_s: float) -> Iterator[bytes]:
        try:
            while not call.broken:
                if call.pieces:
                    yield call.pieces.popleft()
                    continue
                before = self._host.clock.now()
                call.thread.pause(read_timeout_s)
                silent_s = self._host.clock.now() - before
                if not call.pieces and silent_s >= read_timeout_s:
                    raise Unreachable("the stream is silent")
            raise Unreachable("the stream broke off")
        finally:
            call.hang_up()
            if call in self._open:
                self._open.remove(call)


class Wire:
    """The client's connection in the simulation; it is used once."""

    network: Network
    open = False

    def __init__(self, address: object, deadline: Deadline) -> None:
        del address, deadline
        self._call: Call | None = None

    def exchange(self, request: Request, deadline: Deadline) -> Answer:
        """As ``transport.Connection.exchange``."""
        self._call = Call(request, current_thread())
        return self.network.exchange(self._call, deadline)

    def stream(self, request: Request, read_timeout_s: float) -> tuple[Answer, Iterator[bytes]]:
        """As ``transport.Connection.stream``."""
        self._call = Call(request, current_thread(), streams=True)
        return self.network.stream(self._call, read_timeout_s)

    def abort(self) -> None:
        """Another thread ends what is asked here."""
        if self._call is not None:
            self.network.break_off(self._call)

    def close(self) -> None:
        """Nothing is kept."""


def scope_of(request: Request) -> MutableMapping[str, Any]:
    """``request`` as an ASGI server gives it to the application."""
    parts = urlsplit(request.target)
    headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    headers.append((b"host", b"127.0.0.1:8741"))
    headers.append((b"content-length", str(len(request.body or b"")).encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8741),
    }
