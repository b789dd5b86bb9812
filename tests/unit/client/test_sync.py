"""Sync submits: over lost answers and restarts, and of more than one request carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.types import ManagerKey
from tests.unit.client.scripted import CUT

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

KEY = ManagerKey("g", "orders", 3)


@pytest.mark.parametrize("path", ["/v1/offsets", "/v1/flush"])
def test_lost_answers(service: ScriptedService, client: OffsetClient, path: str) -> None:
    """A sync submit whose answers were lost repeats its version, and gets its answer."""
    service.script(path, CUT, CUT, CUT)
    client.submit("g", {("orders", 3): 5}, sync=True, timeout=20)
    sent = [each["version"] for seen in service.of("/v1/offsets") for each in seen.body["offsets"]]
    assert len(set(sent)) == 1


def test_partitions_that_kafka_does_not_take_hold_up_no_other(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names them alone."""
    stuck = [ManagerKey("g", "orders", number) for number in range(2)]
    commit = service._commit
    monkeypatch.setattr(service, "_commit", lambda key: key in stuck or commit(key))
    with pytest.raises(OffsetTimeoutError, match=r"orders-[01], orders-[01] of group g within"):
        client.submit("g", {("orders", number): 5 for number in range(7)}, sync=True, timeout=2)
    assert len(service.kafka) == 5
