"""Reports of the managers for the event streams and the log.

What waits for a reader is bounded: of commits only the newest per manager, of failures the last
ten thousand of all managers, with a count of what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.responses import StreamingResponse

from offsetmgr.errors import (
    OffsetFetchError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetRegressionError,
    OverloadedError,
)
from offsetmgr.http.answers import encode
from offsetmgr.http.errors import error_body
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.service.access import Requester, names_in
from offsetmgr.service.errors import ClientExistsError
from offsetmgr.service.messages import CommittedEntry, EventsQuery, OfGroup
from offsetmgr.service.openapi import operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import msgspec
    from starlette.types import Receive, Scope, Send

    from actors import Clock
    from offsetmgr.manager import Factory
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

FAILURES_KEPT: Final = 10_000

NEWS_KEPT: Final = 50_000
"""Unread events of managers that are gone; with more the stream ends."""

SHARE: Final = 4
"""Streams that one client without an identity may have at least; else a quarter of all."""

KEEP_ALIVE_S: Final = 10.0
"""A comment is sent after this much silence, so that a dead connection is noticed."""

BATCH: Final = 500
"""Events written, and managers looked at, before the loop gets its turn."""

log = SafeLogger("offsetmgr.service")
commit_log = SafeLogger("offsetmgr.commits")


class FailureEvent(NamedTuple):
    number: int
    key: ManagerKey
    client: str | None
    at_s: float
    error: OffsetManagerError


class EventStream(StreamingResponse):
    """The events of one reader, until it or the service goes; the hub locks what waits for it."""

    def __init__(self, hub: EventHub, by: Requester, asked: EventsQuery, next_failure: int) -> None:
        """``by`` reads the events of its client; of all clients if it names none."""
        super().__init__(hub.stream(self), media_type="text/event-stream")
        self.by = by
        self.asked = asked
        self.next_failure = next_failure
        """Number of the first failure that it was not told."""
        self.news: dict[tuple[str, ManagerKey], OfGroup] = {}
        """Unread events by kind and manager: of commits the newest, and stops after it."""
        self.closed = False
        self.event = asyncio.Event()
        """Set when there may be something to read."""
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self.woken = False
        """True if ``event`` is set, or about to be, since the last read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.unsubscribe(self)

    def wants(self, key: ManagerKey, client: str | None) -> bool:
        return (
            self.asked.group in {None, key.group}
            and (self.by.caller is None or self.by.client == client)
            and self.by.sees(key.group, key.topic)
        )

    def tell(self, kind: str, key: ManagerKey, event: OfGroup, limit: int) -> None:
        """Keep an event; with more than ``limit`` the stream ends."""
        if self.closed:
            return
        if kind == "committed":
            self.news.pop(("stopped", key), None)
        self.news[kind, key] = event
        if len(self.news) > limit:
            log.warning("event_reader_too_slow", client=self.by.client, group=self.asked.group)
            self.close()
        self.wake()

    def wake(self) -> None:
        """Have the stream read, once for all that comes until it does; for any thread."""
        if not self.woken:
            self.woken = True
            with contextlib.suppress(RuntimeError):  # a closed loop has no readers
                self._loop.call_soon_threadsafe(self.event.set)

    def close(self) -> None:
        """End the stream at its next turn; a reader that hangs may never take another."""
        self.closed = True
        self.news.clear()
        self.wake()


def _event(name: str, data: msgspec.Struct | dict[str, object]) -> bytes:
    # JSON holds no line break, so one data line is enough.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode(data))


