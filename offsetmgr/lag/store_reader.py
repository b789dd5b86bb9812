"""The groups of an offset store, to be measured as those of a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from offsetmgr.codes import STORE_FAILED, error_info
from offsetmgr.errors import OffsetManagerError, OffsetStoreError
from offsetmgr.kafka.cluster import ClusterReader, GroupListing, GroupListings
from offsetmgr.kafka.errors import tried
from offsetmgr.stores import open_store
from offsetmgr.stores.base import checked_answer
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.kafka.cluster import GroupDescription
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_T = TypeVar("_T")


def open_cluster(
    config: Mapping[str, object], store: str | None, timeout_s: float
) -> ClusterReader:
    """Open the reader of a cluster, and of the store that keeps its groups, if there is one.

    ``store`` is its URL.  Raises InvalidValueError where it is wrong, or librdkafka does not take a
    setting.
    """
    if store is None:
        return ClusterReader(config, timeout_s=timeout_s)
    return StoreReader(store, config, timeout_s)


def listings_of(read: Callable[[], GroupListings]) -> GroupListings:
    """Return the groups that ``read`` lists; where it fails as a whole, its error alone."""
    listings = tried(read)
    return GroupListings([], (listings,)) if isinstance(listings, OffsetManagerError) else listings


class StoreReader(ClusterReader):
    """Reads a cluster whose groups are in a store; members are those that Kafka knows.

    Without any the state of a group is Empty, or Dead if nothing is committed.  A store that hangs,
    as on a locked table, is waited for as long as Kafka is.
    """

    def __init__(self, store: str, config: Mapping[str, object], timeout_s: float) -> None:
        self._store = open_store(store)
        super().__init__(config, timeout_s=timeout_s)

    def groups(self) -> GroupListings:
        listings = listings_of(super().groups)  # the groups are known all the same
        in_kafka = {each.name: each for each in listings.groups}
        names = self._in_time(self._store.groups)
        state = "Unknown" if listings.errors else "Empty"
        stored = (GroupListing(name, state, "store") for name in names)
        return GroupListings([in_kafka.get(each.name, each) for each in stored], listings.errors)

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        known = tried(self._in_time, self._store.groups)
        if isinstance(known, OffsetManagerError):
            return dict.fromkeys(groups, known)
        found = super().describe(groups)
        for group, each in found.items():
            if not isinstance(each, OffsetManagerError):
                empty = each.state == "Dead" and group in known
                found[group] = each._replace(
                    coordinator=self._store.url, state="Empty" if empty else each.state
                )
        return found

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        def fetch(group: str) -> dict[TopicPartition, OffsetAndMetadata]:
            found = self._store.fetch(group, None)
            offsets = checked_answer(found, found)  # an odd name is an error of its own log
            return {where: each for where, each in offsets.items() if each is not None}

        names = list(groups)
        answer = tried(self._in_time, lambda: {group: tried(fetch, group) for group in names})
        return dict.fromkeys(names, answer) if isinstance(answer, OffsetManagerError) else answer

    def _in_time(self, ask: Callable[[], _T]) -> _T:
        """Return the answer of ``ask``, or raise what it raises.

        Raises OffsetStoreError if there is none within the reader's time-out.
        """
        question = Question(ask)
        if not question.wait(self.timeout_s):
            text = f"no answer from the database within {self.timeout_s:g} s"
            raise OffsetStoreError("read of the store", error_info(STORE_FAILED), text)
        return question.result()

    def close(self) -> None:
        self._store.close()
        super().close()
