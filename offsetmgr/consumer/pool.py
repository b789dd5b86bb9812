"""Handlers of messages in a pool of threads, in order where that is asked for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from offsetmgr.errors import InvalidValueError
from offsetmgr.types import check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from offsetmgr.consumer.acks import AckConsumer
    from offsetmgr.consumer.deliveries import AckMessage

PROGRESS_S: Final = 30.0
"""Interval of the progress in the log."""

log = logging.getLogger("offsetmgr.consumer")


class Pool:
    """Threads that handle messages; those of one key after each other."""

    def __init__(
        self,
        handler: Callable[[AckMessage], object],
        begin: Callable[[AckMessage], bool],
        workers: int,
        ordered_by: Literal["partition", "key"] | None,
    ) -> None:
        """``begin`` is asked before each message.  Raises InvalidValueError."""
        check_count(workers, "workers")
        if ordered_by not in {"partition", "key", None}:
            fix = 'give "partition", "key" or None'
            raise InvalidValueError("ordered_by", ordered_by, "is unknown", fix)
        self._handler = handler
        self._begin = begin
        self._ordered_by = ordered_by
        self._queue: queue.SimpleQueue[tuple[Hashable, AckMessage] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        self._unfinished = 0
        self._behind: dict[Hashable, deque[AckMessage]] = {}
        """Messages that wait for another one of their key that is queued or in work."""
        self._stopping = False
        self._handled = 0
        self._failed = 0
        numbers = range(workers)
        self._threads = [threading.Thread(target=self._work, name=f"handler-{n}") for n in numbers]

    def run(
        self, consumer: AckConsumer, take: Callable[[], AckMessage | None], dwell_s: float
    ) -> None:
        """Handle what ``take`` returns until the consumer is closed."""
        began_s = told_s = time.monotonic()
        told = 0
        for thread in self._threads:
            thread.start()
        try:
            while not consumer.closed:
                message = take()
                if message is not None:
                    self._put(message, _order_key(message, self._ordered_by))
                now_s = time.monotonic()
                if now_s - told_s >= PROGRESS_S:
                    self._tell(consumer, "", (self._handled - told) / (now_s - told_s))
                    told_s, told = now_s, self._handled
        finally:
            self._stop(dwell_s)
            took_s = max(0.001, time.monotonic() - began_s)
            self._tell(consumer, "stopped after ", self._handled / took_s)

    def _tell(self, consumer: AckConsumer, what: str, rate: float) -> None:
        log.info(
            "%s: %s%d handled, %d of them failed, %.1f/s, %d pending",
            consumer.name, what, self._handled, self._failed, rate, consumer.pending,
        )  # fmt: skip

    def _put(self, message: AckMessage, key: Hashable) -> None:
        """Have a message handled; None as its key is for no order."""
        with self._lock:
            self._unfinished += 1
            if key is not None:
                behind = self._behind.get(key)
                if behind is not None:
                    behind.append(message)
                    return
                self._behind[key] = deque()
        self._queue.put((key, message))

    def _stop(self, timeout_s: float) -> None:
        """Wait ``timeout_s`` for all handlers, then for those that have begun."""
        with self._lock:
            self._done.wait_for(lambda: not self._unfinished, timeout_s)
        self._stopping = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopping:
            key, message = item
            handled = self._begin(message)
            failed = handled and not self._handle(message)
            with self._lock:
                self._handled += handled
                self._failed += failed
                self._unfinished -= 1
                if not self._unfinished:
                    self._done.notify_all()
                if key is not None:
                    behind = self._behind[key]
                    if behind:
                        self._queue.put((key, behind.popleft()))
                    else:
                        del self._behind[key]

    def _handle(self, message: AckMessage) -> bool:
        """Return True if the handler succeeds."""
        try:
            self._handler(message)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the message failed
            log.warning("%r failed: %s: %s", message, type(error).__name__, error)
            message.nack(error=error)
            return False
        message.ack()
        return True


def _order_key(message: AckMessage, ordered_by: str | None) -> Hashable:
    if ordered_by == "partition":
        return message.topic, message.partition
    if ordered_by == "key" and message.key is not None:
        return message.topic, message.key
    return None
