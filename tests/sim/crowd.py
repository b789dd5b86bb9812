"""All drivers of a simulated run: who reads what, who lives, and what each of them does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.types import ManagerKey
from tests.sim.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from offsetmgr.types import OffsetManagerHandle
    from tests.sim.network import Network
    from tests.sim.processes import Host, Process
    from tests.sim.referee import WatchedBroker
    from tests.sim.service_judge import ServiceJudge

_TIMEOUTS_S: Final = (0.0, 0.5, 3.0, 8.0)

PATIENT_S: Final = 300.0
"""Longer than any run: who waits so long is answered because what was waited for has come."""

_WAITS_S: Final = (*_TIMEOUTS_S, PATIENT_S)


class Crowd:
    """The drivers; without arguments, a method picks one of them."""

    def __init__(
        self,
        host: Host,
        judge: ServiceJudge,
        broker: WatchedBroker,
        network: Network,
        rng: Random,
        pass_time: Callable[[float], None],
        freeze: Callable[[Process], None],
    ) -> None:
        """``pass_time`` lets everybody work for so many seconds; ``freeze`` is for one of them."""
        self._host = host
        self._judge = judge
        self._broker = broker
        self._network = network
        self._rng = rng
        self._pass_time = pass_time
        self._freeze = freeze
        self._lives = 0
        self._handles: list[tuple[Driver, OffsetManagerHandle]] = []
        self.keys = self._share_keys()
        self.drivers: dict[str, Driver] = {}
        """The newest of each name."""
        self.zombies: list[Driver] = []
        """Older ones, that still run."""
        self.calm = False
        """True if nothing goes wrong in this run."""

    def _share_keys(self) -> dict[str, list[ManagerKey]]:
        keys = [ManagerKey(f"g{g}", "t", p) for g in range(2) for p in range(2)]
        names = ["a", "b"][: self._rng.randint(1, 2)]
        self._judge.rivals = len(names) > 1 and self._rng.random() < 0.2
        if self._judge.rivals:
            return dict.fromkeys(names, keys)
        return {name: keys[at :: len(names)] for at, name in enumerate(names)}

    def living(self) -> list[Driver]:
        """Those that run and were not closed, without the zombies."""
        return [d for d in self.drivers.values() if not d.process.dead and not d.closed]

    def _some(self) -> Driver | None:
        drivers = [*self.living(), *(z for z in self.zombies if not z.process.dead)]
        awake = [driver for driver in drivers if not driver.process.frozen]
        return self._rng.choice(awake) if awake else None

    def begin(self, name: str) -> None:
        self._lives += 1
        driver = Driver(self._host, self._judge, name, self._lives, self.keys[name])
        driver.calm = self.calm
        self.drivers[name] = driver
        for key in driver.keys:
            # As the Spark bridge does: the first position of a run may go back.
            if self._rng.random() < 0.5:
                driver.submit(key, self._near(key), rewind=True)

    def _near(self, key: ManagerKey) -> int:
        held = self._broker.committed(key.group).get(key.topic_partition)
        return self._rng.randint(0, 10) + (0 if held is None else held.offset)

    def start_driver(self) -> None:
        for name, driver in self.drivers.items():
            if driver.process.dead or (driver.closed and driver.idle):
                driver.process.kill()
                self.begin(name)
                return

    def crash_driver(self) -> None:
        driver = self._some()
        if driver is not None:
            driver.process.kill()

    def replace_driver(self) -> None:
        """A new driver of the same name starts while the old one still runs."""
        driver = self._some()
        if driver is not None and driver not in self.zombies:
            if self._is_known(driver):
                self.zombies.append(driver)
            else:  # after its successor's end the service would take it for a newcomer
                driver.process.kill()
            self._host.advance(0.001)  # no two incarnations have the same number
            self.begin(driver.name)

    def _is_known(self, driver: Driver) -> bool:
        """True if the service that runs now will recognise the driver once it is replaced."""
        server = self._network.server
        if server is None or server.draining:
            return False
        client = server.assembly.registry.find(driver.name)
        return client is not None and client.incarnation == driver.incarnation

    def cut(self) -> None:
        """A driver's packets vanish, maybe until its lease has lapsed; then they do not."""
        driver = self._some()
        if driver is None:
            return
        name = driver.process.name
        if name in self._network.cut:
            self._network.cut.discard(name)
        else:
            self._network.cut.add(name)

    def freeze_driver(self) -> None:
        """A driver stands still for a while, and does not know of it."""
        driver = self._some()
        if driver is not None:
            self._freeze(driver.process)

    def end_zombies(self) -> None:
        for zombie in self.zombies:
            zombie.process.kill()

    # What drivers do.

    def _some_newest(self) -> tuple[Driver, ManagerKey, int] | None:
        """A driver, one of its partitions, and what it submitted there last."""
        driver = self._some()
        if driver is None or not driver.newest:
            return None
        key = self._rng.choice(sorted(driver.newest))
        return driver, key, driver.newest[key].offset

    def submit(self) -> None:
        driver = self._some()
        if driver is not None:
            self._submit(driver, self._rng.choice(driver.keys))

    def _submit(self, driver: Driver, key: ManagerKey) -> None:
        newest = driver.newest.get(key)
        base = self._near(key) if newest is None else newest.offset
        driver.submit(key, base + self._rng.randint(0, 4))

    def submit_everything(self) -> None:
        for driver in self.living():
            for key in () if driver.process.frozen else driver.keys:
                self._submit(driver, key)

    def submit_often(self) -> None:
        """Submit again and again, each in a request of its own."""
        for _ in range(20):
            self.submit()
            self._pass_time(0.03)

    def submit_lower(self) -> None:
        if some := self._some_newest():
            driver, key, newest = some
            driver.submit(key, max(0, newest - self._rng.randint(1, 4)))

    def submit_same(self) -> None:
        if some := self._some_newest():
            driver, key, newest = some
            driver.submit(key, newest)

    def rewind(self) -> None:
        if some := self._some_newest():
            driver, key, newest = some
            driver.submit(key, max(0, newest - self._rng.randint(0, 6)), rewind=True)

    def sync(self) -> None:
        if some := self._some_newest():
            driver, key, newest = some
            offset = newest + self._rng.randint(1, 4)
            driver.submit_sync(key, offset, self._rng.choice(_WAITS_S))

    def overtake(self) -> None:
        """Submit and wait for it, and change one's mind meanwhile."""
        if some := self._some_newest():
            driver, key, newest = some
            driver.submit_sync(key, newest + self._rng.randint(1, 4), self._rng.choice(_WAITS_S))
            self._pass_time(self._rng.choice((0.0, 0.0, 0.01)))
            if not driver.process.dead and not driver.process.frozen:
                driver.submit(key, max(0, newest + self._rng.randint(-3, 4)), rewind=True)

    def flush(self) -> None:
        driver = self._some()
        if driver is not None:
            driver.flush(self._rng.choice(_WAITS_S))

    def stop(self) -> None:
        driver = self._some()
        if driver is not None:
            group = self._rng.choice(driver.keys).group
            keys = [k for k in driver.keys if k.group == group and self._rng.random() < 0.7]
            if keys:
                driver.stop(keys, self._rng.choice(_WAITS_S))

    def close(self) -> None:
        driver = self._some()
        if driver is not None and driver not in self.zombies and self._rng.random() < 0.3:
            driver.close(self._rng.choice(_WAITS_S))

    def spawn(self) -> None:
        driver = self._some()
        if driver is not None:
            handle = driver.spawn(self._rng.choice(driver.keys))
            if handle is not None:
                self._handles.append((driver, handle))
                driver.initial_offset(handle, self._rng.choice(_TIMEOUTS_S))

    def listen(self) -> None:
        for driver, handle in self._handles:
            if not driver.process.dead and not driver.process.frozen:
                driver.listen(handle)
