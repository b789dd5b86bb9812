"""Handlers of messages in a pool of threads, in order where that is asked for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from offsetmgr.consumer.acks import AckConsumer
    from offsetmgr.consumer.deliveries import AckMessage

PROGRESS_S: Final = 30.0
"""Interval of the progress in the log."""

_POLL_S: Final = 1.0

log = logging.getLogger("offsetmgr.consumer")


class _Pool:
    """Threads that handle messages; those of one key after each other."""

    def __init__(self, handler: Callable[[AckMessage], object], workers: int) -> None:
        self._handler = handler
        self._queue: queue.SimpleQueue[tuple[Hashable, AckMessage] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        self._unfinished = 0
        self._behind: dict[Hashable, deque[AckMessage]] = {}
        """Messages that wait for another one of their key that is queued or in work."""
        self._stopping = False
        self.handled = 0
        self.failed = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"handler-{number}")
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, message: AckMessage, key: Hashable) -> None:
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

    def stop(self, timeout_s: float) -> None:
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
            failed = 0
            try:
                self._handler(message)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the message failed
                failed = 1
                log.warning("%r failed: %s: %s", message, type(error).__name__, error)
                message.nack(error=error)
            else:
                message.ack()
            with self._lock:
                self.handled += 1
                self.failed += failed
                self._unfinished -= 1
                if not self._unfinished:
                    self._done.notify_all()
                if key is not None:
                    behind = self._behind[key]
                    if behind:
                        self._queue.put((key, behind.popleft()))
                    else:
                        del self._behind[key]


def run_pool(
    consumer: AckConsumer,
    handler: Callable[[AckMessage], object],
    workers: int,
    ordered_by: Literal["partition", "key"] | None,
    dwell_s: float,
) -> None:
    """Handle messages until the consumer is closed.  Raises InvalidValueError."""
    if type(workers) is not int or workers < 1:
        raise InvalidValueError("workers", workers, "is not possible", "give a number from 1 on")
    if ordered_by not in {"partition", "key", None}:
        fix = 'give "partition", "key" or None'
        raise InvalidValueError("ordered_by", ordered_by, "is unknown", fix)
    pool = _Pool(handler, workers)
    began_s = told_s = time.monotonic()
    told = 0
    try:
        while not consumer.closed:
            message = consumer.poll(timeout=_POLL_S)
            if message is not None:
                pool.put(message, _order_key(message, ordered_by))
            now_s = time.monotonic()
            if now_s - told_s >= PROGRESS_S:
                rate = (pool.handled - told) / (now_s - told_s)
                told_s, told = now_s, pool.handled
                log.info(
                    "%s: %d handled, %d of them failed, %.1f/s, %d pending",
                    consumer.name, pool.handled, pool.failed, rate, consumer.pending,
                )  # fmt: skip
    finally:
        pool.stop(dwell_s)
        rate = pool.handled / max(0.001, time.monotonic() - began_s)
        log.info(
            "%s: stopped after %d handled, %d of them failed, %.1f/s",
            consumer.name, pool.handled, pool.failed, rate,
        )  # fmt: skip


def _order_key(message: AckMessage, ordered_by: str | None) -> Hashable:
    if ordered_by == "partition":
        return message.topic, message.partition
    if ordered_by == "key" and message.key is not None:
        return message.topic, message.key
    return None