@dataclass(eq=False)
class EventHub:
    """The event streams, which are told of commits, failures and stops by any thread.

    Failures are numbered from the wall clock's time on, so that a reader that comes back after a
    restart is not taken for one that is up to date.
    """

    factory: Factory
    clock: Clock
    wall: Callable[[], float]
    """The wall clock."""
    streams: int
    """The limit of readers."""
    managers: int
    """The limit of managers."""
    share: Callable[[str, int], int] = lambda _identity, limit: limit
    """Returns how much of a limit an identity may use."""
    _repeats: RepeatLimiter = field(init=False, default_factory=RepeatLimiter)
    _lock: Lock = field(init=False, default_factory=Lock)
    _failures: deque[FailureEvent] = field(
        init=False, default_factory=lambda: deque(maxlen=FAILURES_KEPT)
    )
    _readers: tuple[EventStream, ...] = field(init=False, default=())
    _by_client: dict[str | None, list[EventStream]] = field(init=False, default_factory=dict)
    """The readers of commits and stops, by the client of these; "" is for all clients'."""
    _closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._first_number = self._number = int(self.wall() * 1_000_000)
        self._news_limit = 2 * self.managers + NEWS_KEPT

    # On the managers' threads

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        if self._readers:
            for key, offset in offsets.items():
                self._publish("committed", key, CommittedEntry(*key, *offset))

    def stopped(self, key: ManagerKey) -> None:
        self._publish("stopped", key, OfGroup(*key))

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Tell readers; log one failure of each group and code once in a while."""
        client = self._owner(key)
        with self._lock:
            self._failures.append(FailureEvent(self._number, key, client, self.wall(), error))
            self._number += 1
            for reader in self._readers:
                reader.wake()
        suppressed = self._repeats.suppressed((key.group, error.code), self.clock.now())
        if suppressed is not None:
            commit_log.warning(
                _log_event(error),
                **key._asdict(),
                code=error.code,
                error=str(error),
                not_shown_before=suppressed,
            )

    def _publish(self, kind: str, key: ManagerKey, event: OfGroup) -> None:
        if self._readers:
            client = self._owner(key)
            with self._lock:
                for name in (client, ""):
                    for reader in self._by_client.get(name, ()):
                        if reader.wants(key, client):
                            reader.tell(kind, key, event, self._news_limit)

    def _owner(self, key: ManagerKey) -> str | None:
        handle = self.factory.get(key)
        return None if handle is None else handle.owner

    # On the event loop

    @property
    def newest(self) -> int:
        """Number of the newest failure; whoever reads from here on misses none that comes."""
        return self._number - 1

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    @operation(
        "GET", "/v1/events", EventsQuery, needs=names_in("group"), media_type="text/event-stream"
    )
    async def events(self, by: Requester, asked: EventsQuery) -> EventStream:
        """Server-sent events: committed, failed, stopped, dropped.

        Raises OverloadedError if too many streams are open, of all or of one client.
        """
        if len(self._readers) >= self.streams:
            raise OverloadedError(
                f"{self.streams} event streams are open, the limit (limits.event_streams); "
                "close some, or raise it"
            )
        limit = self.streams
        share = self.share(by.identity, limit) if by.identity else max(SHARE, limit // 4)
        if sum(each.by.who == by.who for each in self._readers) >= share:
            whose = by.who or "clients without a name"
            raise OverloadedError(f"{share} event streams of {whose} are open; close some")
        with self._lock:
            number = self._number if asked.after is None else asked.after + 1
            # An earlier process took its failures along; its clock may have been ahead of ours.
            if not self._first_number <= number <= self._number:
                number = self._number - len(self._failures)
            reader = EventStream(self, by, asked, number)
            reader.closed = self._closed
            self._set_readers((*self._readers, reader))
        return reader

    def unsubscribe(self, reader: EventStream) -> None:
        with self._lock:
            self._set_readers(tuple(each for each in self._readers if each is not reader))
            reader.close()

    def _set_readers(self, readers: tuple[EventStream, ...]) -> None:
        self._readers, self._by_client = readers, {}
        for each in readers:
            if not each.asked.only:
                self._by_client.setdefault(each.by.client, []).append(each)

    def sweep(self) -> None:
        """End the streams whose token, certificate or identity has ended; call it every second."""
        for reader in self._readers:
            if not reader.by.is_current():
                log.info("event_stream_ended", identity=reader.by.identity, client=reader.by.client)
                self.unsubscribe(reader)

    def take(self, reader: EventStream) -> list[bytes]:
        """Return up to a batch of events, encoded; empty when nothing waits."""
        events: list[bytes] = []
        with self._lock:
            reader.woken = False
            oldest = self._number - len(self._failures)
            dropped = max(0, oldest - reader.next_failure)
            reader.next_failure += dropped
            failures = list(islice(self._failures, reader.next_failure - oldest, None))
            news = [(each, reader.news.pop(each)) for each in list(islice(reader.news, BATCH))]
        if dropped:
            events.append(_event("dropped", {"count": dropped}))
        for failure in failures:
            if len(events) >= BATCH:
                break
            reader.next_failure = failure.number + 1
            if reader.wants(failure.key, failure.client):
                error = error_body(failure.error)
                data = {**failure.key._asdict(), "at": failure.at_s, "error": error}
                events.append(b"id: %d\n" % failure.number + _event("failed", data))
        return events + [_event(kind, each) for (kind, _), each in news]

    async def stream(self, reader: EventStream) -> AsyncIterator[bytes]:
        """Yield the reader's events, until it goes or the service stops."""
        # At once: the reader then knows that it misses nothing from here on.
        yield b": connected\n\n"
        managers = [] if reader.asked.only else self.factory.managers(reader.asked.group)
        keys = [each.key for each in managers if reader.wants(each.key, each.owner)]
        for start in range(0, len(keys), BATCH):
            for key in keys[start : start + BATCH]:
                self._present(reader, key)
            yield b"".join(self.take(reader))
        while not reader.closed:
            reader.event.clear()
            events = self.take(reader)
            if events:
                yield b"".join(events)
                continue
            try:
                await asyncio.wait_for(reader.event.wait(), KEEP_ALIVE_S)
            except asyncio.TimeoutError:
                yield b": keep-alive\n\n"

    def _present(self, reader: EventStream, key: ManagerKey) -> None:
        """Tell what is committed now by a manager that has committed something."""
        handle = self.factory.get(key)
        status = None if handle is None else handle.status()
        # An initial offset is not a commit.
        if status is None or status.committed is None or status.committed_at is None:
            return
        with self._lock:
            if ("committed", key) not in reader.news:  # else that is as new, or newer
                entry = CommittedEntry(*key, *status.committed)
                reader.tell("committed", key, entry, self._news_limit)

    def close(self) -> None:
        """End all streams, and those that come later."""
        with self._lock:
            self._closed = True
            for reader in self._readers:
                reader.close()


def _log_event(error: OffsetManagerError) -> str:
    if isinstance(error, OffsetNoticeError):
        return error.code.lower()
    names = {
        OffsetFetchError: "fetch_failed",
        OffsetRegressionError: "offset_regressed",
        ClientExistsError: "client_refused",
    }
    return names.get(type(error), "commit_failed")
