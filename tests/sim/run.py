"""Replay seeds: ``python -m tests.sim.run 0:2000``; ends at the first that fails.

On several processes with ``--jobs`` (0: as many as there are cores).  The summary ends with a
fingerprint of every step of every run, which is the same wherever the same seeds run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.sim.preempted import PreemptedWorld
from tests.sim.recreated import RecreatedWorld
from tests.sim.service_world import ServiceWorld
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN_STEPS = 40

BATCH: Final = 20
"""Seeds that a process takes at a time."""

PROGRESS_S: Final = 10.0

_QUIET: Final = {
    "actors": logging.CRITICAL,
    "offsetmgr": logging.CRITICAL,
    "offsetmgr.workers": logging.ERROR,  # a failure of the client's own thread ends the seed
}
"""Levels of loggers, as most crashes are meant."""

SERVICE_EVERY: Final = 5
"""One seed of so many runs clients and service as well; such a run takes four times as long."""

SERVICE_SEEDS: Final = range(SERVICE_EVERY - 1, 10_000_000, SERVICE_EVERY)

PREEMPTED_SEEDS: Final = range(3, 10_000_000, 10)
"""Seeds of runs in which actors are preempted in the middle of their turns."""

RECREATED_SEEDS: Final = range(1, 10_000_000, 5)
"""Seeds of runs in which topics are deleted and recreated."""


class SeedError(AssertionError):
    """A seed found a violation; the message says which, and how to replay it."""


class Report(NamedTuple):
    """The results of some seeds."""

    seeds: int = 0
    steps: int = 0
    met: Counter[str] = Counter()  # noqa: RUF012 -- never changed, only added to
    """Counts of the situations that the simulation is meant to reach."""
    fingerprint: int = 0
    failure: str = ""
    """Of the first seed that failed."""

    def plus(self, other: Report) -> Report:
        return Report(
            self.seeds + other.seeds,
            self.steps + other.steps,
            self.met + other.met,
            self.fingerprint ^ other.fingerprint,
            self.failure or other.failure,
        )


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep intended crashes out of the logs."""
    before = {name: logging.getLogger(name).level for name in _QUIET}
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def world_of(seed: int) -> World | ServiceWorld:
    if seed in PREEMPTED_SEEDS:
        return PreemptedWorld(seed)
    if seed in RECREATED_SEEDS:
        return RecreatedWorld(seed)
    return ServiceWorld(seed) if seed in SERVICE_SEEDS else World(seed)


def run_seed(seed: int) -> Report:
    """Live through one seed.

    Raises SeedError for the first violation.
    """
    world = world_of(seed)
    try:
        world.run()
    except Exception as error:
        steps = "\n".join(
            f"  {step.step:5} {step.path:24} {step.message_type}"
            for step in list(world.system.trace)[-_SHOWN_STEPS:]
        )
        raise SeedError(
            f"seed {seed}: {error!r}\nreplay it with: make sim SEEDS={seed}:{seed + 1}\n"
            f"the last steps:\n{steps}"
        ) from error
    trace = "\n".join(f"{step.path} {step.message_type}" for step in world.system.trace)
    digest = hashlib.sha256(f"{seed}\n{trace}".encode()).digest()[:8]
    return Report(1, len(world.system.trace), world.judge.met, int.from_bytes(digest, "big"))


def run_seeds(seeds: range) -> Report:
    report = Report()
    with silence():
        for seed in seeds:
            try:
                report = report.plus(run_seed(seed))
            except SeedError as error:
                return report._replace(failure=str(error))
    return report


def _reports(seeds: range, jobs: int) -> Iterator[Report]:
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    if jobs == 1:
        yield from map(run_seeds, batches)
        return
    # Not forked: a fork would copy whatever threads and locks there are.
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seeds, batches)


def main(seeds: range, jobs: int = 1) -> int:
    """Run ``seeds`` on ``jobs`` processes, and tell how it goes; the exit status."""
    started_at = told_at = time.monotonic()
    report = Report()
    for each in _reports(seeds, jobs or os.cpu_count() or 1):
        report = report.plus(each)
        if report.failure:
            sys.stdout.write(f"{report.failure}\n")
            return 1
        now = time.monotonic()
        if now - told_at >= PROGRESS_S:
            told_at = now
            rate = report.seeds / (now - started_at)
            sys.stderr.write(f"{report.seeds} of {len(seeds)} seeds held, {rate:.0f} seeds/s\n")
    took_s = max(time.monotonic() - started_at, 1e-9)
    sys.stdout.write("".join(f"{count:9} {what}\n" for what, count in sorted(report.met.items())))
    sys.stdout.write(
        f"seeds {seeds.start}:{seeds.stop}: all held; {report.steps} steps in {took_s:.1f} s, "
        f"{report.seeds / took_s:.0f} seeds/s; fingerprint {report.fingerprint:016x}\n"
    )
    return 0


def _seeds(text: str) -> range:
    first, end = (int(part) for part in text.split(":"))
    return range(first, end)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run seeds of the simulation.")
    parser.add_argument("seeds", type=_seeds, help="first:end, the end exclusive")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0: one per core")
    arguments = parser.parse_args()
    sys.exit(main(arguments.seeds, arguments.jobs))
