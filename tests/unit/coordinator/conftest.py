"""What the tests of the coordinator's lanes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator.road import Road

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def road() -> Iterator[Road]:
    """An empty lane."""
    road = Road()
    yield road
    road.close()
