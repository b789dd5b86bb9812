"""Connections between fences and Kafka: real requests over a network that delays and loses them.

What is sent over one connection arrives in order, or not at all once something was lost.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final

from tests.sim.seats import COMMIT, NAMES, message_of, refused

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from random import Random

    from tests.sim.processes import Host, Process
    from tests.sim.seats import Message, Seats

LATEST_S: Final = 20.0
"""So long a request may be under way: longer than its sender waits, and than a session lasts."""

_CODES: Final = (14, 15, 16)
_LATE_CODES: Final = (15, 16)
"""Answers to a commit that may have been written all the same."""


class Wires:
    """All connections."""

    def __init__(self, host: Host, rng: Random, met: Counter[str]) -> None:
        """``met`` counts what happened."""
        self.host = host
        self.seats: Seats
        self.sending: Callable[[Process, Message], None] = lambda _process, _message: None
        """Sees each request as it is sent."""
        self.cut: set[str] = set()
        """Processes whose packets vanish."""
        self.rate = rng.choice((0.0, 0.05, 0.2, 0.4))
        """How often something goes wrong with a request."""
        self.latency_s = rng.choice((0.001, 0.02, 0.4))
        self.calm = self.rate == 0.0
        self._rng = rng
        self._met = met
        kinds = ["lost", "unanswered", "closed", "slow", "refused"]
        self._kinds = rng.sample(kinds, rng.randint(1, len(kinds)))

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self.rate = 0.0
        self.cut.clear()

    async def open(
        self, host: str, port: int, **_security: object
    ) -> tuple[asyncio.StreamReader, Any]:
        """In the place of ``asyncio.open_connection``."""
        del host, port
        loop: Any = asyncio.get_running_loop()
        process: Process = loop.process
        await asyncio.sleep(self.latency_s)
        if process.name in self.cut:
            await loop.create_future()  # nobody says anything
        if self._rng.random() < self.rate / 4:
            raise ConnectionRefusedError("connection refused")
        wire = Wire(self, process, asyncio.StreamReader(loop=loop))
        return wire.reader, wire

    def fate(self, message: Message) -> str:
        """What becomes of a request."""
        fate = self._rng.choice(self._kinds) if self._rng.random() < self.rate else "answered"
        self._met[f"fence: {NAMES[message.key]} {fate}"] += 1
        return fate

    def delay_s(self, *, slow: bool = False) -> float:
        """How long a packet takes."""
        return self._rng.uniform(0.0, LATEST_S) if slow else self._rng.uniform(0, self.latency_s)

    def refuse(self, message: Message, answer: Callable[[bytes], None]) -> None:
        """The broker cannot do it, or says so though it has."""
        code = self._rng.choice(_CODES)
        if message.key == COMMIT and code in _LATE_CODES and self._rng.random() < 0.5:
            self.seats.receive(message, lambda _: None)
        answer(refused(message, code))


class Wire:
    """One connection, as its writer."""

    def __init__(self, wires: Wires, process: Process, reader: asyncio.StreamReader) -> None:
        self._wires = wires
        self._process = process
        self.reader = reader
        self._closed = False
        self._deaf = self._mute = False
        """Whether the broker hears nothing more, or is not heard any more."""
        self._arrives_s = self._answers_s = 0.0

    @property
    def transport(self) -> Wire:
        """Itself."""
        return self

    def abort(self) -> None:
        """The client closes it."""
        self._closed = True

    def write(self, frame: bytes) -> None:
        """The client sends a request."""
        wires, message = self._wires, message_of(frame)
        wires.sending(self._process, message)
        fate = wires.fate(message)
        vanish = self._process.name in wires.cut
        self._deaf = self._deaf or vanish or fate in {"lost", "closed"}
        if fate == "closed":
            # Whatever is on its way; the last request may have got through.
            self._wires.host.timers.call_after(wires.delay_s(), self._break)
            if wires.delay_s() < wires.latency_s / 2:
                self._arrive(message, fate)
        elif not self._deaf:
            self._arrive(message, fate)
        self._mute = self._mute or vanish or fate == "unanswered"

    def _arrive(self, message: Message, fate: str) -> None:
        now_s = self._wires.host.clock.now()
        arrives_s = now_s + self._wires.delay_s(slow=fate == "slow")
        self._arrives_s = max(self._arrives_s, arrives_s)

        def answer(raw: bytes) -> None:
            self._answer(message.number, raw)

        def arrive() -> None:
            if fate == "refused":
                self._wires.refuse(message, answer)
            else:
                self._wires.seats.receive(message, answer)

        self._wires.host.timers.call_after(self._arrives_s - now_s, arrive)

    def _answer(self, number: int, raw: bytes) -> None:
        if self._mute or self._process.name in self._wires.cut:
            self._mute = True
            return
        now_s = self._wires.host.clock.now()
        self._answers_s = max(self._answers_s, now_s + self._wires.delay_s())
        frame = struct.pack(">ii", len(raw) + 4, number) + raw
        self._wires.host.timers.call_after(self._answers_s - now_s, lambda: self._feed(frame))

    def _feed(self, frame: bytes) -> None:
        if not self._closed and not self._process.dead:
            self.reader.feed_data(frame)

    def _break(self) -> None:
        self._mute = True
        if not self._closed and not self._process.dead:
            self._closed = True
            self.reader.feed_eof()
