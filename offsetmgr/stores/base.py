"""The interface of offset stores, and the claims that keep a former owner from committing."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.codes import GENERATION_FENCED
from offsetmgr.errors import (
    OffsetCommitError,
    OffsetConflictError,
    OffsetsUncommittedError,
    error_info,
)
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_group,
    check_offsets,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.errors import OffsetManagerError


class OffsetStore(ABC):
    """Committed offsets of consumer groups; for any thread.

    Every method waits for its answer, some seconds at most.  A failure is raised: with group, topic
    and partition where it concerns one (OffsetCommitError, OffsetFetchError), as OffsetStoreError
    or KafkaRequestError where not.  Bad names and offsets raise InvalidValueError.
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

        One that is refused does not hold back the others; of several refusals
        OffsetsUncommittedError has all.
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class StoredOffset(NamedTuple):
    """A partition's row in a store."""

    offset: OffsetAndMetadata | None
    """None where the partition was claimed and nothing is committed."""
    generation: int
    """Number of claims so far."""


NO_ROW: Final = StoredOffset(None, 0)
"""The row of a partition that was never claimed or committed."""


class ClaimingStore(OffsetStore):
    """A store whose partitions can be claimed: commits under an older claim are refused."""

    def claims(self) -> Claims:
        """Return claims for this process; nothing is claimed yet."""
        return Claims(self)

    @abstractmethod
    def check(self) -> None:
        """Raise OffsetStoreError where the store cannot be used now."""

    @abstractmethod
    def raise_generations(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Claim partitions; return their rows after that."""

    @abstractmethod
    def try_commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        claims: Claims | None = None,
    ) -> dict[TopicPartition, OffsetCommitError]: ...


class Claims:
    """The partitions of groups that this process has claimed in a store; for any thread.

    A GroupConsumer takes it as its ``offsets``: it then claims what it is assigned, starts at the
    store's offsets, and commits its marks to the store.
    """

    def __init__(self, store: ClaimingStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._generations: dict[ManagerKey, int] = {}
        self._ends: dict[ManagerKey, int] = {}  # of the messages that were given to a transaction

    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Take partitions over from whoever has them; return the committed offset of each.

        From now on the store refuses the commits of their former owner.
        """
        wanted = check_topic_partitions(partitions)
        with self._lock:
            rows = self._store.raise_generations(check_group(group), wanted)
            for where, row in rows.items():
                self._generations[ManagerKey(group, *where)] = row.generation
                self._ends.pop(ManagerKey(group, *where), None)
        return {where: rows[where].offset for where in wanted}

    def claim_new(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Claim those of ``partitions`` that were never claimed here."""
        new = [each for each in partitions if ManagerKey(group, *each) not in self._generations]
        if new:
            self.claim(group, new)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets of claimed partitions, as ``OffsetStore.commit_offsets``.

        Partitions whose offsets go with transactions are left to those.  Raises OffsetCommitError
        with GENERATION_FENCED where another process has claimed since.
        """
        wanted = {
            where: offset
            for where, offset in check_offsets(offsets).items()
            if ManagerKey(group, *where) not in self._ends
        }
        raise_for(group, self._store.try_commit(group, wanted, self))

    def release(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Do nothing: a transaction may still be open, and the next owner claims for itself."""

    def refusals(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        found: Mapping[TopicPartition, StoredOffset],
    ) -> dict[TopicPartition, OffsetCommitError]:
        """Return which commits over the rows ``found`` are refused, and why."""
        refused = {}
        for where, offset in offsets.items():
            mine = self._generations.get(ManagerKey(group, *where))
            now = found.get(where, NO_ROW).generation
            if mine is None:
                text = "this process has not claimed the partition; see Claims.claim"
            elif mine != now:
                text = (
                    "another process has claimed the partition since: its generation is "
                    f"{now}, this one has {mine}; stop one of the two"
                )
            else:
                continue
            fenced = error_info(GENERATION_FENCED)
            refused[where] = OffsetCommitError(group, *where, offset.offset, fenced, text)
        return refused

    def check_order(self, group: str, where: TopicPartition, first: int, end: int, at: int) -> None:
        """Take in that a transaction is to store messages from ``first`` to before ``end``.

        Raises OffsetConflictError where messages before them were given to a transaction, and
        ``at``, the stored offset, says that it was rolled back.
        """
        key = ManagerKey(group, *where)
        with self._lock:
            before = self._ends.get(key, 0)
            self._ends[key] = max(before, end)
        if first >= before > at:
            raise OffsetConflictError(
                f"group {group}: {where} was read up to offset {before}, and is stored up to {at}: "
                "a transaction was rolled back and not tried again, or the offset was set back; "
                "restart the consumer to read from there"
            )


def raise_for(group: str, errors: Mapping[TopicPartition, OffsetManagerError]) -> None:
    """Raise the errors of some partitions, if there are any."""
    if errors:
        keyed = {ManagerKey(group, *where): error for where, error in errors.items()}
        raise OffsetsUncommittedError.one_of(keyed)
