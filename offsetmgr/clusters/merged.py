"""One stream of messages from the consumers of several clusters.

Each cluster has a thread that makes its consumer and fills it, so that one that does not answer
holds up no other.  The application's thread takes the messages.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from offsetmgr.clusters.link import ClusterClient, close_all
from offsetmgr.errors import OffsetManagerError
from offsetmgr.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offsetmgr.clusters.link import Link

FILL_S: Final = 0.05
"""Longest wait of a cluster's thread for messages."""

CLOSE_S: Final = 10.0
"""After this time a cluster that does not answer is left to itself."""

_FULL_S: Final = 0.005
_LONG_S: Final = 1.0

_T = TypeVar("_T")
_S = TypeVar("_S", bound="Source")

log = logging.getLogger("offsetmgr.clusters")


class Source(Protocol):
    """The consumer of one cluster."""

    def fill(self) -> bool:
        """Fetch for about ``FILL_S``; False where there is no room."""

    def errors(self) -> list[OffsetManagerError]:
        """Return the errors since the last call."""

    def close(self) -> None:
        """Twice is harmless."""


class Feed(ABC, Generic[_T, _S]):
    """The messages of one cluster, and its thread."""

    def __init__(self, link: Link) -> None:
        self.link: Final = link
        self.consumer: _S | None = None
        self._orders: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed-{link.name}", daemon=True)

    @abstractmethod
    def _open(self) -> None:
        """Make the consumer.  Raises OffsetManagerError where the cluster does not answer."""

    def _fill(self, consumer: _S) -> bool:
        return consumer.fill()

    @abstractmethod
    def next(self) -> _T | None:
        """Return a message that is there already."""

    def start(self, news: threading.Event) -> None:
        """Begin; ``news`` is set where there may be messages."""
        self._news = news
        self._thread.start()

    def order(self, action: Callable[[], None]) -> Future[None]:
        """Have the thread do something between fetches."""
        done: Future[None] = Future()
        self._orders.put((action, done))
        return done

    def end(self) -> None:
        self._ended.set()
        self._close()
        if self._thread.ident is not None:
            self._thread.join()
            self._close()  # it may have made a consumer meanwhile
            self._carry_out_orders()
        self.link.close()

    def _close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._carry_out_orders()
                if self.consumer is None and self.link.up:  # else it is probed
                    self._open()
                if self.consumer is None:
                    self._ended.wait(FILL_S)
                elif not self._fill(self.consumer):
                    self._ended.wait(_FULL_S)
                self.link.probe_if_due()
            except OffsetManagerError as error:
                self.link.failed(error)
            except Exception:
                log.exception("cluster %s: reading failed, and goes on", self.link.name)
                self._ended.wait(_LONG_S)
            self._news.set()

    def _carry_out_orders(self) -> None:
        while True:
            try:
                action, done = self._orders.get_nowait()
            except Empty:
                return
            try:
                action()
            except OffsetManagerError as error:
                done.set_exception(error)
            else:
                done.set_result(None)


class MergedClient(ClusterClient, Generic[_T, _S]):
    """Takes messages of all feeds in turn; for one thread."""

    def __init__(self, feeds: Iterable[Feed[_T, _S]], close_s: float = CLOSE_S) -> None:
        self._all = list(feeds)
        self._turns = deque(self._all)
        self._close_s = close_s
        self._news = threading.Event()
        self._closed = False

    def _start(self) -> None:
        for feed in self._all:
            feed.start(self._news)

    def _next(self, timeout: float | None) -> _T | None:
        """Return the next message; None where none came within ``timeout`` s, or once closed."""
        deadline: float | None = None
        while not self._closed:
            for _ in self._all:
                self._turns.rotate(-1)
                message = self._turns[0].next()
                if message is not None:
                    return message
            now_s = time.monotonic()
            if deadline is None:
                deadline = now_s + check_timeout(timeout, forever=True)
            if now_s >= deadline:
                break
            self._news.wait(min(deadline - now_s, _LONG_S))
            self._news.clear()
        return None

    @property
    def closed(self) -> bool:
        return self._closed

    def errors(self) -> list[OffsetManagerError]:
        """Return the errors since the last call; at most the newest 100 of each cluster."""
        found: list[OffsetManagerError] = []
        for feed in self._all:
            found += feed.link.take_errors()
            found += feed.consumer.errors() if feed.consumer is not None else []
        return found

    def close(self) -> None:
        """Commit and end; twice is harmless.

        A cluster that does not answer is left to itself after 10 s.
        """
        self._closed = True
        self._news.set()
        close_all({feed.link.name: feed.end for feed in self._all}, self._close_s)
