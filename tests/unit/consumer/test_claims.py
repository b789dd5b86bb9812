"""Claims in the background, of a store that answers when the test lets it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from offsetmgr.consumer.claims import Claims
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsetmgr.errors import OffsetManagerError

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
WAIT_S = 60.0


class SlowStore(MemoryOffsetStore):
    """A user's store, whose claims wait; it notes claims and releases in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, set[TopicPartition]]] = []
        self.answers = threading.Event()
        self.released = threading.Event()

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        assert self.answers.wait(WAIT_S)
        self.steps.append(("claim", set(partitions)))
        return self.fetch(group, partitions)

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        assert group == "etl"
        self.steps.append(("release", set(partitions)))
        self.released.set()


def claims_of(store: SlowStore) -> Claims:
    def fail(error: OffsetManagerError, what: str) -> None:
        raise AssertionError(what) from error

    return Claims(store, "etl", fail)


def test_a_partition_dropped_during_its_claim_is_released_before_it_is_claimed_again() -> None:
    """Another process may have had it meanwhile; the others of the claim are kept."""
    store = SlowStore()
    claims = claims_of(store)
    claims.add([ZERO, ONE])
    assert claims.take() == {}
    claims.drop([ZERO])
    claims.add([ZERO])
    store.answers.set()
    assert claims.take(WAIT_S) == {ONE: None}
    assert claims.take(WAIT_S) == {ZERO: None}
    claims.drop([ZERO, ONE])  # taken: theirs is another way
    expected = [("claim", {ZERO, ONE}), ("release", {ZERO}), ("claim", {ZERO})]
    assert store.steps == expected


def test_a_claim_that_ends_after_the_consumer_is_released() -> None:
    store = SlowStore()
    claims = claims_of(store)
    claims.add([ZERO])
    claims.take()
    claims.close(0.0)
    store.answers.set()
    assert store.released.wait(WAIT_S)
    assert store.steps == [("claim", {ZERO}), ("release", {ZERO})]
