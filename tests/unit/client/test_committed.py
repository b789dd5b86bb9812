"""Commits that are reported in whatever order they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.client.partitions import ClientPartition
from offsetmgr.types import ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

KEY = ManagerKey("g", "orders", 3)


def test_a_late_event_does_not_bring_an_older_offset_back(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A commit that a flush has reported is not followed by the one before it."""
    manager = client.spawn(*KEY)
    stream, errors = manager.committed_offsets(), manager.errors()
    service.wait_for_readers()
    for offset in (5, 8):
        manager.submit(offset)
        client.flush()
    assert stream.get(timeout=10) == OffsetAndMetadata(8)
    service.emit("committed", {**KEY._asdict(), **OffsetAndMetadata(5)._asdict()})
    error = {"code": "NOT_COORDINATOR", "message": "m", "kafka_code": 16, "offset": 9}
    service.emit("failed", {**KEY._asdict(), "error": error}, 9)
    errors.get(timeout=10)  # both have arrived
    with pytest.raises(TimeoutError):
        stream.get(timeout=0)


ORDERS: dict[str, tuple[list[int], int | None, list[tuple[int, int, bool]], int]] = {
    "events in order, while newer offsets wait": (
        [5, 8, 12],
        None,
        [(5, 0, True), (8, 0, True), (5, 0, False), (8, 0, True)],
        8,
    ),
    "an answer that an event has overtaken": (
        [5, 8, 12],
        None,
        [(8, 0, True), (5, 1, False)],
        8,
    ),
    "events of before a rewind that is committed": (
        [5, 9, 6],
        6,
        [(6, 3, True), (9, 0, False), (5, 0, False)],
        6,
    ),
    "a rewind that is not committed yet": (
        [9, 4, 6],
        4,
        [(9, 1, True), (4, 0, True), (9, 0, True), (6, 3, True)],
        6,
    ),
    "the newest, moved to the end of its log": ([5, 9], None, [(5, 1, True), (3, 2, True)], 3),
    "offsets of an earlier client": ([], None, [(5, 0, True), (3, 0, True)], 3),
}
"""Submitted offsets, of versions 1, 2 and so on; one of them a rewind; commits with their versions
(0 for an event), and whether each is news; the last one that is."""


@pytest.mark.parametrize("case", ORDERS)
def test_what_is_news(case: str) -> None:
    """A commit is reported unless it was made before what is known to be committed."""
    offsets, rewind_to, commits, last = ORDERS[case]
    partition = ClientPartition(-1)
    for version, offset in enumerate(offsets, start=1):
        partition.submit(OffsetAndMetadata(offset), version, rewind=offset == rewind_to)
    news = [partition.commit(OffsetAndMetadata(offset), version) for offset, version, _ in commits]
    assert news == [is_news for *_, is_news in commits]
    assert partition.committed == OffsetAndMetadata(last)
