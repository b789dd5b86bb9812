"""A service process of the simulation: the real service, without sockets."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from actors import Future
from offsetmgr.client.transport import Answer
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.service.run import Assembly
from offsetmgr.service.settings import KafkaSettings, Limits, Settings
from tests.sim.loop import Loop
from tests.sim.network import scope_of
from tests.sim.processes import Process
from tests.sim.threads import SimThread, acting_for, wall_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.memory import BrokerState, Incident, SentRequest
    from offsetmgr.types import ManagerKey, StopResult
    from tests.sim.network import Call, Network
    from tests.sim.processes import Host
    from tests.sim.service_judge import ServiceJudge

DRAIN_S: Final = 10.0
_VERSION: Final = "0"


@contextlib.contextmanager
def quick_start() -> Iterator[None]:
    """Spare each service the two slow things that never differ: its document and its version."""
    with (
        mock.patch("offsetmgr.service.api.document", return_value={}),
        mock.patch("offsetmgr.service.run.version", return_value=_VERSION),
    ):
        yield


class ServiceProcess:
    """One life of the service, from start to crash or drain."""

    def __init__(
        self,
        host: Host,
        number: int,
        network: Network,
        commit: CommitSettings,
        lease_s: float,
        rng: random.Random,
        *,
        latency_s: float,
        plan: Callable[[SentRequest], Incident | None],
        broker: BrokerState,
        judge: ServiceJudge,
    ) -> None:
        self._host = host
        self._network = network
        self._rng = rng
        self._judge = judge
        self.draining = False
        self._frozen_s = 0.0
        self.process = Process(host, f"service{number}")
        self.loop = Loop(self.process)
        self.coordinator = MemoryCoordinator(
            call_after=self.process.timers.call_after,
            latency_s=latency_s,
            plan=plan,
        )
        self.coordinator.broker = broker
        settings = Settings(
            kafka=KafkaSettings({"bootstrap.servers": "memory:1"}),
            commit=commit,
            lease_s=lease_s,
            limits=Limits(event_streams=8),
        )
        with quick_start():
            self.assembly = Assembly(
                settings,
                self.coordinator,
                self.process,
                wall=wall_s,
                rng=random.Random(rng.getrandbits(32)),  # noqa: S311 -- to be replayed
            )
        self.drained: dict[ManagerKey, StopResult] | None = None
        """The result of the stop of all managers."""
        self._background = self.loop.create_task(self._work(), name="background")

    @property
    def dead(self) -> bool:
        return self.process.dead

    async def _work(self) -> None:
        async with self.assembly.background():
            await self.loop.create_future()

    def receive(self, call: Call) -> None:
        self._judge.arrives(call)
        self.loop.create_task(self._serve(call), name=call.path)

    async def _serve(self, call: Call) -> None:
        gone = self.loop.create_future()
        if call.streams:
            call.hang_up = lambda: None if gone.done() else gone.set_result(None)
        bodies = [call.request.body or b""]
        head: list[MutableMapping[str, Any]] = []
        parts: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await gone
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                head.append(message)
                if call.streams:
                    self._network.answered(call, _answer(message, b""))
            elif call.streams:
                call.pieces.append(message.get("body", b""))
                call.thread.wake()
            else:
                parts.append(message.get("body", b""))

        await self.assembly.app(scope_of(call.request), receive, send)
        if not call.streams:
            answer = _answer(head[0], b"".join(parts))
            self._judge.answered(call, answer)
            if self.loop.trouble:
                self._judge.blame(f"the service's event loop: {self.loop.trouble}")
            self._network.answered(call, answer)

    # The end

    def crash(self) -> None:
        """``kill -9``.  Of a commit under way nobody knows whether the broker still takes it.

        One that was given up before does not land any more: who would put it right is gone.
        """
        for request in self.coordinator.requests[-20:]:
            waits = not request.answered and request.operation == "commit"
            if waits and self._rng.random() < 0.5:
                self.coordinator.broker.commit(request.group, request.offsets)
        self.process.kill()
        self._network.reset()

    def drain(self) -> None:
        done: Future[dict[ManagerKey, StopResult]] = Future()
        self.draining = True
        self._frozen_s = self.process.frozen_s

        async def shut_down() -> None:
            self.assembly.service.drain(DRAIN_S)
            self.assembly.hub.close()
            with acting_for(self.process):
                SimThread(
                    target=lambda: done.set(self.assembly.factory.stop(DRAIN_S)), name="drain"
                ).start()
            self.drained = await done
            self._host.timers.call_after(0.0, self._end)

        self.loop.create_task(shut_down(), name="drain")

    @property
    def frozen_at_drain(self) -> bool:
        """True if it stood still on its way to its end, and so may have run out of time."""
        return self.process.frozen_s > self._frozen_s

    def _end(self) -> None:
        self.process.kill()
        self._network.reset()


def _answer(head: MutableMapping[str, Any], body: bytes) -> Answer:
    headers = {name.decode().lower(): value.decode() for name, value in head["headers"]}
    return Answer(head["status"], headers, body)
