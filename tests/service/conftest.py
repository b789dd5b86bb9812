"""A running service, and connections to it as a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.support import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture
def service() -> Iterator[Running]:
    """The real application on a real server, around a coordinator in memory."""
    with running() as here:
        yield here


@pytest.fixture
def etl(service: Running) -> Iterator[httpx.Client]:
    """A connection as the client ``etl``."""
    with service.http("etl") as client:
        yield client
