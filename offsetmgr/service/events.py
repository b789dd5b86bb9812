"""Event streams: committed offsets, failures and stops, as they happen, to any number of readers.

Managers report on actor threads; readers live on the event loop.  Between the two, and before
each reader, stands a bounded place: of commits only the newest per manager, of failures the last
thousand with a count of what was lost.  A reader that stands still costs no more than that: when
too many managers have come and gone meanwhile, its stream ends, and it may begin anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from offsetmgr.errors import OverloadedError
from offsetmgr.service.messages import ErrorBody, GroupOffsetEntry
from offsetmgr.service.problems import error_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import Factory
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

_K = TypeVar("_K")

FAILURES_KEPT: Final = 1_000
"""Failures kept for a reader that comes back, and for one that is slow."""

NEWS_KEPT: Final = 50_000
"""Managers that are gone, of which a reader has yet to be told; with more its stream ends.

Where 60,000 stop at once, 18,000 wait for a reader that reads as fast as it can.
"""

KEEP_ALIVE_S: Final = 10.0
"""A comment is sent after this much silence, so that a dead connection is noticed."""

BATCH: Final = 500
"""Events written, and managers looked at, before the loop gets its turn."""

_ENCODE: Final = msgspec.json.Encoder().encode

log = structlog.get_logger("offsetmgr.service")


class _FailedData(msgspec.Struct):
    group: str
    topic: str
    partition: int
    error: ErrorBody


class _StoppedData(msgspec.Struct):
    group: str
    topic: str
    partition: int


class _DroppedData(msgspec.Struct, omit_defaults=True):
    count: int
    group: str | None = None
    topic: str | None = None
    partition: int | None = None


class Failure(NamedTuple):
    """One failure as it is kept."""

    number: int
    key: ManagerKey
    client: str | None
    error: OffsetManagerError


class News(NamedTuple):
    """What a reader has to learn of one manager: the newest commit, and whether it stopped."""

    committed: OffsetAndMetadata | None
    stopped: bool


class Losses(Generic[_K]):
    """How many failures of whom were not told; it remembers so many names and no more."""

    def __init__(self) -> None:
        self._counts: dict[_K | None, int] = {}

    def add(self, whose: _K | None, count: int = 1) -> None:
        """``count`` more; None stands for those whose names are not known any more."""
        if whose not in self._counts and len(self._counts) >= FAILURES_KEPT:
            whose = None
        self._counts[whose] = self._counts.get(whose, 0) + count

    def take(self, limit: int | None = None) -> list[tuple[_K | None, int]]:
        """Up to ``limit`` of them, which are forgotten here."""
        taken = list(islice(self._counts.items(), limit))
        for whose, _ in taken:
            del self._counts[whose]
        return taken


class Subscription:
    """One reader: what it wants and what waits for it.  Lives on the event loop."""

    def __init__(self, client: str | None, group: str | None) -> None:
        """None stands for any client or group."""
        self.client = client
        self.group = group
        self.news: dict[ManagerKey, News] = {}
        self.room = NEWS_KEPT
        """So many news may wait before it is looked how many of them are of live managers."""
        self.failures: deque[Failure] = deque(maxlen=FAILURES_KEPT)
        self.losses: Losses[ManagerKey] = Losses()
        self.closed = False
        self.wake = asyncio.Event()

    def wants(self, key: ManagerKey, client: str | None) -> bool:
        """Whether a manager's events are for this reader."""
        return (self.group is None or key.group == self.group) and (
            self.client is None or client == self.client
        )

    def tell(self, key: ManagerKey, news: News) -> None:
        """Of one manager only the newest waits."""
        before = self.news.get(key)
        if news.stopped and news.committed is None and before is not None:
            news = News(before.committed, stopped=True)
        self.news[key] = news
        self.wake.set()

    def fail(self, failure: Failure) -> None:
        """The oldest makes room, and is counted."""
        if len(self.failures) >= FAILURES_KEPT:
            self.lose(self.failures.popleft().key)
        self.failures.append(failure)
        self.wake.set()

    def lose(self, key: ManagerKey | None, count: int = 1) -> None:
        """Failures of ``key`` cannot be told, only how many; None where nobody knows whose."""
        self.losses.add(key, count)
        self.wake.set()

    def close(self) -> None:
        """The stream ends at its next turn; a reader that stands still may never take another."""
        self.closed = True
        self.news.clear()
        self.wake.set()

    def take(self) -> list[bytes]:
        """Up to a batch of events, encoded; empty when nothing waits."""
        events: list[bytes] = []
        for key, count in self.losses.take(BATCH):
            events.append(_event("dropped", _DroppedData(count, *(key or ()))))
        while self.failures and len(events) < BATCH:
            failure = self.failures.popleft()
            data = _FailedData(*failure.key, error_body(failure.error))
            events.append(b"id: %d\n" % failure.number + _event("failed", data))
        while self.news and len(events) < BATCH:
            key = next(iter(self.news))
            news = self.news.pop(key)
            if news.committed is not None:
                events.append(_event("committed", GroupOffsetEntry(*key, *news.committed)))
            if news.stopped:
                events.append(_event("stopped", _StoppedData(*key)))
        return events


