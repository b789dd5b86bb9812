"""Connections to brokers, for one event loop: requests go out in turn, answers match them."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.coordinator.explain import one_line
from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.security import RejectedError

if TYPE_CHECKING:
    from offsetmgr.coordinator.fence.security import Sasl, Security
    from offsetmgr.coordinator.fence.wire import Broker, Request

OPEN_S: Final = 5.0
"""For a connection to be made and its client known."""

SILENT_S: Final = 10.0
"""A request that is not answered this long ends its connection: a half-open one looks like that."""

ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A longer answer is none."""

_INT_BYTES: Final = 4

_LIFETIME_SHARE: Final = 0.8
"""Of a session's lifetime, after which a connection is replaced before the broker ends it."""


class LinkError(Exception):
    """The connection was not made, or has ended; of what was sent over it nothing is known."""


class Link:
    """One connection; its methods belong to the event loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._why = ""
        self._expires_at: float | None = None
        self._receiving = asyncio.ensure_future(self._receive())

    @property
    def usable(self) -> bool:
        """Whether a new request may go over it."""
        old = self._expires_at is not None and asyncio.get_running_loop().time() > self._expires_at
        return not self._why and not old

    def send(self, request: Request, limit_s: float = SILENT_S) -> asyncio.Future[bytes]:
        """Send at once; the answer without its header, or LinkError.

        Without an answer for ``limit_s`` the connection ends.  Raises LinkError where it has.
        """
        if self._why:
            raise LinkError(self._why)
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = loop.create_future()
        self._open[number] = answer
        late = loop.call_later(limit_s, self._end, f"no answer for {limit_s:g} s")

        def over(done: asyncio.Future[bytes]) -> None:
            late.cancel()
            if not done.cancelled():
                done.exception()  # looked at: nobody may be waiting any more

        answer.add_done_callback(over)
        self._writer.write(request.framed(number, self._client_id))
        return answer

    async def authenticate(self, sasl: Sasl) -> None:
        """Prove who the client is.  Raises LinkError, RejectedError."""
        handshake = await self.send(wire.sasl_handshake(sasl.mechanism))
        code, mechanisms = wire.read_handshake(handshake)
        if code:
            offered = one_line(", ".join(mechanisms))
            raise RejectedError(f"the broker takes {offered}, not {sasl.mechanism}")
        proof, lifetime_ms = sasl.proof(), 0
        message: bytes | None = proof.begin()
        while message is not None:
            raw = await self.send(wire.sasl_authenticate(message))
            answer = wire.read_authenticated(raw)
            if answer.error:
                raise RejectedError(one_line(answer.text) or f"code {answer.error}")
            lifetime_ms = answer.lifetime_ms
            message = proof.reply(answer.token)
        if lifetime_ms > 0:
            now_s = asyncio.get_running_loop().time()
            self._expires_at = now_s + lifetime_ms / 1_000 * _LIFETIME_SHARE

    def close(self) -> None:
        """End the connection; what is open fails."""
        self._end("the connection was closed")

    async def _receive(self) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await self._reader.readexactly(_INT_BYTES))
                if not _INT_BYTES <= size <= ANSWER_BYTES:
                    self._end(f"an answer of {size} bytes")
                    return
                raw = await self._reader.readexactly(size)
                (number,) = struct.unpack(">i", raw[:_INT_BYTES])
                answer = self._open.pop(number, None)
                if answer is not None and not answer.done():
                    answer.set_result(raw[_INT_BYTES:])
        except (OSError, asyncio.IncompleteReadError) as error:
            lost = isinstance(error, asyncio.IncompleteReadError)
            why = "the broker closed the connection" if lost else str(error)
            self._end(why or type(error).__name__)

    def _end(self, why: str) -> None:
        if self._why:
            return
        self._why = why
        self._receiving.cancel()
        self._writer.transport.abort()
        left, self._open = self._open, {}
        for answer in left.values():
            if not answer.done():
                answer.set_exception(LinkError(why))


async def open_link(broker: Broker, security: Security, client_id: str) -> Link:
    """Connect and say who the client is, within OPEN_S.  Raises LinkError."""
    where = f"{one_line(broker.host)}:{broker.port}"
    try:
        return await asyncio.wait_for(_opened(broker, security, client_id), OPEN_S)
    except asyncio.TimeoutError:
        raise LinkError(f"{where} did not answer within {OPEN_S:g} s") from None
    except RejectedError as error:
        raise LinkError(f"{where} and the service do not accept each other: {error}") from error
    except wire.MalformedError as error:
        raise LinkError(f"{where} does not speak Kafka's protocol: {error}") from error
    except (OSError, LinkError, ValueError, OverflowError) as error:
        # asyncio raises the last two of names and ports that no broker can have.
        raise LinkError(f"{where}: {one_line(str(error), 300)}") from error


async def _opened(broker: Broker, security: Security, client_id: str) -> Link:
    secure: dict[str, Any] = {} if security.tls is None else {"ssl": security.tls}
    reader, writer = await asyncio.open_connection(*broker, **secure)
    link = Link(reader, writer, client_id)
    with contextlib.ExitStack() as unwind:
        unwind.callback(link.close)
        if security.sasl is not None:
            await link.authenticate(security.sasl)
        unwind.pop_all()
    return link


class Links:
    """Connections by broker and number, made when they are needed."""

    def __init__(self, security: Security, client_id: str) -> None:
        self._security = security
        self._client_id = client_id
        self._made: dict[tuple[Broker, int], asyncio.Task[Link]] = {}

    async def get(self, broker: Broker, number: int) -> Link:
        """The connection of that number, made anew where it has ended.  Raises LinkError."""
        made = self._made.get((broker, number))
        if made is None or (made.done() and not _usable(made)):
            opening = open_link(broker, self._security, self._client_id)
            made = self._made[broker, number] = asyncio.ensure_future(opening)
        # Others may wait for it too: who gives up waiting does not end it.
        return await asyncio.shield(made)

    async def new(self, broker: Broker, client_id: str) -> Link:
        """A connection for the caller alone, who closes it.  Raises LinkError."""
        return await open_link(broker, self._security, client_id)

    def close(self) -> None:
        """End all connections."""
        for made in self._made.values():
            if not made.done():
                made.cancel()
            elif _usable(made):
                made.result().close()
        self._made.clear()


def _usable(made: asyncio.Task[Link]) -> bool:
    return not made.cancelled() and made.exception() is None and made.result().usable
