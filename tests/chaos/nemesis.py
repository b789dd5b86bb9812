"""The nemesis of a chaos run: injects faults into its processes and heals them."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException

from offsetmgr.devkafka.cluster import quiet_admin
from offsetmgr.kafka.commit_log import TOPIC
from tests.chaos.history import Key, has_spoken, newest_submits, of_a_former_life, path_of
from tests.chaos.offsets_topic import read_committed
from tests.chaos.plan import Fault, Injection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka.admin import AdminClient

    from offsetmgr.devkafka import DevKafka
    from tests.chaos.checker import Look
    from tests.chaos.processes import Supervised, Zombie
    from tests.chaos.recreation import Log
    from tests.chaos.workload import Life

TICK_S: Final = 0.02
CALM_S: Final = 90.0
"""Time limit for brokers and commits to come back after the last fault."""

_ANSWER_S: Final = 0.5
_STOP_S: Final = 5.0
_MOVES: Final = 2
"""A commit may have been under way; the second was begun in good times."""


class Targets(NamedTuple):
    kafka: DevKafka
    service: Supervised
    clients: Sequence[Supervised]
    lives: Sequence[Life]
    """The clients' first ones, in the same order."""


class Nemesis:
    """Injects faults into the processes, heals them, and knows when all is well."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.injected: Counter[str] = Counter()
        self.missed = 0
        """Injections against what was down already, against connections where there were none, or
        against a broker while another was not yet back."""
        self.slowest_recovery_s = 0.0
        self.moves = 0
        """Coordinators seen to have moved to another broker."""
        self._leaders: dict[int, int] = {}
        self._incidents: list[str] = []
        self._zombies: list[Zombie] = []
        self._supervised = (targets.service, *targets.clients)

    @functools.cached_property
    def _admin(self) -> AdminClient:
        return quiet_admin(self.targets.kafka.bootstrap_servers)

    @property
    def incidents(self) -> list[str]:
        """Unordered events: ends of processes, and commits that did not come back."""
        return self._incidents + [what for each in self._supervised for what in each.incidents]

    def note(self, incidents: Iterable[str]) -> None:
        """Note what others have seen that nobody ordered."""
        self._incidents += incidents

    def start(self) -> None:
        """Begin the first life of everybody; Kafka runs already."""
        for each in self._supervised:
            each.start()

    def tick(self) -> None:
        for each in self._supervised:
            each.tick()

    def wait(self, until: float) -> None:
        """Supervise until that time of ``time.monotonic``."""
        while (left_s := until - time.monotonic()) > 0:
            self.tick()
            time.sleep(min(TICK_S, left_s))

    # Faults

    def inject(self, injection: Injection) -> Callable[[], None] | None:
        """Inject a fault; return what heals it, where anything does."""
        heal: Callable[[], None] | None = None
        fault = injection.fault
        try:
            if fault.name.startswith("BROKER"):
                heal = self._inject_broker(fault, injection.target)
            elif fault.name.startswith("SERVICE"):
                heal = self._inject_process(fault, self.targets.service)
            else:
                heal = self._inject_client(fault, injection.target)
        except ProcessLookupError:
            self.missed += 1
        else:
            self.injected[fault.value] += 1
        return heal

    def _inject_process(self, fault: Fault, victim: Supervised) -> Callable[[], None] | None:
        if not victim.process.running():
            raise ProcessLookupError(victim.name)
        heal: Callable[[], None] | None = None
        if fault in {Fault.SERVICE_KILL, Fault.CLIENT_KILL}:
            victim.kill()
        elif fault in {Fault.SERVICE_TERM, Fault.CLIENT_TERM}:
            victim.terminate()
        else:
            victim.pause()
            heal = victim.resume
        return heal

    def _inject_client(self, fault: Fault, number: int) -> Callable[[], None] | None:
        victim = self.targets.clients[number]
        if fault is not Fault.CLIENT_ZOMBIE:
            return self._inject_process(fault, victim)
        # One that is still starting would be the newer of the two once it goes on.
        if not victim.process.running() or not self._has_spoken(number):
            raise ProcessLookupError(victim.name)
        zombie = victim.part()
        self._zombies.append(zombie)
        return zombie.resume

    def _inject_broker(self, fault: Fault, number: int) -> Callable[[], None]:
        broker = self.targets.kafka.brokers[number]
        if not self._brokers_are_well():
            raise ProcessLookupError(f"broker {broker.node_id}, or another one")
        if fault is Fault.BROKER_KILL:
            broker.kill()
        elif fault is Fault.BROKER_TERM:
            os.kill(broker.pid, signal.SIGTERM)
        else:
            broker.pause()
            return broker.resume

        def heal() -> None:
            broker.stop(_STOP_S)
            broker.launch()

        return heal

    def _brokers_are_well(self) -> bool:
        """True if all run, and all copies of the offsets topic are in step."""
        brokers = self.targets.kafka.brokers
        if not all(broker.running for broker in brokers):
            return False  # which the others may not know yet
        try:
            found = self._admin.list_topics(TOPIC, timeout=_ANSWER_S)
        except KafkaException:
            return False
        partitions = found.topics[TOPIC].partitions
        for number, each in partitions.items():
            self.moves += self._leaders.get(number, each.leader) != each.leader
            self._leaders[number] = each.leader
        return len(found.brokers) == len(brokers) and all(
            len(each.isrs) == len(brokers) for each in partitions.values()
        )

    def kill_together(self, number: int) -> float:
        """Kill a client and the service at once; the wall clock just before."""
        self.injected[Fault.TOGETHER.value] += 1
        at_s = time.time()
        self.targets.clients[number].kill()
        self.targets.service.kill()
        return at_s

    def kill_in_silence(self) -> None:
        """Kill the service when nobody submits any more; all that was submitted must arrive."""
        self.injected[Fault.IN_SILENCE.value] += 1
        for each in self.targets.clients:
            each.silence()
        self.targets.service.kill()
        self._await(lambda: "submits of silent clients were not committed", self._all_arrived)
        for each in self.targets.clients:
            each.speak()

    def _all_arrived(self) -> bool:
        """True if Kafka holds the newest submit of each key, of the lives as they are now."""
        return all(
            self._has_arrived(life._replace(number=process.life))
            for life, process in zip(self.targets.lives, self.targets.clients, strict=True)
        )

    def _has_arrived(self, life: Life) -> bool:
        servers = self.targets.kafka.bootstrap_servers
        found = {
            group: read_committed(servers, group, life.topic, life.partitions)
            for group in life.groups
        }
        newest = newest_submits(path_of(life.folder, life.name, life.number))
        for key, offset in ((key, event.offset) for key, event in newest.items() if not key.topic):
            stands = found[key.group].get(key.partition, -1)
            # A service that was just started may have believed a replaced life that was ahead:
            # what it sent stands until its successor, who is silent now, has passed it.
            ahead = stands > offset
            if stands != offset and not (
                ahead and of_a_former_life(life.folder, life.name, life.number, key, stands)
            ):
                return False
        return True

    # Good times

    def calm(self) -> None:
        """Wait until everybody is back and each client's commits flow in each group."""
        for zombie in self._zombies:
            zombie.close()
        self._zombies.clear()
        self._relaunch_brokers()
        self._await(lambda: "the brokers were not back", self._brokers_are_well)
        # A life that was told to end commits as well, and would take no more orders.
        self._await(lambda: "somebody was not back", self._everybody_stays)
        started_at = time.monotonic()
        moves = {
            (life.name, group): _Moves(self.targets.kafka.bootstrap_servers, life, group)
            for life in self.targets.lives
            for group in life.groups
        }

        def flowing() -> bool:
            for who, watched in list(moves.items()):
                if watched.seen():
                    del moves[who]
            return not moves

        self._await(lambda: f"no commits of {moves}", flowing)
        took_s = time.monotonic() - started_at
        self.slowest_recovery_s = max(self.slowest_recovery_s, took_s)

    def await_readers(self, logs: Mapping[str, Log]) -> None:
        """Wait until every reader has submitted offsets of the last log of each topic."""
        self._await(
            lambda: f"somebody does not read {list(logs.values())}",
            lambda: all(
                self._reads(life._replace(number=process.life), logs)
                for life, process in zip(self.targets.lives, self.targets.clients, strict=True)
            ),
        )

    def _reads(self, life: Life, logs: Mapping[str, Log]) -> bool:
        newest = newest_submits(path_of(life.folder, life.name, life.number))
        reads = {key: event.tag.log for key, event in newest.items() if key.topic}
        return all(
            reads.get(Key(group, partition, topic)) == log.number
            for group in life.groups
            for topic, log in logs.items()
            for partition in life.read
            if partition < log.partitions
        )

    def look(self, door: Callable[[], Look]) -> Look:
        """Look until all is shown; return the last look, also if something stays missing."""
        deadline = time.monotonic() + CALM_S
        while (seen := door()).expected - seen.shown and time.monotonic() < deadline:
            self.wait(time.monotonic() + _ANSWER_S)
        return seen

    def _relaunch_brokers(self) -> None:
        """Start those again that ended, though all of them are healed by now."""
        for broker in self.targets.kafka.brokers:
            if not broker.running:
                self._incidents.append(f"broker {broker.node_id} ended by itself")
                broker.launch()

    def _everybody_stays(self) -> bool:
        """True if all run, and each client is so far that it takes orders."""
        return all(each.stays() for each in self._supervised) and all(
            self._has_spoken(number) for number in range(len(self.targets.clients))
        )

    def _has_spoken(self, number: int) -> bool:
        life = self.targets.lives[number]
        return has_spoken(path_of(life.folder, life.name, self.targets.clients[number].life))

    def _await(self, trouble: Callable[[], str], well: Callable[[], bool]) -> None:
        deadline = time.monotonic() + CALM_S
        while not _holds(well):
            if time.monotonic() > deadline:
                self._incidents.append(f"{trouble()} {CALM_S:.0f} s after the last fault")
                return
            self.tick()
            time.sleep(TICK_S)

    def end(self) -> None:
        """End everybody in order; whoever left something uncommitted is an incident."""
        for each in reversed(self._supervised):
            status = each.end()
            if status != 0:
                self._incidents.append(f"{each.name} was told to end, and did with {status}")

    def close(self) -> None:
        for zombie in self._zombies:
            zombie.close()
        for each in self._supervised:
            each.close()


def _holds(well: Callable[[], bool]) -> bool:
    """True if all is well; where a coordinator could not even be asked it is not."""
    try:
        return well()
    except TimeoutError:
        return False


class _Moves:
    """Sees the commits of one client in one group move on."""

    def __init__(self, bootstrap_servers: str, life: Life, group: str) -> None:
        self._arguments = (bootstrap_servers, group, life.topic, life.partitions)
        self._before: dict[int, int] | None = None
        self._left = _MOVES

    def __repr__(self) -> str:
        return f"{self._left} more moves after {self._before}"

    def seen(self) -> bool:
        now = read_committed(*self._arguments)
        self._left -= self._before is not None and now != self._before
        self._before = now
        return self._left <= 0
