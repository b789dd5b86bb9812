"""Sync submits of more partitions than one request carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.types import ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

STUCK = [ManagerKey("g", "orders", number) for number in range(2)]
OFFSETS = {("orders", number): 5 for number in range(7)}


@pytest.fixture
def stuck(service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests carry two partitions, and Kafka does not take the first two."""
    client._core.partitions.limit = 2
    commit = service._commit
    monkeypatch.setattr(service, "_commit", lambda key: key in STUCK or commit(key))


@pytest.mark.usefixtures("stuck")
def test_what_is_not_committed_holds_up_no_other(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Whatever the first request ends with, the next ones ask for the others."""
    with pytest.raises(OffsetTimeoutError, match=r"orders-[01], orders-[01] of group g within"):
        client.submit("g", OFFSETS, sync=True, timeout=2)
    held = [client._core.partitions.get(ManagerKey("g", *where)) for where in OFFSETS]
    known = [each.committed for each in held if each is not None]
    assert known == [None, None, *[OffsetAndMetadata(5)] * 5]


@pytest.mark.usefixtures("stuck")
def test_each_request_has_its_share_of_the_time(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Kafka is not waited for so long that no time is left for the partitions to come."""
    with pytest.raises(OffsetTimeoutError):
        client.submit("g", OFFSETS, sync=True, timeout=2)
    granted = [seen.body["timeout_s"] for seen in service.of("/v1/offsets") if "wait" in seen.body]
    assert 0 < granted[0] <= 2 / 4
    assert max(granted) > 2 / 4
