"""A group consumer with an ack for each message, in any order, and its pool of workers.

The pool handles messages of one key or partition one after the other.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from typing import TYPE_CHECKING, Any, Final, get_args

from offsetmgr.consumer.ack_work import (
    AckMessage,
    AckSettings,
    AckWork,
    OrderedBy,
    acknowledge_up_to,
)
from offsetmgr.consumer.base import MessageReader
from offsetmgr.consumer.client import SLICE_S
from offsetmgr.consumer.retry import RetryProducer
from offsetmgr.consumer.settings import log
from offsetmgr.errors import InvalidValueError
from offsetmgr.text import error_text, visible
from offsetmgr.types import check_callable, check_choice, check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from offsetmgr.consumer.ack_work import PartitionProgress
    from offsetmgr.consumer.settings import ConsumerSettings
    from offsetmgr.consumer.topics import Subscription
    from offsetmgr.consumer.work import Work
    from offsetmgr.types import TopicPartition

_ERROR_CHARS: Final = 500  # longest text of a failure in the log

_MOST_WORKERS: Final = 10_000  # threads of a pool

_PROGRESS_S: Final = 30.0  # interval of the pool's progress in the log


def check_pool(handler: object, workers: int, ordered_by: str | None) -> None:
    """Raise InvalidValueError."""
    check_callable(handler.func if isinstance(handler, partial) else handler, "handler")
    if check_count(workers, "workers") > _MOST_WORKERS:
        hint = f"give at most {_MOST_WORKERS}"
        raise InvalidValueError("workers", workers, "is too large", hint)
    check_choice(ordered_by, "ordered_by", (*get_args(OrderedBy), None))


class _Pool:
    """Threads that handle what a consumer reads."""

    def __init__(
        self, name: str, work: AckWork, handler: Callable[[AckMessage], object], workers: int
    ) -> None:
        self._name = name
        self._ack_work = work
        self._handler = handler
        self._lock = threading.RLock()
        self._handled = 0
        self._failed = 0
        # A handler that hangs must not keep the process from ending.
        self.threads = [
            threading.Thread(target=self._work, name=f"handler-{number}", daemon=True)
            for number in range(workers)
        ]

    def run(self, fill: Callable[[float], object]) -> None:
        """Handle messages until the consumer ends; what has begun has ``dwell_s`` to finish.

        ``fill`` reads messages for at most so many seconds.
        """
        began_s = reported_s = time.monotonic()
        reported = 0
        try:
            for thread in self.threads:
                thread.start()
            with sigterm_raises() as raise_again:
                while not (self._ack_work.closing or self._ack_work.member.ended.is_set()):
                    fill(SLICE_S)
                    raise_again()
                    now_s = time.monotonic()
                    if now_s - reported_s >= _PROGRESS_S:
                        self._report("", (self._handled - reported) / (now_s - reported_s))
                        reported_s, reported = now_s, self._handled
            if not self._ack_work.closing:
                self._ack_work.member.raise_failure()
        except BaseException:
            self._ack_work.member.ended.set()
            raise
        finally:
            self._stop()
            took_s = max(0.001, time.monotonic() - began_s)
            self._report("stopped after ", self._handled / took_s)

    def _stop(self) -> None:
        deadline = time.monotonic() + self._ack_work.settings.dwell_s
        self._ack_work.stop(len(self.threads))
        for thread in self.threads:
            if thread.ident is not None:  # else there was no room for it
                thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self.threads):
            self._ack_work.abandon()

    def _report(self, what: str, rate: float) -> None:
        text = "%s: %s%d handled, %d of them failed, %.1f/s, %d pending"
        pending = self._ack_work.pending
        log.info(text, self._name, what, self._handled, self._failed, rate, pending)

    def _work(self) -> None:
        while (message := self._ack_work.next(forever=True)) is not None:
            succeeded = False
            try:
                succeeded = self._handle(message)
            except BaseException:  # noqa: BLE001 -- of the application's classes
                log.exception("%s: handling %r has failed, and goes on", self._name, message)
            with self._lock:
                self._handled += 1
                self._failed += not succeeded
            self._ack_work.end_turn(message)

    def _handle(self, message: AckMessage) -> bool:
        """Return True if the handler succeeds."""
        try:
            result = self._call(message)
            is_later = isawaitable(result) or isgenerator(result) or isasyncgen(result)
            if is_later or isinstance(result, Future):
                kind = type(result).__name__
                raise TypeError(f"the handler returned a {kind}, which nobody waits for")  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001 -- whatever it is, the message failed
            log.warning("%r failed: %s", message, visible(error_text(error), _ERROR_CHARS))
            message.nack(error=error)
        else:
            if not message.nacked:
                message.ack()
        return not message.nacked

    def _call(self, message: AckMessage) -> object:
        """Call the handler; a copy of the process that it has forked ends with it."""
        process, status = os.getpid(), 1
        try:
            result = self._handler(message)
            status = 0
        except SystemExit as error:
            status = int(bool(error.code))
            raise
        finally:
            if os.getpid() != process:
                os._exit(status)
        return result


@contextmanager
def sigterm_raises() -> Iterator[Callable[[], None]]:
    """Let SIGTERM raise SystemExit, in the main thread of a program that does not handle it.

    Yields a function that raises it again: the application's code may catch it where it interrupts.
    """
    statuses: list[int] = []

    def raise_status() -> None:
        if statuses:
            raise SystemExit(statuses[0])

    def caught(number: int, _: object) -> None:
        statuses.append(128 + number)
        raise_status()

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield raise_status
        return
    signal.signal(signal.SIGTERM, caught)
    try:
        yield raise_status
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class AckConsumer(MessageReader[AckMessage]):
    """A consumer that commits what is acknowledged, and nothing else.

    Parameters are those of BaseConsumer.  The lowest offset that is not acknowledged is committed,
    with the acknowledged ranges above it in the commit's metadata, so that a restart delivers again
    only what was not acknowledged.  Metadata of other programs is ignored, and reported.

    ``include`` never matches retry and dead-letter topics of this consumer, and those of other
    groups only if the pattern has their ``retry`` or ``dlq``.

    Read messages in one thread; all other methods may be called in any thread.

    Raises KafkaRequestError if the topics of ``settings.retry`` cannot be created.
    """

    _SETTINGS = AckSettings
    _work: AckWork
    _pool: _Pool | None = None

    @classmethod
    def _checked(
        cls, kafka: Mapping[str, Any], group: str, settings: ConsumerSettings | None
    ) -> ConsumerSettings:
        checked = super()._checked(kafka, group, settings)
        if isinstance(checked, AckSettings) and checked.retry is not None:
            checked.retry.retry_topics(group)
            checked.retry.dead_letter_topic(group)
        return checked

    def _begin(
        self, topics: Subscription, *, kafka: Mapping[str, Any], group: str, settings: AckSettings
    ) -> tuple[Work[Any], Subscription]:
        policy, retries = settings.retry, None
        names = re.escape(group), re.escape((policy and policy.name) or group)
        # Two groups that read each other's would multiply a message that fails in both.
        named = re.search("retry|dlq", topics.include or "")
        owners = "|".join(names) if named else ".+"
        topics = replace(topics, own=rf"({owners})\.(retry\.[0-9]+|dlq)")
        if policy is not None:
            if not (topics.names or topics.include):
                hint = "give topics, or leave settings.retry out"
                problem = "does not go with partitions: a group shares retry topics"
                raise InvalidValueError("retry", policy, problem, hint)
            letters = policy.dead_letter_topic(group)
            if letters in topics.names:
                hint = "read dead letters in another group, or give retry another name"
                raise InvalidValueError("topics", letters, "is where its own failures go", hint)
            retries = RetryProducer(kafka, group, policy, topics.of)
            self._opened.callback(retries.producer.close, settings.dwell_s)
            topics = replace(topics, retries=list(retries.topics))
        self._work = AckWork(settings, str(kafka.get("bootstrap.servers", "")), retries)
        self._next = self._work.next
        return self._work, topics

    def run(
        self,
        handler: Callable[[AckMessage], object],
        *,
        workers: int = 8,
        ordered_by: OrderedBy | None = None,
    ) -> None:
        """Call ``handler`` for each message in ``workers`` threads, until the consumer is closed.

        A message is acknowledged when its handler returns without a ``nack``, and rejected when it
        raises, whatever it raises. With ``ordered_by`` the messages of one partition or one key are
        handled one after the other. A rejected one is handled again before the next, unless there
        are retry topics: there it comes later.

        When the consumer is closed, or a signal's handler raises, running handlers have
        ``dwell_s`` to finish, and no others begin.  Messages that are not done by then are named
        in the log and by ``errors``, and are not committed.  In the main thread SIGTERM raises
        SystemExit here, unless the program handles it itself.

        Raises InvalidValueError; KafkaRequestError where Kafka refuses this consumer for good.
        """
        check_pool(handler, workers, ordered_by)
        self.check_process()
        with self._work.lock:
            if self._pool is not None and not self.closed:
                hint = "give the first run all the workers"
                raise InvalidValueError("handler", handler, "comes while another one runs", hint)
            self._work.order_by(ordered_by)
            self._pool = _Pool(self.name, self._work, handler, workers)
        self._pool.run(self._fill)
        self.close()

    def commit_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        acknowledge_up_to(message)

    @property
    def cluster(self) -> str:
        """Bootstrap servers."""
        return self._work.cluster

    @property
    def topics(self) -> list[str]:
        """Topics that are read, but for retry topics."""
        return self._member.topics

    @property
    def pending(self) -> int:
        """Messages that are handed out or about to be, and not acknowledged."""
        return self._work.pending

    def progress(self) -> dict[TopicPartition, PartitionProgress]:
        """Return the claimed partitions, those of retry topics included, with their progress."""
        return self._work.progress()

    def close(self) -> None:
        """Wait up to ``dwell_s`` for unfinished messages, commit and leave the group.

        Those that are not done by then are named in the log and by ``errors``.  In a handler of
        ``run`` this returns at once, and ``run`` does it.  Twice is harmless.  In the child of a
        fork it does nothing.
        """
        if self.is_forked:
            return
        self._work.closing = True
        if self.is_called_by_handler:
            self._member.ended.set()
        elif not self._member.defers(self.close):
            dwell_s = self._work.settings.dwell_s
            with ExitStack() as rest:  # whatever a signal's handler raises here
                rest.callback(super().close)
                rest.callback(self._work.abandon)
                self._work.wait_until_done(dwell_s)

    @property
    def is_called_by_handler(self) -> bool:
        """True in the threads of ``run`` that call its handler."""
        return self._pool is not None and threading.current_thread() in self._pool.threads

    def _fill(self, timeout_s: float) -> None:
        self._work.fill(timeout_s)
