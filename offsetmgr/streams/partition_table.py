"""One partition of a view's table: an actor that copies its log into the view's store.

::

    INITIALIZING ──► CONNECTING ──► RECOVERING ──► PREPARING ──► RUNNING
                         ▲              │                           │
                         └── back-off ──┴───────────────────────────┘
"""

from __future__ import annotations

import logging
from collections import deque
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from actors import PooledActor
from offsetmgr.errors import KafkaRequestError
from offsetmgr.kafka.messages import headers_of
from offsetmgr.streams.errors import TopicsError
from offsetmgr.streams.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsetmgr.streams.storage import Storage
    from offsetmgr.types import PartitionRange

STALLED_S: Final = 120.0
"""A partition that is behind and has read nothing for so long is stalled."""

MAX_BATCH: Final = 100_000
"""Messages of one write of the store; rows of a large one share pages."""

BACKOFF_STEP_S: Final = 10.0
BACKOFF_MAX_S: Final = 120.0
BACKOFF_RESET_S: Final = 60.0
"""A connection that lasted so long ends the back-off of those before."""

_SHORTEST_IDLE_S: Final = 0.005
_LONGEST_IDLE_S: Final = 0.1
_RATE_S: Final = 10
"""Rates are of so many seconds."""
_UNKNOWN_TOPIC: Final = frozenset({3, -190})
_MISSING_TRIES: Final = 3
"""A broker that has just started may not know the topic yet."""

log = logging.getLogger("offsetmgr.streams")


class TableState(IntEnum):
    """Progress of a partition."""

    STOPPED = 0
    INITIALIZING = 1
    CONNECTING = 2
    RECOVERING = 3
    """It reads what its log held when it connected."""
    PREPARING = 4
    """Its store is flushed."""
    RUNNING = 5


class PartitionStats(NamedTuple):
    """A partition of a view."""

    partition: int
    state: TableState
    next_offset: int | None
    """The offset after the last message that is stored."""
    high_watermark: int | None
    lag: int | None
    rows: int
    """Messages stored since the start."""
    rows_per_s: float
    """Mean of the last 10 s."""
    recovery: float
    """Part of its log at the connection that it has read, 0 to 1."""
    recovery_s: float | None
    """Time that the first recovery took."""
    stalled: bool
    error: str | None
    """Why it stopped, or connects again."""


class LogReader(Protocol):
    """Reads the log of one partition."""

    def read(self) -> Sequence[Any]:
        """Return some of what has arrived, as confluent-kafka's messages; none once that is all.

        Raises KafkaRequestError.
        """

    def at_end(self) -> bool:
        """Return True if what was returned last is the end of the log."""

    def high_watermark(self) -> int | None:
        """Return the end of the log as far as it is known."""

    def close(self) -> None:
        """End."""


class TableSource(Protocol):
    """The log of a table's topic."""

    def ask_range(
        self,
        partition: int,
        answer: Callable[[PartitionRange | KafkaRequestError | TopicsError], object],
    ) -> None:
        """Call ``answer`` with the range of a partition's log; never blocks."""

    def open(self, partition: int, start: int) -> LogReader:
        """Return a reader from offset ``start`` on.  Raises KafkaRequestError."""


class PendingRows:
    """The rows of a store with what an update callback has changed of them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.changes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return a row; None where there is none."""
        return self.changes[key] if key in self.changes else self._storage.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row."""
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a row; there may be none."""
        self.changes[key] = None


class TablePlan(NamedTuple):
    """All that the partitions of a view share."""

    topic: str
    storage: Storage
    source: TableSource
    update: Callable[[PendingRows, Message], object] | None
    """Called with each message; None puts or deletes the row of its key."""
    changed: Callable[[int, TableState, Exception | None], object]
    """Called with a partition's new state; the error is why it has stopped."""


