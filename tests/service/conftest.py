"""A running service, connections to it as a client, and the two ways to offsets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from actors import ActorSystem
from offsetmgr import OffsetClient, Offsets
from offsetmgr.coordinator.memory import MemoryCoordinator
from tests.certificates import Authority
from tests.service.identities import identities
from tests.service.support import Running, local_over, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx


@pytest.fixture
def service() -> Iterator[Running]:
    """The real application on a real server, around a coordinator in memory."""
    with running() as here:
        yield here


@pytest.fixture
def etl(service: Running) -> Iterator[httpx.Client]:
    with service.http("etl") as client:
        yield client


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Running]:
    with running(**identities(tmp_path)) as service:
        yield service


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def in_process() -> Iterator[tuple[Offsets, MemoryCoordinator]]:
    with ActorSystem(name="test") as system:
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        with local_over(coordinator) as offsets:
            yield offsets, coordinator
            coordinator.resume()


@contextmanager
def through_the_service() -> Iterator[tuple[Offsets, MemoryCoordinator]]:
    with running() as service, OffsetClient(service.address, "etl") as client:
        yield client, service.coordinator
        service.coordinator.resume()


@pytest.fixture(params=[in_process, through_the_service], ids=lambda way: way.__name__)
def each_way(request: pytest.FixtureRequest) -> Iterator[tuple[Offsets, MemoryCoordinator]]:
    with request.param() as made:
        yield made


@pytest.fixture
def offsets(each_way: tuple[Offsets, MemoryCoordinator]) -> Offsets:
    return each_way[0]


@pytest.fixture
def coordinator(each_way: tuple[Offsets, MemoryCoordinator]) -> MemoryCoordinator:
    return each_way[1]
