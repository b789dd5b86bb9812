"""One partition of a view's table: its state and its numbers.

::

    INITIALIZING ──► CONNECTING ──► RECOVERING ──► PREPARING ──► RUNNING
                         ▲              │                           │
                         └── back-off ──┴───────────────────────────┘
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from offsetmgr.answers import PartitionLog
    from offsetmgr.streams.memory import Storage

STALLED_S: Final = 120.0
"""A partition that is behind and has read nothing for so long is stalled."""

BACKOFF_STEP_S: Final = 10.0
BACKOFF_MAX_S: Final = 120.0
BACKOFF_RESET_S: Final = 60.0
"""A connection that lasted so long ends the back-off of those before."""

_RATE_S: Final = 10
"""Rates are of so many seconds."""


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
    last_stable_offset: int | None
    """The first message of an open transaction, as of the last look; messages from there on cannot
    be read yet.  Without one the high watermark."""
    lag: int | None
    """Messages up to the high watermark that are not stored, those behind an open transaction
    included."""
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
    """Why it stopped, connects again, or waits."""


class Progress:
    """The state and the numbers of a partition, for any thread."""

    def __init__(self, partition: int, now_s: float) -> None:
        self.partition = partition
        self.state = TableState.INITIALIZING
        self.connect_s: float | None = now_s
        """When to connect; None while it is connected."""
        self.start = 0
        self.target = 0
        """The end of the log at the connection."""
        self.next_offset: int | None = None
        self.leader_epoch: int | None = None
        """Of the last message that is stored."""
        self.is_outside_log = False
        """True if its next offset was not in its log."""
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.rows = 0
        self.began_s = now_s
        self.recovery_s: float | None = None
        self.read_s = now_s
        """Time of the last message, or of the connection."""
        self.error: str | None = None
        self._connected_s: float | None = None
        self._next_wait_s = 0.0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_S)

    @property
    def connected(self) -> bool:
        return self.connect_s is None

    def is_due(self, now_s: float) -> bool:
        return self.connect_s is not None and now_s >= self.connect_s

    def connect(self, start: int, target: int, now_s: float) -> None:
        """Begin to recover from offset ``start`` up to before ``target``."""
        self.start = self.next_offset = start
        self.target = target
        self.read_s = self._connected_s = now_s
        self.connect_s = self.error = None
        self.is_outside_log = False
        self.state = TableState.RECOVERING

    def disconnect(self, error: str, now_s: float) -> float:
        """Return the seconds to wait before the next connection: 0, 10, 20, … 120."""
        connected_s, self._connected_s = self._connected_s, None
        if connected_s is not None and now_s - connected_s >= BACKOFF_RESET_S:
            self._next_wait_s = 0.0
        wait_s = self._next_wait_s
        self._next_wait_s = min(wait_s + BACKOFF_STEP_S, BACKOFF_MAX_S)
        self.connect_s = now_s + wait_s
        self.error = error
        self.state = TableState.CONNECTING
        return wait_s

    def start_over(self, now_s: float) -> None:
        self.connect_s = now_s
        self.next_offset = self.leader_epoch = None
        self.state = TableState.CONNECTING

    def wrote(self, count: int, last: int | None, end: int | None, now_s: float) -> None:
        """Take in that ``count`` messages up to ``last`` are stored; ``end`` is that of the log."""
        self.rows += count
        if last is not None:
            self.next_offset = last + 1
            self.read_s = now_s
        if end is not None:
            # It lies behind markers of transactions, which have offsets too.
            self.next_offset = max(end, self.next_offset or 0)

    def sample(self, now_s: float) -> None:
        """Remember the number of rows; called once a second."""
        self._samples.append((now_s, self.rows))

    def stats(self, now_s: float) -> PartitionStats:
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
            self.last_stable_offset,
            lag,
            self.rows,
            rate,
            done if known else 0.0,
            self.recovery_s,
            bool(lag) and now_s - self.read_s >= STALLED_S,
            self.error,
        )


class PendingRows:
    """The rows of a store with what an update callback has changed of them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.changes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return a row; None where there is none."""
        return self.changes[key] if key in self.changes else self._storage.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row.  Raises InvalidValueError unless both are bytes."""
        row: tuple[object, object] = key, value
        if not all(isinstance(part, bytes) for part in row):
            fix = "encode both, or use delete()"
            raise InvalidValueError("row", row, "is not a key and a value in bytes", fix)
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a row; there may be none."""
        self.changes[key] = None


def beyond_log(stored: int | None, log: PartitionLog, *, is_outside: bool) -> str:
    """Return why ``stored``, the last message that was read, is of another log; or nothing.

    ``is_outside``: the message behind it cannot be read.
    """
    if stored is not None and stored >= log.high_watermark:
        return f"the log ends at offset {log.high_watermark}, but the message at {stored} is stored"
    if stored is not None and is_outside and stored + 1 >= log.log_start_offset:
        return f"the log was cut, and the message at {stored} is another one now"
    return ""


def missed_rows(
    stored: int | None, log: PartitionLog, away_s: float, delete_retention_s: float
) -> str:
    """Return why rows may be stored that are deleted by now; or nothing.

    ``away_s`` is the time since the log was last read to its end; below 0 the clock was set back,
    and its size is that of the jump at least.
    """
    if stored is None:
        return ""
    gone = log.log_start_offset - stored - 1
    if gone > 0:
        return f"{gone} messages are gone that were not read"
    if abs(away_s) > delete_retention_s:
        return (
            f"it was read to its end {away_s:.0f} s ago, and tombstones stay in it for "
            f"{delete_retention_s:.0f} s (delete.retention.ms)"
        )
    return ""
