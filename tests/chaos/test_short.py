"""A short chaos run: one broker, kills, recreated topics, odd things; ``make chaos`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.plan import Fault, Track
from tests.chaos.run import ChaosRun, Setting

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka

KILLS = Track(
    (Fault.SERVICE_KILL, Fault.CLIENT_KILL, Fault.CLIENT_ZOMBIE),
    pause_s=0.5,
    lasting_s=(0.1, 0.5),
    targets=2,
)


@pytest.mark.chaos
@pytest.mark.fault(5, 36)
def test_nothing_acknowledged_is_lost_and_nothing_goes_back_under_kills(
    kafka: DevKafka, tmp_path: Path, group: str
) -> None:
    """Every promise of the checker holds, the ordered end included."""
    setting = Setting(
        kafka=kafka,
        folder=tmp_path,
        seed=5,
        topic=f"topic-{group}",
        groups=[f"{group}-a", f"{group}-b"],
        clients=2,
        recreate_s=3.0,
        odd=True,
    )
    with ChaosRun(setting) as chaos:
        chaos.play(0, 4.0, [KILLS])
        outcome = chaos.judge()
    assert outcome.nemesis.incidents == []
    assert outcome.verdict.violations == []
    assert outcome.nemesis.targets.service.life > 1
    assert outcome.verdict.acknowledged
    assert outcome.verdict.looks
    assert min(map(len, outcome.logs.values())) > 1
