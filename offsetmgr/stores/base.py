"""The interface of offset stores, and a store in memory for tests."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetsUncommittedError
from offsetmgr.types import (
    ManagerKey,
    TopicPartition,
    check_group,
    check_offsets,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

    from offsetmgr.errors import OffsetCommitError, OffsetManagerError
    from offsetmgr.types import OffsetAndMetadata


class OffsetStore(ABC):
    """Committed offsets of consumer groups; any thread may use it.

    Every method waits for its result, at most some seconds.  Failures of a partition raise
    OffsetCommitError or OffsetFetchError with group, topic and partition; other failures raise
    OffsetStoreError or KafkaRequestError.  Bad names and offsets raise InvalidValueError.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the store, without its password."""

    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int | OffsetAndMetadata
    ) -> None:
        """Commit ``offset``, the next one to read; it may be lower than the last one."""
        self.commit_offsets(group, {(topic, partition): offset})

    def fetch_offset(self, group: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """Return the committed offset; None where nothing is committed."""
        where = TopicPartition(topic, partition)
        return self.fetch_offsets(group, [where])[where]

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets of several partitions.

        A refused offset does not stop the others.  OffsetsUncommittedError has all refusals
        if there are several.
        """
        raise_for(group, self.try_commit(check_group(group), check_offsets(offsets)))

    def fetch_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of ``partitions``; by default all that are committed."""
        asked = None if partitions is None else check_topic_partitions(partitions)
        return self._fetch(check_group(group), asked)

    @abstractmethod
    def groups(self) -> list[str]:
        """Return the names of all groups with committed offsets, sorted."""

    @abstractmethod
    def close(self) -> None:
        """End the connections; twice is harmless."""

    @abstractmethod
    def try_commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetCommitError]:
        """Commit checked offsets; return why some of them were refused."""

    @abstractmethod
    def _fetch(
        self, group: str, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def raise_for(group: str, errors: Mapping[TopicPartition, OffsetManagerError]) -> None:
    """Raise the errors of some partitions, if there are any."""
    if errors:
        keyed = {ManagerKey(group, *where): error for where, error in errors.items()}
        raise OffsetsUncommittedError.one_of(keyed)


class MemoryOffsetStore(OffsetStore):
    """Keeps offsets as long as the process lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)

    @property
    def url(self) -> str:
        return "memory:"

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(group for group, offsets in self._groups.items() if offsets)

    def close(self) -> None:
        pass

    def try_commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetCommitError]:
        with self._lock:
            self._groups[group].update(offsets)
        return {}

    def _fetch(
        self, group: str, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        with self._lock:
            known = self._groups[group].copy()
        return {
            where: known.get(where)
            for where in (sorted(known) if partitions is None else partitions)
        }
