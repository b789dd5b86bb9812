"""Upgrades of a shared service under load, there and back; ``make chaos`` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.service import version
from tests.chaos.upgrade import EARLIER, UPGRADES, upgrade

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka


@pytest.mark.chaos
@pytest.mark.parametrize("fence", ["false", "true"])
def test_an_upgrade_under_load_loses_and_repeats_no_commit(
    kafka: DevKafka, tmp_path: Path, group: str, fence: str
) -> None:
    """No offset goes back; clients of both versions go on through two upgrades and downgrades."""
    done = upgrade(kafka, tmp_path, group, EARLIER, [f"fence={fence}"])
    assert list(done.troubles()) == []
    earlier = f"{version()}+{EARLIER}"
    assert done.versions == [earlier, version()] * (UPGRADES // 2) + [earlier]
    assert done.outcome.verdict.acknowledged
