"""Many seeds through the whole product; each is a run of its own that can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.sim.run import main

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = 260
GUARD_S: Final = 600
"""A guard against a run that hangs, on a machine that has much else to do."""

WEATHER: Final = (
    "slow", "beyond the deadline", "refuse all", "refuse some", "deny", "lose", "half apply",
    "land late",
)  # fmt: skip


def simulate(seeds: str, *options: str, hash_seed: str = "random") -> str:
    """Return the output of ``make sim`` for ``seeds``; fail with it if an invariant was broken."""
    command = [sys.executable, "-m", "tests.sim.run", seeds, *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told() -> str:
    """The report on the seeds that every test run includes."""
    return simulate(f"0:{SEEDS}", "--jobs", "0")


@pytest.mark.timeout(GUARD_S)
@pytest.mark.fault(1, 3, 4, 16, 17, 18, 33)
def test_no_schedule_and_no_fault_breaks_an_invariant(told: str) -> None:
    """Whatever fails, crashes, lands late or comes in between: see the judges for what holds."""
    assert f"seeds 0:{SEEDS}: all held" in told


@pytest.mark.timeout(GUARD_S)
def test_every_fault_is_met(told: str) -> None:
    """A fault that no longer happens would prove nothing: each was met, and often."""
    met = {what.strip(): int(count) for count, what in map(_split, told.splitlines()[:-1])}
    wanted = {f"{operation}: {kind}" for operation in ("commit", "fetch") for kind in WEATHER}
    wanted |= {"effect: late", "effect: half", "core: forget", "core: commit_externally"}
    wanted |= {f"request: {fate}" for fate in ("lost", "cut", "slow", "delayed", "doubled")}
    wanted |= {"request: version seen before", "request: of a fenced incarnation"}
    crashed = ("service", "driver")
    wanted |= {f"service: crash_{what}" for what in crashed} | {"service: drain_service"}
    wanted |= {"service: cut", "service: jump_wall", "service: replace_driver"}
    wanted |= {"client: sync submit acknowledged", "client: told of a commit"}
    wanted |= {"preempted", "preempted: by a user"}
    wanted |= {"log: refused an offset of the former log", "log: guessed wrong"}
    rare = {what: met.get(what, 0) for what in wanted if met.get(what, 0) < 5}
    assert not rare


def _split(line: str) -> tuple[str, str]:
    count, _, what = line.strip().partition(" ")
    return count, what


# In seed 9239 a service does not know some partitions that it is asked to flush or to stop.
@pytest.mark.parametrize("seeds", ["20:30", "9239:9240"])
def test_a_seed_replays_to_the_last_step_in_any_process(seeds: str) -> None:
    """The same seeds give the same runs, so that a failure can be looked at again anywhere."""
    fingerprints = {
        simulate(seeds, hash_seed=hash_seed).rpartition(" ")[2] for hash_seed in ("1", "2")
    }
    assert len(fingerprints) == 1


def test_the_command_tells_how_many_seeds_held(capsys: pytest.CaptureFixture[str]) -> None:
    """``make sim`` ends with 0 and a summary when nothing is found."""
    assert main(range(3, 5)) == 0
    assert "seeds 3:5: all held" in capsys.readouterr().out
