"""The claimed partitions of a consumer, between its member of the group and its application."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from confluent_kafka import Message

from offsetmgr.deadlines import Deadline
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from offsetmgr.deadlines import Latch
    from offsetmgr.types import OffsetAndMetadata

_LOOK_S: Final = 0.005  # interval of looks at what the application has in work


class Start(NamedTuple):
    """The place where reading of a claimed partition begins."""

    committed: OffsetAndMetadata | None
    offset: int | None = None
    """Set where nothing is committed, and this is to be committed at once."""
    resumed: bool = False
    """True if reading goes on at this member's own position in a former claim."""


class Claimed(ABC):
    """A partition's log from when it is claimed until it is released."""

    released = False
    """True once another member may have it."""

    @property
    def paused(self) -> bool:
        """True if nothing is to be received from the next poll on."""
        return False

    @abstractmethod
    def reach_end(self, end: int) -> None:
        """Take in that there is no further message before the offset ``end``."""

    @abstractmethod
    def to_commit(self) -> OffsetAndMetadata | None:
        """Return what to commit; None if it is committed."""

    @abstractmethod
    def commit(self, position: OffsetAndMetadata) -> None:
        """Take in that ``position`` is committed."""


_C = TypeVar("_C", bound=Claimed)
_R = TypeVar("_R")


class Work(ABC, Generic[_C]):
    """The part of a consumer that handles its messages; called by the thread that polls."""

    member: Any
    """The Member that calls; set before any call."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.claims: dict[TopicPartition, _C] = {}

    @property
    def paused(self) -> Collection[TopicPartition]:
        """Partitions of which nothing is to be received from the next poll on."""
        with self.lock:
            return {each for each, claim in self.claims.items() if claim.paused}

    def take_left_off(self) -> dict[TopicPartition, int]:
        """Return offsets from which on to read again what was received, and not kept."""
        return {}

    @abstractmethod
    def receive(self, topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
        """Take in messages of a claimed partition, in their order."""

    def reach_end(self, topic_partition: TopicPartition, end: int) -> None:
        """Take in that a partition has no further message before the offset ``end``."""
        with self.lock:
            self.claims[topic_partition].reach_end(end)

    def claim(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Take partitions."""
        with self.lock:
            self.release(starts.keys())
            for each in sorted(starts):
                self.claims[each] = self._open(each, starts[each])

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        """Begin again with a claimed partition, which has a new log: read it from ``offset`` on."""
        self.claim({topic_partition: Start(None, offset)})

    def begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        """Hand out no more of partitions; wait so many seconds for what is in work of them.

        Not called where the consumer is being closed.
        """
        with self.lock:
            self._drop(partitions)
        deadline = Deadline(timeout_s)
        while self._has_in_work(partitions) and not deadline.over:
            if self.member.ended.wait(_LOOK_S):
                return

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions: another member may have them already."""
        with self.lock:
            self._drop(partitions)
            for each in partitions:
                claim = self.claims.pop(each, None)
                if claim is not None:
                    claim.released = True

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit that are not committed yet; called by any thread."""
        with self.lock:
            positions = {each: claim.to_commit() for each, claim in self.claims.items()}
        return {each: position for each, position in positions.items() if position is not None}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Take in that these offsets are committed; called by any thread."""
        with self.lock:
            for each in self.claims.keys() & offsets.keys():
                self.claims[each].commit(offsets[each])

    # With the lock

    @abstractmethod
    def _open(self, topic_partition: TopicPartition, start: Start) -> _C:
        """Return the claim of a partition."""

    @abstractmethod
    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more of what was received of ``partitions``."""

    # Without

    @abstractmethod
    def _has_in_work(self, partitions: Collection[TopicPartition]) -> bool:
        """Return True while the application has messages of ``partitions`` in work."""


def ending(ended: Latch, read: Callable[..., _R], *arguments: Any) -> _R:
    """Return what ``read`` returns; its consumer has ended where it raises.

    Of what a signal's handler interrupts a message may be lost: a later mark would pass it over.
    """
    try:
        return read(*arguments)
    except BaseException:
        ended.set()
        raise


def runs_of(messages: Iterable[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
    """Divide messages into lists of one partition each, in which they stay in their order.

    Raises TypeError for anything that is not a message.
    """
    for topic, of_topic in groupby(messages, Message.topic):
        for partition, run in groupby(of_topic, Message.partition):
            yield TopicPartition(topic or "", partition or 0), list(run)
