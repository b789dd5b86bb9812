"""One simulated run of the whole product: drivers with the real client, the real service, Kafka.

The clients' threads, the service's event loop and its actors take turns on one seeded schedule.
Between client and service requests are lost, delayed and doubled; services, clients and Kafka
fail; new lives of a client meet its old ones.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final
from unittest import mock

from offsetmgr.config import CommitSettings
from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager.timing import STOPPED_TIMEOUTS
from offsetmgr.types import OffsetAndMetadata
from tests.sim.crowd import Crowd
from tests.sim.network import Network, Wire
from tests.sim.processes import Host, Process
from tests.sim.queues import LOOK_EVERY, MOST_HELD, look_at_factory, look_at_parts
from tests.sim.referee import WatchedBroker
from tests.sim.server import DRAIN_S, ServiceProcess
from tests.sim.service_judge import LEASE_S, ServiceJudge
from tests.sim.threads import jump_wall, simulated_time
from tests.sim.weather import LATEST_LANDING_S, REQUEST_TIMEOUT_S, Weather

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.testing import SimStep
    from offsetmgr.coordinator.memory import Incident, SentRequest
    from tests.sim.drivers import Driver

STEPS: Final = 40
"""Things that happen in one run."""

DAY_S: Final = 86_400.0

MOST_TIMERS: Final = 300

VERIFY_S: Final = 5.0

_INTERVALS_S = (0.5, 10.0, 20.0)
_RECOMMIT_S = (0.0, 7.0)
_PAUSES_S = (0.0, 0.0, 0.01, 0.1, 0.6, REQUEST_TIMEOUT_S, 2 * LEASE_S)
_FROZEN_S = (0.3, 3.0, LEASE_S - 0.1, LEASE_S + 0.1, 2 * LEASE_S)


class ServiceWorld:
    """A run: everything in it follows from its seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 -- to be replayed
        self.system = Host(rng.getrandbits(32))
        self.judge = ServiceJudge()
        self.raised: list[BaseException] = []
        self.weather = Weather(rng, self.judge.met)
        if rng.random() < 0.4:
            self.weather.be_calm()
        self.judge.begin(self.system)
        self.system.on_step = self._after_step
        network_rng = random.Random(rng.getrandbits(32))  # noqa: S311 -- to be replayed
        self.network = Network(self.system, network_rng, self.judge.met)
        self.broker = WatchedBroker(self.judge)
        self.settings = CommitSettings(
            commit_interval_s=rng.choice(_INTERVALS_S),
            request_timeout_s=REQUEST_TIMEOUT_S,
            retry_backoff_s=0.1,
            retry_backoff_max_s=2.0,
            error_limit=8,
            recommit_interval_s=rng.choice(_RECOMMIT_S),
            verify_interval_s=VERIFY_S,
        )
        self.service: ServiceProcess | None = None
        self.services: list[ServiceProcess] = []
        self.disturbed = False
        """True if the service or a client ever ended without having committed everything."""
        calm = self.weather.calm and self.network.rate == 0 and rng.random() < 0.5
        self.crowd = Crowd(
            self.system, self.judge, self.broker, self.network, rng, self.pass_time, self._freeze
        )
        self.crowd.calm = calm
        every = {key.topic_partition for keys in self.crowd.keys.values() for key in keys}
        self._partitions = len(every)
        """Of each group."""
        self.faults: list[Callable[[], None]] = []
        self.actions = self._draw_actions()

    def _draw_actions(self) -> list[Callable[[], None]]:
        """Each seed has its own mix, so that rare mixes are met as often as common ones."""
        crowd = self.crowd
        usual: list[Callable[[], None]] = [
            *[crowd.submit] * 5, crowd.submit_lower, crowd.submit_same, crowd.rewind,
            crowd.flush,
            crowd.sync, crowd.overtake, crowd.submit_often, crowd.stop, crowd.spawn,
            crowd.listen, crowd.close,
        ]  # fmt: skip
        faults: list[Callable[[], None]] = [
            self.crash_service, self.drain_service, crowd.crash_driver, crowd.replace_driver,
            crowd.cut, self.jump_wall, self.freeze_service, crowd.freeze_driver,
        ]  # fmt: skip
        mix = self.rng.sample(usual, self.rng.randint(4, len(usual)))
        mix += [crowd.submit, crowd.submit, crowd.start_driver]
        if not self.crowd.calm and self.rng.random() < 0.8:
            self.faults = self.rng.sample(faults, self.rng.randint(1, len(faults)))
            mix += self.faults
        if self.rng.random() < 0.1:
            mix.append(self.commit_externally)
        return mix

    # The run.

    def run(self) -> None:
        """Live, then let the faults end and see what is left."""
        rng = random.Random(self.rng.getrandbits(32))  # noqa: S311 -- to be replayed
        Wire.network = self.network
        with (
            simulated_time(self.system.clock, rng) as self.raised,
            mock.patch("offsetmgr.client.transport.Connection", Wire),
        ):
            try:
                self._live()
            finally:
                for process in list(self.system.processes):
                    process.kill()

    def _live(self) -> None:
        self.start_service()
        for name in self.crowd.keys:
            self.crowd.begin(name)
        for _ in range(STEPS):
            self._do(self.rng.choice(self.actions))
            self.pass_time(self.rng.choice(_PAUSES_S))
            if self.service is None and self.rng.random() < 0.3:
                self.start_service()
        self._end_badly()
        self.recover()

    def _end_badly(self) -> None:
        """Something fails just after everything was given new values, and no more follow."""
        if not self.faults or self.rng.random() < 0.3:
            return
        self.crowd.submit_everything()
        self.pass_time(self.rng.choice((0.01, 0.1, 0.6)))
        self._do(self.rng.choice(self.faults))

    def _do(self, action: Callable[[], None]) -> None:
        self.judge.met[f"service: {action.__name__}"] += 1
        action()

    def pass_time(self, pause_s: float) -> None:
        if pause_s == 0.0:
            self.system.run_steps(self.rng.randint(0, 20))
        else:
            self.system.advance(pause_s)
        if self.service is not None and self.service.dead:
            self._drained(self.service)
        if self.system.timer_count() > MOST_TIMERS:
            self.judge.blame(f"{self.system.timer_count()} timers")
        if self.raised:
            self.judge.blame(f"a thread of a client raised {self.raised[0]!r}")
        self.judge.check()

    def _after_step(self, step: SimStep) -> None:
        # Here, and not only when time has passed: after an outage queues are short again.
        if step.step % LOOK_EVERY == 0:
            self._look_at_queues()
        self.judge.check()

    def recover(self) -> None:
        """Faults end: without any help all that a live client holds is committed."""
        self.weather.clear()
        self.network.heal()
        self.crowd.end_zombies()
        for process in list(self.system.processes):
            process.thaw(timers_first=self.rng.random() < 0.5)
        if self.service is None:
            self.start_service()
        # A commit that landed last is found by the verification after it, which waits for a commit;
        # where its manager stops now, by the one that follows a stop.
        verified_s = max(LATEST_LANDING_S, STOPPED_TIMEOUTS * REQUEST_TIMEOUT_S)
        self.pass_time(verified_s + VERIFY_S + self.settings.commit_interval_s)
        if self.service is None:  # it was being drained
            self.start_service()
            self.pass_time(15.0)
        for driver in self.crowd.drivers.values():
            if not driver.process.dead and not driver.idle:
                self.judge.blame(f"{driver.name} still waits for an answer, though all is well")
        for driver in self.crowd.living():
            driver.flush(8.0)
        self.pass_time(8.5)
        for driver in self.crowd.living():
            self.judge.check_live(driver)
        self.judge.check_end(kept=self.weather.calm and not self.disturbed)
        for driver in self.crowd.living():
            driver.close(8.0)
        self.pass_time(8.5)
        self._end()

    def _end(self) -> None:
        service = self.service
        if service is None:
            self.judge.blame("the service is gone")
        else:
            self.pass_time(2 * LEASE_S + 12.0)
            owned = [key for keys in self.crowd.keys.values() for key in keys]
            clients = service.assembly.registry._clients.values()
            left = [key for key in owned if any(each.holds(key) for each in clients)]
            if left:
                self.judge.blame(f"nobody holds {left} any more, and the service keeps them")
            service.drain()
            self.pass_time(DRAIN_S + 2.0)
            self.judge.check_end(kept=self.weather.calm and not self.disturbed)
            if not service.dead or service.process.actor_count():
                self.judge.blame(f"{service.process.actor_count()} actors outlive their service")
        waiting = [d.name for d in self.crowd.drivers.values() if not d.idle and not d.process.dead]
        if waiting:
            self.judge.blame(f"calls of {waiting} were never answered")
        self.judge.check()

    # Services.

    def start_service(self) -> None:
        if self.service is not None:
            return
        self.service = ServiceProcess(
            self.system,
            len(self.services) + 1,
            self.network,
            self.settings,
            LEASE_S,
            self.rng,
            latency_s=self.weather.latency_s,
            plan=self._plan,
            broker=self.broker,
            judge=self.judge,
        )
        self.services.append(self.service)
        self.judge.began(self.service)
        self.network.server = self.service

    def _plan(self, request: SentRequest) -> Incident | None:
        if request.operation not in {"commit", "fetch"}:
            return None
        self.judge.sent(request)
        return self.weather.plan(request)

    def crash_service(self) -> None:
        """Kill it: all its state is lost, Kafka's is not."""
        if self.service is not None:
            self.disturbed = True
            self.service.crash()
            self.service = self.network.server = None
            # What a forgotten fence kept out may come in again: zombies end here.
            self.crowd.end_zombies()

    def freeze_service(self) -> None:
        """It stands still for a while: what is sent to it waits, and leases run out."""
        if self.service is not None:
            self._freeze(self.service.process)

    def _freeze(self, process: Process) -> None:
        self.disturbed = True
        process.freeze()
        timers_first = self.rng.random() < 0.5
        self.system.timers.call_after(
            self.rng.choice(_FROZEN_S), lambda: process.thaw(timers_first=timers_first)
        )

    def drain_service(self) -> None:
        if self.service is not None and not self.service.draining:
            self.service.drain()
            self.crowd.end_zombies()

    def _drained(self, service: ServiceProcess) -> None:
        self.service = self.network.server = None
        results = service.drained or {}
        left = {key: result for key, result in results.items() if result.uncommitted is not None}
        self.disturbed = self.disturbed or bool(left)
        excused = all(
            isinstance(each.error, OffsetRegressionError) or self.judge.fates[key].tampered
            for key, each in left.items()
        )
        if self.weather.calm and not excused and not service.frozen_at_drain:
            self.judge.blame(f"nothing went wrong, yet the drain left {left}")

    # Kafka and the clock.

    def jump_wall(self) -> None:
        jump_wall(DAY_S)

    def commit_externally(self) -> None:
        key = self.rng.choice(next(iter(self.crowd.keys.values())))
        value = OffsetAndMetadata(self.rng.randint(0, 40), str(self.judge.next_order()))
        self.judge.tampered(key, value)
        self.broker.commit_externally(key.group, {key.topic_partition: value})

    # What must not grow.

    def _running(self) -> list[Driver]:
        """Drivers whose process is there, older ones and closed ones too."""
        drivers = (*self.crowd.drivers.values(), *self.crowd.zombies)
        return [driver for driver in drivers if not driver.process.dead]

    def _look_at_queues(self) -> None:
        """At what clients hold for their partitions, and the service for clients and managers."""
        for driver in self._running():
            core, held_by = driver.client.core, driver.client.core.partitions
            held = (core, held_by)
            look_at_parts(self.judge, driver.process.name, held, len(driver.keys))
        if self.service is not None:
            assembly = self.service.assembly
            registry, hub = assembly.registry, assembly.hub
            clients = registry._clients.values()
            parts = (assembly.service, registry, *clients, hub, *hub._readers)
            look_at_parts(self.judge, "service", parts, MOST_HELD)
            error_limit, partitions = self.settings.error_limit, self._partitions
            look_at_factory(self.judge, assembly.factory, error_limit, partitions)
