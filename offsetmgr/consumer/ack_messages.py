"""Messages that wait for an ack, and the claimed partitions that they are of.

The offset to commit is the lowest one that is not acknowledged.  The acknowledged ranges above it
go into the commit's metadata, so that a restart delivers again only what was not acknowledged.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from confluent_kafka import TIMESTAMP_CREATE_TIME

from offsetmgr.acked_ranges import AckTracker
from offsetmgr.consumer.settings import MOST_METADATA_CHARS
from offsetmgr.consumer.work import Claimed
from offsetmgr.kafka.messages import headers_of
from offsetmgr.retry_headers import Origin
from offsetmgr.types import MAX_OFFSET, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Message

    from offsetmgr.retry_headers import Retried

_OVERHEAD_BYTES: Final = 500  # of the objects that a message is made of


class PartitionProgress(NamedTuple):
    """Progress of the acks of a claimed partition."""

    offset: int | None
    """The oldest offset that is not acknowledged; None before the first message."""
    pending: int
    """Messages that are handed out or about to be, and not acknowledged."""
    seconds: float
    """Age of the message at ``offset`` by its timestamp; 0 where it was not read yet."""
    metadata_chars: int
    """Length of the acknowledged ranges above ``offset`` in the commit, at most 4,095."""


class AckReceiver(Protocol):
    """A consumer as its messages call it; from any thread."""

    cluster: str
    """Bootstrap servers, or the name of the cluster."""

    def acknowledge(self, message: AckMessage) -> None: ...

    def acknowledge_up_to(self, message: AckMessage) -> None: ...

    def reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None: ...


class Claim(Claimed):
    """A claimed partition with its acks."""

    def __init__(
        self,
        receiver: AckReceiver,
        topic_partition: TopicPartition,
        committed: OffsetAndMetadata | None,
        *,
        start: int | None = None,
        bare: bool = False,
    ) -> None:
        """``start`` is where reading begins if nothing is committed, which is to be committed.

        ``bare`` as for AckTracker.  Raises ValueError for metadata that is not of acks.
        """
        self.receiver = receiver
        self.topic_partition = topic_partition
        self.committed = committed
        self.bytes = 0
        """Size of the messages that are not acknowledged, but for those that are given up."""
        self.releasing = False
        self.waiting: deque[tuple[float, AckMessage]] = deque()  # with when they are due
        self.given_up: set[int] = set()
        """Offsets that are not acknowledged, and not delivered again."""
        self._end = 0
        self._bare = bare
        offset, metadata, _ = committed or OffsetAndMetadata(MAX_OFFSET if start is None else start)
        self.begun = offset != MAX_OFFSET
        """False until it is known where reading begins."""
        self.checked = not metadata
        """False while committed ranges may be of another log."""
        self.tracker = self._track(offset, metadata)

    def _track(self, offset: int, metadata: str = "") -> AckTracker[AckMessage]:
        return AckTracker(offset, metadata, limit_chars=MOST_METADATA_CHARS, bare=self._bare)

    @property
    def paused(self) -> bool:
        return bool(self.waiting)

    def to_commit(self) -> OffsetAndMetadata | None:
        position, known = self.tracker.position, self.committed
        is_new = self.begun and (known is None or position[:2] != known[:2])
        return position if is_new else None

    def commit(self, position: OffsetAndMetadata) -> None:
        self.committed = position

    def is_pending(self, offset: int) -> bool:
        """True unless ``offset`` is acknowledged, or the partition was released."""
        return not self.released and self.tracker.is_pending(offset)

    def done(self, message: AckMessage) -> None:
        """Take in that a pending message is acknowledged."""
        if message.at in self.given_up:
            self.given_up.remove(message.at)
        else:
            self.bytes -= message.size

    def begin(self, offset: int) -> None:
        """Take in where reading begins, unless that is known."""
        if not self.begun:
            self.begun = True
            self.tracker = self._track(offset)

    def drop_ranges_beyond(self, end: int) -> bool:
        """Forget the committed ranges if one reaches beyond the log's end; True if so."""
        self.checked = True
        beyond = self.tracker.acknowledged_end > max(end, self.tracker.offset)
        if beyond:
            self.tracker = self._track(self.tracker.offset)
        return beyond

    def reach_end(self, end: int) -> None:
        self._end = end
        self.pass_over_end()

    def pass_over_end(self) -> None:
        """Let the commit go up to the end of the log once the messages before it are done."""
        if self._end and not self.waiting:
            self.begin(self._end)
            self.tracker.pass_over(self._end)

    def progress(self, now_s: float) -> PartitionProgress:
        """``now_s`` is in seconds since 1970."""
        tracker = self.tracker
        since_ms = tracker.oldest.timestamp()[1] if tracker.oldest else 0
        return PartitionProgress(
            tracker.offset if self.begun else None,
            tracker.pending,
            max(0.0, now_s - since_ms / 1000) if since_ms > 0 else 0.0,
            len(tracker.position.metadata),
        )


