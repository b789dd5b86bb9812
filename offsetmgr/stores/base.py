"""The interface of offset stores, a store in memory for tests, and one of managers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.codes import STORE_FAILED
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    CoordinatorError,
    InvalidValueError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetStoreError,
    OffsetsUncommittedError,
    error_info,
)
from offsetmgr.text import error_text, visible
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_group,
    check_leader_epoch,
    check_mapping,
    check_offset,
    check_offsets,
    check_topic,
    check_topic_partition,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import PartitionRange

    _TopicIds: TypeAlias = Callable[[Collection[str]], Mapping[str, str]]
    _LogRanges: TypeAlias = Callable[
        [Iterable[TopicPartition]], Mapping[TopicPartition, PartitionRange | OffsetManagerError]
    ]

_REQUEST_S: Final = 10.0  # time that managers have to answer
_SPLIT_S: Final = 1.0  # time in which a failed request is tried again in halves

_offers_lock = threading.RLock()


class OffsetStore(ABC):
    """The committed offsets of consumer groups: in Kafka, a database, or a store of your own.

    A subclass implements ``fetch`` and ``commit``; ``claim`` and ``release`` too if only one
    process at a time may commit a partition.  Groups, partitions and offsets are checked before.
    Any thread may call any method; each waits for its result, at most some seconds.  What a method
    gets is its own to change.

    Failures of a partition raise OffsetCommitError or OffsetFetchError with group, topic and
    partition; others OffsetStoreError or KafkaRequestError.  Consumers and managers take any other
    exception for a failure that may pass.  Bad names and offsets raise InvalidValueError.
    """

    topic_ids: _TopicIds | None = None
    """Asks Kafka for the ids of topics, which change when a topic is recreated; None without a
    Kafka.  Consumers and managers set it, unless it is set."""

    @property
    def url(self) -> str:
        """Address of the store, without its password."""
        return repr(self)

    @abstractmethod
    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of ``partitions``, of the whole group if None.

        A partition without one is None, or left out.
        """

    @abstractmethod
    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit ``offsets``, the next ones to read; they may be lower than what is committed.

        A refused offset does not stop the others.  OffsetsUncommittedError has all refusals if
        there are several.
        """

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Take ``partitions`` over from their former owner; return their committed offsets.

        Consumers claim what they are assigned, and deliver no message before.  If a claim raises,
        none of its partitions is claimed.
        """
        return self.fetch(group, partitions)

    def release(  # noqa: B027 -- the default
        self, group: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Give claimed partitions back."""

    def close(self) -> None:  # noqa: B027 -- the default
        """End the connections; twice is harmless."""

    def groups(self) -> list[str]:
        """Return the names of all groups with committed offsets, sorted."""
        hint = "name the groups, or implement OffsetStore.groups"
        raise InvalidValueError("store", self.url, "does not list its groups", hint)

    def check(self) -> None:
        """Raise OffsetManagerError if the store cannot be used now."""
        self.fetch_offsets("offsetmgr")

    # With checks of all arguments

    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int | OffsetAndMetadata
    ) -> None:
        """Commit the offset of one partition, as ``commit``."""
        self.commit_offsets(group, {check_topic_partition((topic, partition)): offset})

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets of several partitions, as ``commit``."""
        self.commit(check_group(group), check_offsets(offsets))

    def fetch_offset(self, group: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """Return the committed offset; None where nothing is committed."""
        topic_partition = check_topic_partition((topic, partition))
        return self.fetch_offsets(group, [topic_partition])[topic_partition]

    def fetch_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of ``partitions``; by default all that are committed."""
        asked = None if partitions is None else check_topic_partitions(partitions)
        return checked_answer(self.fetch(check_group(group), asked and [*asked]), asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_answer(
    answer: object, asked: Collection[TopicPartition] | None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the answer of ``fetch`` or ``claim``, with each partition that was asked for.

    Raises InvalidValueError if it is not a mapping with offsets.
    """
    found = check_mapping(answer, "answer of the store")
    if asked is None:
        return {
            check_topic_partition(key): _checked(value, key)
            for key, value in found.items()
            if value is not None
        }
    return {each: _checked(found.get(each), each) for each in asked}


def _checked(value: object, topic_partition: object) -> OffsetAndMetadata | None:
    if value is None:
        return None
    position = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)  # type: ignore[arg-type]
    offset, metadata, epoch = position
    text: object = metadata or ""
    if not isinstance(text, str):
        hint = "give the metadata as a string"
        raise InvalidValueError(f"metadata of {topic_partition}", metadata, "is not text", hint)
    return OffsetAndMetadata(
        check_offset(offset, f"offset of {topic_partition}"),
        text,
        check_leader_epoch(None if epoch == -1 else epoch, f"leader epoch of {topic_partition}"),
    )


class _Offers(list["tuple[_TopicIds, _LogRanges | None]"]):
    """Asks the Kafka that was offered last.

    Not about names that no topic can have, which others may have written into the database.
    """

    def __call__(self, topics: Collection[str]) -> Mapping[str, str]:
        legal = []
        for topic in topics:
            with suppress(InvalidValueError):
                legal.append(check_topic(topic))
        return self[-1][0](legal)

    @property
    def log_ranges(self) -> _LogRanges | None:
        return self[-1][1]


def offer_topic_ids(
    store: OffsetStore, ask: _TopicIds, log_ranges: _LogRanges | None = None
) -> Callable[[], None]:
    """Let a store, which several may share, ask for topic ids, and for the ends of logs.

    Return what ends that.
    """
    offer = ask, log_ranges
    with _offers_lock:
        if store.topic_ids is None:
            with suppress(AttributeError):  # a user's store may be frozen
                store.topic_ids = _Offers()
        offers = store.topic_ids
        if not isinstance(offers, _Offers):
            return lambda: None
        offers.append(offer)

    def end() -> None:
        with _offers_lock:
            if len(offers) > 1 and offer in offers:
                offers.remove(offer)
            elif offers == [offer] and store.topic_ids is offers:
                store.topic_ids = None  # whoever is asking already gets an answer

    return end


def as_store_error(what: str, error: BaseException) -> OffsetManagerError:
    """Return whatever a store has raised as one of our errors."""
    if isinstance(error, OffsetManagerError):
        return error
    return OffsetStoreError(what, error_info(STORE_FAILED), visible(error_text(error, 100)))


def raise_for(group: str, errors: Mapping[TopicPartition, OffsetManagerError]) -> None:
    """Raise the errors of some partitions, if there are any."""
    if errors:
        keyed = {ManagerKey(group, *where): error for where, error in errors.items()}
        raise OffsetsUncommittedError.one_of(keyed)


def refusals(
    error: OffsetManagerError, offsets: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetManagerError]:
    """Return which of ``offsets`` a commit that raised ``error`` has refused, and why.

    All of them, unless it names partitions that are among them.
    """
    named: dict[TopicPartition, OffsetManagerError] = {}
    if isinstance(error, OffsetsUncommittedError):
        named = {key.topic_partition: each for key, each in error.errors.items()}
    elif isinstance(error, CoordinatorError) and not isinstance(error, OffsetFetchError):
        named = {TopicPartition(error.topic, error.partition): error}
    sent = list(offsets)
    return named if named and named.keys() <= set(sent) else dict.fromkeys(sent, error)


def in_halves(
    partitions: Sequence[TopicPartition], ask: Callable[[Sequence[TopicPartition]], object]
) -> dict[TopicPartition, OffsetManagerError]:
    """Ask a store about ``partitions``; return the errors.

    Unless the error of a commit says which are refused, what fails is tried again in halves, so
    that one partition holds up no other.
    """
    errors: dict[TopicPartition, OffsetManagerError] = {}
    parts = [partitions] if partitions else []
    deadline = Deadline(_SPLIT_S)
    while parts:
        part = parts.pop()
        try:
            ask(part)
        except BaseException as raised:  # noqa: BLE001 -- whatever a store raises
            error = as_store_error("offset store", raised)
            is_named = isinstance(error, (OffsetCommitError, OffsetsUncommittedError))
            if is_named or len(part) == 1 or deadline.over:
                errors |= refusals(error, part)
            else:
                half = len(part) // 2
                parts += [part[:half], part[half:]]
    return errors


def causes_of(error: OffsetManagerError) -> Collection[OffsetManagerError]:
    """Return the errors of the single partitions of a commit; ``error`` itself if it is one."""
    return error.errors.values() if isinstance(error, OffsetsUncommittedError) else [error]


def passes_later(error: OffsetManagerError) -> bool:
    """Return True if the same can succeed later."""
    return any(getattr(each, "retriable", False) for each in causes_of(error))


class MemoryOffsetStore(OffsetStore):
    """Keeps offsets as long as the process lives."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)

    @property
    def url(self) -> str:
        return "memory:"

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        with self._lock:
            known = self._groups.get(group, {})
            return {each: known.get(each) for each in (known if partitions is None else partitions)}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            self._groups[group].update(offsets)

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(group for group, offsets in self._groups.items() if offsets)


class ManagerStore(OffsetStore):
    """Commits by the managers of a LocalOffsets or OffsetClient, which ``close`` leaves open."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets

    @property
    def url(self) -> str:
        return self._offsets.url

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        committed = self._offsets.committed(group, timeout=_REQUEST_S)
        return {
            each: committed.get(each) for each in (committed if partitions is None else partitions)
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        values: dict[tuple[str, int], int | OffsetAndMetadata] = dict(offsets.items())
        # Only a reset is lower than what was committed before.
        self._offsets.submit(group, values, rewind=True, sync=True, timeout=_REQUEST_S)

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self._offsets.claim(group, partitions, timeout=_REQUEST_S)
        try:
            return self.fetch(group, partitions)
        except BaseException:
            self.release(group, partitions)
            raise

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self._offsets.stop_managers(timeout=_REQUEST_S, group=group, partitions=partitions)
