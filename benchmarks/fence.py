"""What the fence costs: commits as a group's member against commits of nobody, on one broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Contestant, in_turn, report
from offsetmgr.coordinator.fence.coordinator import with_fence
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetmgr.coordinator.base import Coordinator

TIMEOUT_S = 60.0
PARTITION = TopicPartition("bench", 0)


def _commit(over: Coordinator, groups: Sequence[str], at: int) -> None:
    """Commit to all groups at once."""
    offsets = {PARTITION: OffsetAndMetadata(at)}
    for answer in [over.commit(group, offsets, TIMEOUT_S) for group in groups]:
        failures = answer.get(timeout=TIMEOUT_S).failures
        if failures:
            raise RuntimeError(f"not committed: {failures[PARTITION]}")


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def fence(bootstrap_servers: str, *, groups: int, commits: int, rounds: int) -> None:
    """One group; then ``groups`` groups, which are known to the coordinator, and new ones."""
    config = {"bootstrap.servers": bootstrap_servers}
    plain = KafkaCoordinator(config)
    _commit(plain, [f"fence-warm-{number}" for number in range(100)], 1)
    before = _threads()
    fenced = with_fence(config, plain)
    sides: tuple[tuple[str, Coordinator], ...] = (("plain", plain), ("fenced", fenced))

    def one(kind: str, over: Coordinator) -> Contestant:
        def run(number: int) -> None:
            for at in range(commits):
                _commit(over, [f"fence-{kind}"], number * commits + at)

        return Contestant(kind, run)

    def many(kind: str, over: Coordinator, *, new: bool) -> Contestant:
        def run(number: int) -> None:
            prefix = f"fence-{kind}-{number if new else 'old'}"
            _commit(over, [f"{prefix}-{each}" for each in range(groups)], number)

        return Contestant(f"{kind}, new groups" if new else kind, run)

    results = in_turn([one(*side) for side in sides], rounds=rounds)
    report(f"{commits} commits of one group, one by one", results, items=commits, unit="commits")
    contestants = [many(*side, new=new) for new in (False, True) for side in sides]
    results = in_turn(contestants, rounds=rounds)
    report(f"A commit of each of {groups:,} groups, at once", results, items=groups, unit="commits")
    held = fenced.fence.held
    print(f"The fence keeps {held:,} groups with {_threads() - before} threads more.")
    fenced.close(TIMEOUT_S)