class AckMessage:
    """A message that waits for its ack or nack; any thread may give it.

    It has the methods of a message of confluent-kafka.  A second ack or nack has no effect, nor has
    one for a partition that was released.
    """

    __slots__ = ("at", "claim", "nacked", "raw", "retried", "size", "tries")

    def __init__(
        self, message: Message, claim: Claim, tries: int = 1, retried: Retried | None = None
    ) -> None:
        """``retried`` are the headers of a message from a retry topic."""
        self.raw: Final = message
        """confluent-kafka's message."""
        self.claim: Final = claim
        self.at: Final = message.offset() or 0
        self.size: Final = len(message) + len(message.key() or b"") + _OVERHEAD_BYTES
        """Bytes of key and value, and of the objects around them, as they count in memory."""
        self.tries: Final = tries
        """The number of known deliveries of the message, with this one."""
        self.retried: Final = retried
        self.nacked = False
        """True once this delivery is rejected by ``nack``."""

    def topic(self) -> str:
        """Return the topic from which it was read, which may be a retry topic."""
        return self.claim.topic_partition.topic

    def partition(self) -> int:
        return self.claim.topic_partition.partition

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw.key()

    def value(self) -> bytes | None:
        return self.raw.value()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, None if there are none; a name that is not UTF-8 is ``\ufffd``."""
        return headers_of(self.raw) or None

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp and milliseconds since 1970, as first produced."""
        if self.retried is not None and self.retried.timestamp_ms >= 0:
            return TIMESTAMP_CREATE_TIME, self.retried.timestamp_ms
        return self.raw.timestamp()

    def leader_epoch(self) -> int | None:
        return self.raw.leader_epoch()

    def error(self) -> None:
        """Return None: errors are not handed out as messages."""

    def __len__(self) -> int:
        return len(self.raw)

    def __bool__(self) -> bool:
        return True

    @property
    def origin(self) -> Origin:
        """Place where it was first produced; differs from its own place after a retry topic."""
        return self.place if self.retried is None else self.retried.origin

    @property
    def place(self) -> Origin:
        """Place where it was read from."""
        return Origin(*self.claim.topic_partition, self.at)

    @property
    def cluster(self) -> str:
        """Bootstrap servers of its cluster, or its name where several are read."""
        return self.claim.receiver.cluster

    @property
    def is_pending(self) -> bool:
        """True until it is acknowledged, or its partition was released."""
        return self.claim.is_pending(self.at)

    @property
    def given_up(self) -> bool:
        """True if it is not delivered again, though it is not acknowledged."""
        return self.at in self.claim.given_up

    def ack(self) -> None:
        """Acknowledge the message: it is processed."""
        self.claim.receiver.acknowledge(self)

    def nack(self, delay: float | None = None, *, error: BaseException | str | None = None) -> None:
        """Reject the message: it is delivered again after ``delay`` s, by default as set.

        ``error`` says why; it goes into the headers of retry topics and dead letters.
        """
        self.claim.receiver.reject(self, delay, error)
        self.nacked = True

    def __repr__(self) -> str:
        return f"AckMessage({self.claim.topic_partition}@{self.at}, tries={self.tries})"