def _event(name: str, data: msgspec.Struct) -> bytes:
    # JSON holds no line break, so one data line is enough.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _ENCODE(data))


class _Waiting(NamedTuple):
    """What has come from the managers' threads since the loop looked last."""

    lost: list[tuple[tuple[ManagerKey, str | None] | None, int]]
    fresh: list[Failure]
    news: dict[ManagerKey, tuple[str | None, News]]


class Owners(Protocol):
    """Knows whose a manager is."""

    def owner(self, key: ManagerKey) -> str | None:
        """Name of the client; for any thread."""

    def held(self, name: str) -> Sequence[ManagerKey]:
        """What the client of that name owns; on the event loop."""


class EventHub:
    """Takes events from the managers' threads and hands them to the readers."""

    def __init__(
        self,
        factory: Callable[[], Factory],
        owners: Callable[[], Owners],
        *,
        streams: int,
        first_number: int,
    ) -> None:
        """``factory`` and ``owners`` are asked for later: both are made after this.

        ``streams`` is how many readers there may be.
        ``first_number`` must rise from one service process to the next (a wall clock does), so
        that a reader that comes back after a restart is not taken for one that is up to date.
        """
        self._factory = factory
        self._owners = owners
        self._stream_limit = streams
        self._first_number = first_number
        self._lock = Lock()
        self._number = first_number
        self._kept: deque[Failure] = deque(maxlen=FAILURES_KEPT)
        self._news: dict[ManagerKey, tuple[str | None, News]] = {}
        self._fresh: deque[Failure] = deque(maxlen=FAILURES_KEPT)
        self._lost: Losses[tuple[ManagerKey, str | None]] = Losses()
        self._due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers: tuple[Subscription, ...] = ()
        self._closed = False

    # On the managers' threads

    def committed(self, key: ManagerKey, offset: OffsetAndMetadata) -> None:
        """A commit was acknowledged."""
        if self._readers:
            self._publish(key, News(offset, stopped=False))

    def stopped(self, key: ManagerKey) -> None:
        """A manager is gone."""
        if self._readers:
            self._publish(key, News(None, stopped=True))

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """A commit or fetch failed."""
        client = self._owners().owner(key)
        with self._lock:
            failure = Failure(self._number, key, client, error)
            self._number += 1
            self._kept.append(failure)
            if self._readers:
                if len(self._fresh) == FAILURES_KEPT:
                    oldest = self._fresh[0]
                    self._lost.add((oldest.key, oldest.client))
                self._fresh.append(failure)
                self._call_deliver()

    def _publish(self, key: ManagerKey, news: News) -> None:
        client = self._owners().owner(key)
        with self._lock:
            before = self._news.get(key)
            if news.stopped and before is not None:
                news = News(before[1].committed, stopped=True)
            self._news[key] = (client, news)
            self._call_deliver()

    def _call_deliver(self) -> None:
        """Once for all that comes until the loop gets to it; under the lock."""
        if not self._due and self._loop is not None and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self._deliver)

    # On the event loop

    def _deliver(self) -> None:
        with self._lock:
            waiting = self._take_waiting()
        self._hand_out(waiting, self._readers)

    def _take_waiting(self) -> _Waiting:
        """Under the lock."""
        self._due = False
        waiting = _Waiting(self._lost.take(), list(self._fresh), self._news)
        self._fresh.clear()
        self._news = {}
        return waiting

    def _hand_out(self, waiting: _Waiting, readers: tuple[Subscription, ...]) -> None:
        for reader in readers:
            if reader.closed:
                continue
            for whose, count in waiting.lost:
                if whose is None or reader.wants(*whose):
                    reader.lose(None if whose is None else whose[0], count)
            for failure in waiting.fresh:
                if reader.wants(failure.key, failure.client):
                    reader.fail(failure)
            for key, (client, each) in waiting.news.items():
                if reader.wants(key, client):
                    reader.tell(key, each)
            if len(reader.news) > reader.room:
                self._make_room(reader)

    def _make_room(self, reader: Subscription) -> None:
        """News of live managers are as many as those; news of others are only so many."""
        reader.room = len(self._keys(reader)) + NEWS_KEPT
        if len(reader.news) > reader.room:
            log.warning("event_reader_too_slow", client=reader.client, group=reader.group)
            reader.close()

    @property
    def newest(self) -> int:
        """Id of the newest failure; whoever reads from here on misses none that comes."""
        return self._number - 1

    @property
    def reader_count(self) -> int:
        """Open event streams."""
        return len(self._readers)

    def subscribe(
        self, client: str | None, group: str | None, after: int | None = None
    ) -> Subscription:
        """A new reader; ``after`` is the last failure it knows.  Raises OverloadedError."""
        if len(self._readers) >= self._stream_limit:
            raise OverloadedError(
                f"{self._stream_limit} event streams are open, the limit (limits.event_streams); "
                "close some, or raise it"
            )
        reader = Subscription(client, group)
        reader.closed = self._closed
        self._loop = asyncio.get_running_loop()
        with self._lock:
            # What is on its way is the others': this reader finds it among what is kept.
            waiting, others = self._take_waiting(), self._readers
            self._readers = (*others, reader)
            kept = list(self._kept) if after is not None else []
        self._hand_out(waiting, others)
        if after is not None:
            for failure in kept:
                if failure.number > after and reader.wants(failure.key, failure.client):
                    reader.fail(failure)
            # An id from before the first is of an earlier process, which took its failures along.
            missed = kept[0].number - after - 1 if kept and after >= self._first_number - 1 else 0
            if missed > 0:
                reader.lose(None, missed)
        return reader

    def unsubscribe(self, reader: Subscription) -> None:
        """The reader is gone."""
        with self._lock:
            self._readers = tuple(each for each in self._readers if each is not reader)

    async def stream(self, reader: Subscription) -> AsyncIterator[bytes]:
        """The reader's events, until it goes or the service stops."""
        # At once: the reader then knows that it misses nothing from here on.
        yield b": connected\n\n"
        keys = self._keys(reader)
        for start in range(0, len(keys), BATCH):
            self._present(reader, keys[start : start + BATCH])
            yield b"".join(reader.take())
        while not reader.closed:
            events = reader.take()
            if events:
                yield b"".join(events)
                continue
            reader.wake.clear()
            try:
                await asyncio.wait_for(reader.wake.wait(), KEEP_ALIVE_S)
            except asyncio.TimeoutError:
                yield b": keep-alive\n\n"

    def _keys(self, reader: Subscription) -> Sequence[ManagerKey]:
        if reader.client is None:
            return [handle.key for handle in self._factory().managers(reader.group)]
        return [
            key for key in self._owners().held(reader.client) if reader.wants(key, reader.client)
        ]

    def _present(self, reader: Subscription, keys: Iterable[ManagerKey]) -> None:
        """Tell what is committed now."""
        factory = self._factory()
        committed = {}
        for key in keys:
            handle = factory.get(key)
            newest = None if handle is None else handle.status().committed
            if newest is not None:
                committed[key] = newest
        # A commit older than what was just read may still be on its way here: take it first, and
        # leave that manager to its events, or the reader would see it go back.
        self._deliver()
        for key, newest in committed.items():
            if key not in reader.news:
                reader.tell(key, News(newest, stopped=False))

    def close(self) -> None:
        """End all streams, and those that come later."""
        self._closed = True
        for reader in self._readers:
            reader.close()
