"""The chaos run: ``python -m tests.chaos.run MINUTES [--seed N]``; non-zero where a promise broke.

Three real brokers, the real service under a supervisor, real client processes, and a nemesis that
kills, pauses, terminates and cuts all of them, while topics are deleted and recreated.  From the
begin there are a group with an odd name, a poisoned letter and a broker that does not answer.  At
the end all is healed and brought to its end, and Kafka's own log of commits is held against what
the clients saw.  The seed decides which faults are injected when, not how the threads of a dozen
processes interleave.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.kafka.commit_log import read_commits
from tests.chaos.checker import Death, Evidence, Look, Verdict, check
from tests.chaos.history import Key, read_history
from tests.chaos.nemesis import Nemesis, Targets
from tests.chaos.oddities import Oddities
from tests.chaos.offsets_topic import read_committed
from tests.chaos.plan import BROKERS, CLIENTS, PARTITIONS, TRACKS, Fault, Injection, Track, schedule
from tests.chaos.processes import ROOT, client, service
from tests.chaos.recreation import Book, Log, Recreator
from tests.chaos.workload import Life
from tests.conftest import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Self


PARTITIONS_EACH: Final = 4
"""Of each client."""

INTERVAL_S: Final = 0.25
"""Between two commits of a group."""

_REQUEST_TIMEOUT_S: Final = 2.0

_SETTINGS: Final = (
    f"commit.commit_interval_s={INTERVAL_S}",
    f"commit.request_timeout_s={_REQUEST_TIMEOUT_S}",
    "commit.retry_backoff_max_s=2",
    "lease_s=4",
    "stop_timeout_s=3",
)

GROUPS: Final = ("chaos-a", "chaos-b", "chaos-c", "chaos-d")
ROUND_S: Final = 30.0
RECREATED: Final = 2
"""Topics that are recreated."""
RECREATE_S: Final = 20.0
LATE: Final = 0.4
"""The longest time until a reader notices that its log is gone, by the time between two."""
_COMMANDS: Final = 2
"""Commands that are run in good times, all of them in turns."""

# Three brokers that start during other work have taken more than a minute.
_START_S: Final = 180.0

# Leaders go back to a broker that returned, so that coordinators also move in good times.
_PROPERTIES: Final = {
    "leader.imbalance.check.interval.seconds": "5",
    "leader.imbalance.per.broker.percentage": "1",
}
_SHOWN: Final = 20
_SEEDS: Final = 1_000_000


class Setting(NamedTuple):
    kafka: DevKafka
    folder: Path
    """For the logs of everybody."""
    seed: int
    topic: str
    """Is created."""
    groups: Sequence[str]
    clients: int
    settings: Sequence[str] = ()
    """Further ones of the service, as ``name=value``."""
    trees: Sequence[Path] = (ROOT,)
    """Sources: the lives of the service take turns with them, and so do the clients."""
    recreate_s: float = 0.0
    """Time between two recreations of each topic that is recreated; 0: there are none."""
    odd: bool = False
    """True if there are odd things from the begin."""

    @property
    def recreated(self) -> list[str]:
        """The topics that are recreated."""
        return [f"{self.topic}-again-{n}" for n in range(RECREATED if self.recreate_s else 0)]

    def lives(self, url: str) -> list[Life]:
        """The first life of each client; each has partitions of its own, in all groups."""
        return [
            Life(
                folder=self.folder,
                url=url,
                name=f"client-{number}",
                number=1,
                seed=self.seed,
                topic=self.topic,
                partitions=list(range(number * PARTITIONS_EACH, (number + 1) * PARTITIONS_EACH)),
                groups=self.groups,
                recreated=self.recreated,
                read=list(range(number, PARTITIONS[-1], self.clients)),
                late_s=self.recreate_s * LATE,
            )
            for number in range(self.clients)
        ]


class Outcome(NamedTuple):
    verdict: Verdict
    nemesis: Nemesis
    logs: Mapping[str, Sequence[Log]]

    @property
    def held(self) -> bool:
        """True if every promise was kept, and nothing happened that nobody ordered."""
        return not self.verdict.violations and not self.nemesis.incidents


class ChaosRun:
    """A run: ``with ChaosRun(...) as chaos``, play rounds, then let it be judged."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._deaths: list[Death] = []
        self._looks: list[Look] = []
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        lives = setting.lives(f"http://{address}")
        kafka, folder = setting.kafka, setting.folder
        create_topic(kafka, setting.topic, setting.clients * PARTITIONS_EACH)
        self._recreator = Recreator(kafka, folder, setting.recreated, setting.seed)
        self._recreator.begin()
        servers, settings = kafka.bootstrap_servers, [*_SETTINGS, *setting.settings]
        self._odd: Oddities | None = None
        if setting.odd:
            self._odd = Oddities(kafka, setting.topic, setting.groups, address)
            self._odd.begin()
            self._commands = itertools.cycle(self._odd.commands())
            servers = self._odd.bootstrap_servers
            settings += self._odd.settings()
        served = service(folder, address, servers, settings, setting.trees)
        clients = [client(life, tree) for life, tree in zip(lives, itertools.cycle(setting.trees))]
        self._nemesis = Nemesis(Targets(kafka, served, clients, lives))

    def __enter__(self) -> Self:
        self._nemesis.start()
        self._nemesis.calm()
        if self._setting.recreate_s:
            self._recreator.start(self._setting.recreate_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._recreator.stop()
        self._nemesis.close()
        if self._odd is not None:
            self._odd.close()

    def play(self, number: int, length_s: float, tracks: Sequence[Track]) -> None:
        """Play a round: its faults, then the deaths that need good times before them."""
        self._inject_all(schedule(self._setting.seed, number, length_s, tracks))
        self._nemesis.calm()
        self._look()
        self._nemesis.kill_in_silence()
        self._nemesis.calm()
        victim = number % self._setting.clients
        life = self._nemesis.targets.clients[victim].life
        name = self._nemesis.targets.lives[victim].name
        self._deaths.append(Death(name, life, self._nemesis.kill_together(victim)))

    def _look(self) -> None:
        """Look at all endpoints, and at the commands whose turn it is."""
        if self._odd is not None:
            self._looks += map(self._nemesis.look, self._odd.endpoints())
            self._looks += [command() for command in itertools.islice(self._commands, _COMMANDS)]

    def replace_service(self) -> None:
        """Have the service end in order and its next life take over."""
        self._inject_all([Injection(0.0, 0.0, Fault.SERVICE_TERM, 0)])
        self._nemesis.calm()

    def _inject_all(self, injections: Sequence[Injection]) -> None:
        began_at = time.monotonic()
        heals: dict[int, Callable[[], None] | None] = {}
        steps = [(each.at_s, number, False) for number, each in enumerate(injections)]
        steps += [(each.until_s, number, True) for number, each in enumerate(injections)]
        for at_s, number, ends in sorted(steps):
            self._nemesis.wait(began_at + at_s)
            if not ends:
                heals[number] = self._nemesis.inject(injections[number])
            elif heal := heals[number]:
                heal()

    def judge(self) -> Outcome:
        """Heal all, let everybody end, and hold Kafka's log against what the clients saw."""
        nemesis, setting = self._nemesis, self._setting
        nemesis.calm()
        self._recreator.stop()
        logs = Book(setting.folder).read()
        nemesis.await_readers({topic: found[-1] for topic, found in logs.items()})
        self._look()
        nemesis.end()
        nemesis.note(self._recreator.incidents)
        servers = setting.kafka.bootstrap_servers
        partitions = {topic: range(found[-1].partitions) for topic, found in logs.items()}
        partitions[setting.topic] = range(setting.clients * PARTITIONS_EACH)
        standing = {
            Key(group, number, topic if topic in logs else ""): offset
            for group in setting.groups
            for topic, numbers in partitions.items()
            for number, offset in read_committed(servers, group, topic, numbers).items()
        }
        evidence = Evidence(
            read_history(setting.folder),
            list(read_commits(servers, setting.groups)),
            standing,
            nemesis.targets.service.starts,
            {
                (client.name, number): at_s
                for client in nemesis.targets.clients
                for number, at_s in enumerate(client.starts, start=1)
            },
            self._deaths,
            _REQUEST_TIMEOUT_S,
            logs,
            self._looks,
        )
        return Outcome(check(evidence), nemesis, logs)


def run(
    minutes: float, seed: int, folder: Path, settings: Sequence[str] = (), recreate_s: float = 0.0
) -> Outcome:
    """Play rounds for ``minutes`` with those settings of the service, and judge."""
    kafka = DevKafka(brokers=BROKERS, data_dir=folder / "kafka", properties=_PROPERTIES)
    kafka.start(_START_S)
    with contextlib.ExitStack() as stack:
        stack.callback(kafka.stop)
        setting = Setting(
            kafka,
            folder,
            seed,
            "chaos",
            GROUPS,
            CLIENTS,
            settings,
            recreate_s=recreate_s,
            odd=True,
        )
        chaos = stack.enter_context(ChaosRun(setting))
        ends_at = time.monotonic() + 60 * minutes
        for number in itertools.count():
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                break
            chaos.play(number, min(ROUND_S, left_s), TRACKS)
        return chaos.judge()


def summary(outcome: Outcome) -> Iterator[str]:
    verdict, nemesis, logs = outcome
    yield "faults:"
    yield from (f"  {count:6} {fault}" for fault, count in sorted(nemesis.injected.items()))
    yield f"  {nemesis.missed:6} missed: down already, or another broker not back yet"
    clients = sum(each.life for each in nemesis.targets.clients)
    yield f"lives: {nemesis.targets.service.life} of the service, {clients} of the clients"
    yield f"coordinators moved: {nemesis.moves}"
    yield "events of the clients:"
    for (action, result), count in sorted(verdict.actions.items()):
        if result != "invoke":
            yield f"  {count:6} {action} {result}"
    yield f"topics recreated: {sum(len(found) - 1 for found in logs.values())} times"
    yield f"commits in Kafka's log: {verdict.commits}, to recreated topics {verdict.of_recreated}"
    yield f"deleted by Kafka with their topics: {verdict.deleted}"
    yield f"of a former log, recreated during the commit: {verdict.races}"
    yield f"  at most {verdict.widest_race_s:.1f} s after its creation"
    yield f"of a former log, guessed: {verdict.guesses}"
    yield f"  replaced by the start of the new log: {verdict.replaced}"
    yield f"looks at endpoints and commands: {verdict.looks}"
    yield f"told to be committed: {verdict.acknowledged}"
    yield f"of replaced clients, by a service that had not heard: {verdict.superseded}"
    yield f"landed behind newer ones, when they had been given up: {verdict.late}"
    yield f"commits of what stood there already: {verdict.repeated}"
    yield f"slowest recovery after a round: {nemesis.slowest_recovery_s:.1f} s"
    yield f"commits that left out a submit which was lost: {verdict.worst_left_out} at most"
    yield f"promises broken: {len(verdict.violations)}; incidents: {len(nemesis.incidents)}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("minutes", type=float, help="how long the faults go on")
    parser.add_argument("--seed", type=int, help="decides the faults; by chance without")
    parser.add_argument(
        "--recreate",
        type=float,
        default=RECREATE_S,
        metavar="SECONDS",
        help=f"time between recreations of a topic; 0: none are (default: {RECREATE_S:g})",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for the service: fence=true",
    )
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(_SEEDS) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix=f"offsetmgr-chaos-{seed}-"))
    say(f"chaos for {given.minutes:g} minutes, seed {seed}; logs in {folder}")
    outcome = run(given.minutes, seed, folder, given.set, given.recreate)
    for line in summary(outcome):
        say(line)
    if outcome.held:
        shutil.rmtree(folder)
        return 0
    for trouble in [*outcome.nemesis.incidents, *map(str, outcome.verdict.violations)][:_SHOWN]:
        say(f"- {trouble}")
    say(f"the logs are in {folder}")
    options = [f"--seed={seed}", f"--recreate={given.recreate:g}"]
    again = shlex.join([f"{given.minutes:g}", *options, *(f"--set={s}" for s in given.set)])
    say(f"the same faults again: python -m tests.chaos.run {again}")
    return 1


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
