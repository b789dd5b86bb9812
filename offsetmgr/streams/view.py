"""A table's topic as rows on this machine, kept up to date, for any process to read."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError, OffsetTimeoutError
from offsetmgr.logs import SafeLogger
from offsetmgr.streams.errors import ViewError
from offsetmgr.streams.messages import encode_key
from offsetmgr.streams.partition_table import TableState
from offsetmgr.streams.rows import TableRows, opened_rows
from offsetmgr.streams.storage import LmdbStorage
from offsetmgr.streams.table_reader import TableReader
from offsetmgr.types import check_callable, check_timeout, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from typing_extensions import Self

    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.memory import Storage
    from offsetmgr.streams.messages import Message
    from offsetmgr.streams.partition_table import PartitionStats, PendingRows

GROUP: Final = "offsetmgr-view"
"""Group of the consumers, which is never joined; ``group.id`` of the settings replaces it."""

_STOP_S: Final = 60.0
_POLL_S: Final = 0.02

log = SafeLogger("offsetmgr.streams")


class ViewState(IntEnum):
    """The lowest state of a view's partitions."""

    IDLE = 0
    INITIALIZING = 1
    CONNECTING = 2
    CATCH_UP = 3
    RUNNING = 4


_STATES: Final = {
    TableState.STOPPED: ViewState.IDLE,
    TableState.INITIALIZING: ViewState.INITIALIZING,
    TableState.CONNECTING: ViewState.CONNECTING,
    TableState.RECOVERING: ViewState.CATCH_UP,
    TableState.PREPARING: ViewState.CATCH_UP,
    TableState.RUNNING: ViewState.RUNNING,
}


class ViewStats(NamedTuple):
    """A view and its partitions."""

    topic: str
    state: ViewState
    lag: int | None
    """Messages up to the high watermarks that are not stored yet, those behind an open transaction
    included; None where a partition's is not known."""
    rows_per_s: float
    recovery: float
    """The lowest of the partitions."""
    stalled: bool
    error: str | None
    """Why the view has failed."""
    partitions: tuple[PartitionStats, ...]


class View(TableRows):
    """The rows of a table's topic in a store at ``path``, while it is started.

    ``kafka`` is the bootstrap servers or librdkafka's settings.  ``storage`` replaces the lmdb
    store, ``update(rows, message)`` what is done with each message.

    Raises InvalidValueError.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        topic: str,
        codec: Codec,
        path: str | Path | None = None,
        *,
        storage: Storage | None = None,
        update: Callable[[PendingRows, Message], object] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if (path is None or path == "") == (storage is None):
            fix = "give the folder of the store, or storage="
            raise InvalidValueError("path", path, "is missing or one too many", fix)
        if storage is not None and not hasattr(storage, "apply"):
            fix = "give LmdbStorage(...) or MemoryStorage()"
            raise InvalidValueError("storage", storage, "is not a store of rows", fix)
        if update is not None:
            check_callable(update, "update")
        self.topic = check_topic(topic)
        self._store = LmdbStorage(path) if storage is None else storage  # type: ignore[arg-type]
        super().__init__(self._store, codec)
        opened_rows.add(self)
        self._readable = False
        self._kafka = kafka
        self._timeout_s = timeout_s
        self._update = update
        self._reader: TableReader | None = None
        """Of the last start."""
        self._observers: list[Callable[[ViewState], object]] = []
        self._observing = threading.RLock()
        """Observers see one state after the other."""
        self._state = ViewState.IDLE

    def start(self) -> Self:
        """Open the store and begin to read, also after a failure.

        Raises TopicsError, KafkaRequestError, ViewError.
        """
        if self._error is not None:
            self.stop()
        if self._reader is None or self._reader.stopped:
            self._reader = TableReader(
                self._kafka, self.topic, self._store, group=GROUP, update=self._update,
                changed=self._take_states, timeout_s=self._timeout_s,
            )  # fmt: skip
            try:
                self._reader.start()
            except BaseException:
                self._reader, self._state = None, ViewState.IDLE
                raise
        return self

    def stop(self, timeout: float = _STOP_S) -> None:
        """End reading and close the store; harmless when repeated.

        Raises OffsetTimeoutError, and ViewError in a callback or while it starts: then it goes on.
        """
        check_timeout(timeout)
        if self._reader is not None:
            self._reader.stop(timeout)

    def wait_until_running(self, timeout: float = 60.0) -> None:
        """Wait until all was read that the topic holds.  Raises ViewError, OffsetTimeoutError."""
        # Without a lock, for which a stop in a signal's handler would have the view's thread wait.
        for _ in Deadline(timeout).polls(_POLL_S):
            if self._error is not None:
                self._refuse()
            if self._state is ViewState.RUNNING:
                return
        state = self._state.name.lower()
        why = self._reader.trouble if self._reader else None
        text = f"the view of {self.topic} was not running within {timeout} s, but {state}"
        raise OffsetTimeoutError(f"{text}: {why}" if why else text)

    @property
    def state(self) -> ViewState:
        """The lowest state of the partitions."""
        return self._state

    @property
    def recovered(self) -> bool:
        """True if all has been read that the topic held when the view connected."""
        return self._state is ViewState.RUNNING

    @property
    def has_caught_up(self) -> bool:
        """True if the table was read to its end since the start, or the topic was recreated."""
        reader = self._reader
        return reader is not None and not reader.stopped and reader.caught_up.is_set()

    def observe(self, observer: Callable[[ViewState], object]) -> Callable[[], None]:
        """Call ``observer`` with each new state, in a view's thread; return what ends that."""
        check_callable(observer, "observer")
        self._observers.append(observer)

        def end() -> None:
            with suppress(ValueError):
                self._observers.remove(observer)

        return end

    def evict(self, key: str) -> None:
        """Delete a row from this store alone; the next message of the key writes it again."""
        if not self._readable:
            self._refuse()
        self._store.apply({encode_key(key): None}, {})

    def stats(self) -> ViewStats:
        """Return states, lag, rates and recovery."""
        now_s, reader = time.monotonic(), self._reader
        parts = () if reader is None else reader.partitions.values()
        found = tuple(part.stats(now_s) for part in parts)
        lags = [part.lag for part in found]
        return ViewStats(
            self.topic,
            self._state,
            None if None in lags else sum(lag or 0 for lag in lags),
            sum(part.rows_per_s for part in found),
            min((part.recovery for part in found), default=0.0),
            any(part.stalled for part in found),
            None if self._error is None else str(self._error),
            found,
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def _error(self) -> Exception | None:
        return None if self._reader is None else self._reader.error

    def _refuse(self) -> None:
        super()._refuse()
        error = self._error
        if error is not None:
            raise ViewError(f"the view of {self.topic} has failed: {error}") from error
        state = self._state.name.lower()
        text = f"the view of {self.topic} is {state}, and has no rows to read yet"
        raise ViewError(f"{text}: call start() and wait_until_running()")

    def _take_states(self) -> None:
        """Take in new states of the partitions."""
        reader = self._reader
        if reader is None:
            return
        with self._observing:
            states = [part.state for part in reader.partitions.values()]
            lowest = _STATES[min(states, default=TableState.STOPPED)]
            if lowest is self._state:
                return
            self._state = lowest
            self._readable = lowest >= ViewState.CONNECTING and not reader.ending
            for observer in list(self._observers):
                log.guard(f"an observer of the view of {self.topic} failed", observer, lowest)