def start_offset(topic: str, partition: int, stored: int | None, held: PartitionRange) -> int:
    """Return the first offset to read of a log, after the message ``stored``.

    Raises TopicsError where the log ends before that message.
    """
    if stored is None:
        return held.log_start_offset
    if stored >= held.high_watermark:
        raise TopicsError(
            f"{topic}/{partition} ends at offset {held.high_watermark}, but the view has stored "
            f"the message at {stored}: the table might be gone, or the topic made anew. Delete "
            "the view's store, and start it again to read the table as it is now"
        )
    return max(stored + 1, held.log_start_offset)


class ReconnectBackoff:
    """Waits before each new connection: 0, 10, 20, … 120 s."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._connected_s: float | None = None

    def connected(self, now_s: float) -> None:
        self._connected_s = now_s

    def failed(self, now_s: float) -> float:
        """Return the seconds to wait after the connection has failed."""
        connected_s, self._connected_s = self._connected_s, None
        if connected_s is not None and now_s - connected_s >= BACKOFF_RESET_S:
            self._next_s = 0.0
        wait_s = self._next_s
        self._next_s = min(wait_s + BACKOFF_STEP_S, BACKOFF_MAX_S)
        return wait_s


class Progress:
    """The numbers of a partition, for any thread."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.state = TableState.STOPPED
        self.start = 0
        self.target = 0
        """The end of the log at the connection."""
        self.next_offset: int | None = None
        self.high_watermark: int | None = None
        self.rows = 0
        self.began_s = 0.0
        self.recovery_s: float | None = None
        self.read_s = 0.0
        """Time of the last message, or of the connection."""
        self.error: str | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_S)

    def sample(self, now_s: float) -> None:
        """Remember the number of rows once a second."""
        if not self._samples or now_s - self._samples[-1][0] >= 1.0:
            self._samples.append((now_s, self.rows))

    def stats(self, now_s: float) -> PartitionStats:
        """Return the numbers as they are now."""
        at, end = self.next_offset, self.high_watermark
        lag = None if at is None or end is None else max(0, end - at)
        length = self.target - self.start
        done = 1.0 if length <= 0 else min(1.0, ((at or 0) - self.start) / length)
        since_s, rows = self._samples[0] if self._samples else (now_s, 0)
        rate = (self.rows - rows) / (now_s - since_s) if now_s > since_s else 0.0
        known = self.state > TableState.CONNECTING or self.recovery_s is not None
        return PartitionStats(
            self.partition,
            self.state,
            at,
            end,
            lag,
            self.rows,
            rate,
            done if known else 0.0,
            self.recovery_s,
            bool(lag) and now_s - self.read_s >= STALLED_S,
            self.error,
        )


class _Do(Enum):
    """Message: what to do now."""

    CONNECT = 1
    READ = 2


class _Range(NamedTuple):
    """Message: the answer to a question for the range of the log."""

    answer: PartitionRange | KafkaRequestError | TopicsError


