"""A client's reads, and their ends, against a service over real HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import (
    ServiceUnavailableError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import Fault

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

KEY = ManagerKey("g", "orders", 3)


def test_topics(client: OffsetClient) -> None:
    """Ranges of all topics, however many requests that takes."""
    names = [f"t{number}" for number in range(120)]
    found = client.topics([*names, "t0"])
    assert list(found) == names
    assert found["t0"] == {0: (0, 10), 1: (1, 11)}


def test_reads_wait_for_a_service_that_starts(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A read asks again until its timeout: the service may just be starting."""
    service.script("/v1/offsets", Fault(status=503, body=b"{}"), Fault(act=False, cut=True))
    assert client.committed("g", timeout=20) == {}
    service.down()
    with pytest.raises(ServiceUnavailableError, match="cannot be reached: connection refused"):
        client.committed("g", timeout=0.2)


def test_close_with_the_service_away(
    service: ScriptedService, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A close ends by its deadline, and says what was left and why."""
    service.down()
    client.submit("g", {("orders", 3): 5})
    result = client.close(timeout=1)
    assert result.uncommitted[KEY].offset == OffsetAndMetadata(5)
    assert "is closed; not committed: g/orders/3 at 5; reason: the service" in caplog.text


def test_a_client_that_was_never_used_closes_in_silence(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Without managers there is nothing to ask the service."""
    client.close()
    assert not service.requests
