"""A scripted service for the client, and clients that are closed in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from tests.unit.client.scripted import ScriptedService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    """A service over real HTTP that misbehaves as a test scripts it."""
    scripted = ScriptedService()
    yield scripted
    scripted.down()


@pytest.fixture
def make_client(service: ScriptedService) -> Iterator[Callable[[str], OffsetClient]]:
    """Makes clients of the service by name; they are closed in the end."""
    made: list[OffsetClient] = []

    def make(name: str) -> OffsetClient:
        made.append(OffsetClient(service.url, name))
        return made[-1]

    yield make
    for client in made:
        client.close(timeout=1)


@pytest.fixture
def client(make_client: Callable[[str], OffsetClient]) -> OffsetClient:
    return make_client("etl")