class PartitionTable(PooledActor):
    """Keeps the rows of one partition up to date."""

    def __init__(self, plan: TablePlan, progress: Progress) -> None:
        super().__init__()
        self._plan = plan
        self._progress = progress
        self._backoff = ReconnectBackoff()
        self._reader: LogReader | None = None
        self._missing = 0
        self._idle_s = _SHORTEST_IDLE_S

    def on_start(self) -> None:
        self._progress.began_s = self._progress.read_s = self.system.clock.now()
        self._enter(TableState.INITIALIZING)
        self.actor_ref.tell(_Do.CONNECT)

    def on_stop(self) -> None:
        self._end(None)

    def on_receive(self, message: object) -> None:
        if self._progress.state is TableState.STOPPED:
            return
        try:
            match message:
                case _Do.CONNECT:
                    self._connect()
                case _Range(answer):
                    self._start(answer)
                case _Do.READ:
                    self._read()
        except KafkaRequestError as error:
            self._retry(error)
        except Exception as error:  # noqa: BLE001 -- whatever a store or a callback raises
            self._end(error)

    def _connect(self) -> None:
        self._enter(TableState.CONNECTING)
        ref = self.actor_ref

        def answer(found: PartitionRange | KafkaRequestError | TopicsError) -> None:
            ref.try_tell(_Range(found))

        self._plan.source.ask_range(self._progress.partition, answer)

    def _start(self, answer: PartitionRange | KafkaRequestError | TopicsError) -> None:
        plan, progress = self._plan, self._progress
        if isinstance(answer, TopicsError):
            raise answer
        if isinstance(answer, KafkaRequestError):
            missing = answer.info.code in _UNKNOWN_TOPIC
            self._missing = self._missing + 1 if missing else 0
            if self._missing >= _MISSING_TRIES:
                text = f"{plan.topic}/{progress.partition} does not exist any more"
                raise TopicsError(f"{text}: the table might be gone") from answer
            raise answer
        self._missing = 0
        stored = plan.storage.offset(progress.partition)
        start = start_offset(plan.topic, progress.partition, stored, answer)
        self._reader = plan.source.open(progress.partition, start)
        now_s = self.system.clock.now()
        self._backoff.connected(now_s)
        progress.start = progress.next_offset = start
        progress.target = progress.high_watermark = answer.high_watermark
        progress.read_s = now_s
        progress.error = None
        self._enter(TableState.RECOVERING)
        self._read()

    def _read(self) -> None:
        reader, progress = self._reader, self._progress
        if reader is None:
            return
        stored = self._store(reader)
        now_s = self.system.clock.now()
        progress.sample(now_s)
        if stored:
            progress.read_s = now_s
        progress.high_watermark = reader.high_watermark() or progress.high_watermark
        if progress.state is TableState.RECOVERING and (
            (progress.next_offset or 0) >= progress.target or reader.at_end()
        ):
            self._recovered()
        if stored:
            self._idle_s = _SHORTEST_IDLE_S
            self.actor_ref.tell(_Do.READ)
        else:
            self.tell_after(self._idle_s, _Do.READ)
            self._idle_s = min(2 * self._idle_s, _LONGEST_IDLE_S)

    def _store(self, reader: LogReader) -> int:
        """Store what has arrived; return how many messages that was."""
        plan, progress = self._plan, self._progress
        pending = PendingRows(plan.storage)
        count = last = 0
        while count < MAX_BATCH and (messages := reader.read()):
            if plan.update is None:
                pending.changes.update({each.key() or b"": each.value() for each in messages})
            else:
                for each in messages:
                    plan.update(pending, _message(plan.topic, progress.partition, each))
            count += len(messages)
            last = messages[-1].offset()
        if count:
            plan.storage.apply(pending.changes, {progress.partition: last})
            progress.next_offset = last + 1
            progress.rows += count
        return count

    def _recovered(self) -> None:
        progress = self._progress
        self._enter(TableState.PREPARING)
        self._plan.storage.flush()
        if progress.recovery_s is None:
            progress.recovery_s = self.system.clock.now() - progress.began_s
        self._enter(TableState.RUNNING)

    def _retry(self, error: KafkaRequestError) -> None:
        self._close_reader()
        progress = self._progress
        wait_s = self._backoff.failed(self.system.clock.now())
        progress.error = str(error)
        log.warning(
            "view of %s/%d connects again in %.0f s: %s",
            self._plan.topic, progress.partition, wait_s, error,
        )  # fmt: skip
        self._enter(TableState.CONNECTING)
        self.tell_after(wait_s, _Do.CONNECT)

    def _end(self, error: Exception | None) -> None:
        self._close_reader()
        if error is not None:
            self._progress.error = str(error)
        self._enter(TableState.STOPPED, error)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _enter(self, state: TableState, error: Exception | None = None) -> None:
        if self._progress.state is not state:
            self._progress.state = state
            self._plan.changed(self._progress.partition, state, error)


def _message(topic: str, partition: int, raw: Any) -> Message:
    _, timestamp_ms = raw.timestamp()
    return Message(
        topic, raw.key() or b"", raw.value(), partition, raw.offset(), timestamp_ms, headers_of(raw)
    )
