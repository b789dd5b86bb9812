"""A group consumer with an ack for each message, in any order, that survives a restart."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsetmgr.consumer.ack_messages import AckMessage
from offsetmgr.consumer.ack_work import AckSettings, AckWork
from offsetmgr.consumer.base import MessageReader
from offsetmgr.consumer.pool import OrderedBy, Pool
from offsetmgr.consumer.retry import RetryProducer
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.consumer.ack_messages import PartitionProgress
    from offsetmgr.consumer.settings import ConsumerSettings
    from offsetmgr.consumer.topics import Subscription
    from offsetmgr.consumer.work import Work
    from offsetmgr.types import TopicPartition


class AckConsumer(MessageReader[AckMessage]):
    """A consumer that commits what is acknowledged, and nothing else.

    Parameters are those of BaseConsumer.  The lowest offset that is not acknowledged is committed,
    with the acknowledged ranges above it in the commit's metadata, so that a restart delivers again
    only what was not acknowledged.  Metadata of other programs is ignored, and reported.

    ``include`` never matches retry and dead-letter topics of this consumer.

    Read messages in one thread; all other methods may be called in any thread.

    Raises KafkaRequestError if the topics of ``settings.retry`` cannot be created.
    """

    _SETTINGS = AckSettings
    _work: AckWork
    _pool: Pool | None = None

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
    ) -> tuple[Work, Subscription]:
        policy, retries = settings.retry, None
        name = re.escape((policy and policy.name) or group)
        topics = replace(topics, own=rf"{name}\.(retry\.[0-9]+|dlq)")
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
            topics = replace(topics, retries=list(retries.topics))
        self._work = AckWork(settings, str(kafka.get("bootstrap.servers", "")), retries)
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
        self._pool = Pool(self.name, self._work, self._take, handler, workers, ordered_by)
        self._pool.run()
        self.close()

    def _take(self, timeout_s: float) -> AckMessage | None:
        return self._poll(timeout_s, self._work.next_queued)

    def commit_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        message.claim.receiver.acknowledge_up_to(message)

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
        ``run`` this returns at once, and ``run`` does it.  Twice is harmless.
        """
        self._work.closing = True
        if self.is_called_by_handler:
            self._member.ended.set()
        elif not self._member.defers(self.close) and self._work.begin_closing():
            dwell_s = self._work.settings.dwell_s
            with ExitStack() as rest:  # whatever a signal's handler raises here
                if self._work.retries is not None:
                    rest.callback(self._work.retries.close, dwell_s)
                rest.callback(super().close)
                rest.callback(self._work.abandon)
                self._work.wait_until_done(dwell_s)

    @property
    def is_called_by_handler(self) -> bool:
        """True in the threads of ``run`` that call its handler."""
        return self._pool is not None and self._pool.has_current_thread

    def _next(self) -> AckMessage | None:
        return self._work.next()

    def _fill(self, timeout_s: float) -> None:
        self._work.fill(timeout_s)
