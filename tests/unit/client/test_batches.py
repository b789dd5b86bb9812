"""Requests that are too large for the service: nothing that it would take is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import wire
from offsetmgr.client.partitions import Partitions
from offsetmgr.errors import ServiceError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import error_body

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService, Seen

OFFSETS = {("orders", number): 5 for number in range(4)}


@pytest.fixture
def takes_one(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service takes one offset at a time, and none with metadata."""
    handle = service.handle

    def strictly(seen: Seen) -> tuple[int, bytes]:
        offsets = seen.body.get("offsets", [])
        if len(offsets) > 1 or any("metadata" in each for each in offsets):
            return 413, error_body("invalid_value", "is too large")
        return handle(seen)

    monkeypatch.setattr(service, "handle", strictly)


@pytest.mark.usefixtures("takes_one")
@pytest.mark.parametrize("sync", [False, True], ids=["flush", "sync"])
def test_a_request_too_large_is_sent_in_pieces(
    service: ScriptedService,
    client: OffsetClient,
    sync: bool,  # noqa: FBT001
) -> None:
    """Offsets whose request is too large are sent in smaller ones, and so are those to come."""
    client.submit("g", OFFSETS, sync=sync)
    assert not client.flush().uncommitted
    assert len(service.kafka) == len(OFFSETS)
    before = len(service.of("/v1/offsets"))
    client.submit("h", OFFSETS)
    assert len(client.flush(group="h").committed) == len(OFFSETS)
    sizes = [len(seen.body["offsets"]) for seen in service.of("/v1/offsets")]
    assert max(sizes[:before]) == len(OFFSETS)
    assert set(sizes[before:]) == {1}


@pytest.mark.usefixtures("takes_one")
def test_an_offset_too_large_by_itself_is_refused(client: OffsetClient) -> None:
    """What no smaller request can carry is refused alone, with what the service says."""
    client.submit("g", {**OFFSETS, ("orders", 9): OffsetAndMetadata(5, "m" * 4_000)})
    committed, uncommitted = client.flush(timeout=600)
    assert len(committed) == len(OFFSETS)
    (left,) = uncommitted.values()
    assert isinstance(left.error, ServiceError)
    assert left.error.status == 413


def test_text_is_not_escaped() -> None:
    """Metadata in any script takes the bytes of UTF-8, not the six of an escape each."""
    partitions = Partitions()
    partitions.submit(ManagerKey("größe", "orders", 3), OffsetAndMetadata(5, "é" * 4_000))
    batch = partitions.take(0.0)
    assert batch is not None
    assert len(wire.batch_body(batch)) < 8_200
