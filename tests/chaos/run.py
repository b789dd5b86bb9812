"""The chaos run: ``python -m tests.chaos.run MINUTES [--seed N]``; non-zero where a promise broke.

Three real brokers, the real service under a supervisor, real client processes, and a nemesis that
kills, pauses, terminates and cuts all of them.  At the end all is healed and brought to its end,
and Kafka's own log of commits is held against what the clients saw.  The seed decides which faults
strike when, not how the threads of a dozen processes interleave.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka import DevKafka
from tests.chaos.game import INTERVAL_S, Game, Setting
from tests.chaos.plan import SERVICE_TRACK, broker_track, client_track

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.chaos.game import Outcome

BROKERS: Final = 3
CLIENTS: Final = 3
GROUPS: Final = ("chaos-a", "chaos-b", "chaos-c", "chaos-d")
STORM_S: Final = 30.0
LOSS_BOUND_S: Final = INTERVAL_S + 1.0
"""One interval, and the time that a commit itself may take on a busy machine."""

# Three brokers that start beside other work have taken more than a minute.
_START_S: Final = 180.0

# Leaders go back to a broker that returned, so that coordinators also move in good times.
_PROPERTIES: Final = {
    "leader.imbalance.check.interval.seconds": "5",
    "leader.imbalance.per.broker.percentage": "1",
}
_SHOWN: Final = 20
_SEEDS: Final = 1_000_000


def run(minutes: float, seed: int, folder: Path, settings: Sequence[str] = ()) -> Outcome:
    """Play rounds for ``minutes`` with those settings of the service, and judge."""
    tracks = (SERVICE_TRACK, client_track(CLIENTS), broker_track(BROKERS))
    kafka = DevKafka(brokers=BROKERS, data_dir=folder / "kafka", properties=_PROPERTIES)
    kafka.start(_START_S)
    with contextlib.ExitStack() as stack:
        stack.callback(kafka.stop)
        setting = Setting(kafka, folder, seed, "chaos", GROUPS, CLIENTS, LOSS_BOUND_S, settings)
        game = stack.enter_context(Game(setting))
        ends_at = time.monotonic() + 60 * minutes
        for number in itertools.count():
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                break
            game.play(number, min(STORM_S, left_s), tracks)
        return game.judge()


def summary(outcome: Outcome) -> Iterator[str]:
    """The lines that tell a person how it went."""
    verdict = outcome.verdict
    yield "faults:"
    yield from (f"  {count:6} {fault}" for fault, count in sorted(outcome.struck.items()))
    yield f"  {outcome.missed:6} missed: down already, or another broker not back yet"
    yield f"lives: {outcome.service_lives} of the service, {outcome.client_lives} of the clients"
    yield f"coordinators moved: {outcome.moves}"
    yield "events of the clients:"
    for (action, result), count in sorted(verdict.actions.items()):
        if result != "invoke":
            yield f"  {count:6} {action} {result}"
    yield f"commits in Kafka's log: {verdict.commits}"
    yield f"told to be committed: {verdict.acknowledged}"
    yield f"of replaced clients, by a service that had not heard: {verdict.revenants}"
    yield f"landed behind newer ones, when they had been given up: {verdict.late}"
    yield f"slowest recovery after a storm: {outcome.slowest_recovery_s:.1f} s"
    yield f"oldest submit lost with its client and the service: {verdict.worst_loss_s:.3f} s"
    yield f"commits of newer ones that left such a submit out: {verdict.worst_left_out} at most"
    yield f"promises broken: {len(verdict.violations)}; incidents: {len(outcome.incidents)}"


def main(arguments: Sequence[str]) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("minutes", type=float, help="how long the faults go on")
    parser.add_argument("--seed", type=int, help="which faults strike when; by chance without")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for the service: fence=true",
    )
    parser.add_argument("--excused", type=Path, help="file for what is counted and no violation")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(_SEEDS) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix=f"offsetmgr-chaos-{seed}-"))
    say(f"chaos for {given.minutes:g} minutes, seed {seed}; logs in {folder}")
    outcome = run(given.minutes, seed, folder, given.set)
    for line in summary(outcome):
        say(line)
    if given.excused is not None:
        given.excused.write_text(json.dumps([outcome.verdict.revenants, outcome.verdict.late]))
    if outcome.held:
        shutil.rmtree(folder)
        return 0
    for trouble in [*outcome.incidents, *map(str, outcome.verdict.violations)][:_SHOWN]:
        say(f"- {trouble}")
    say(f"the logs are in {folder}")
    again = shlex.join([f"{given.minutes:g}", f"--seed={seed}", *(f"--set={s}" for s in given.set)])
    say(f"the same weather again: python -m tests.chaos.run {again}")
    return 1


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
