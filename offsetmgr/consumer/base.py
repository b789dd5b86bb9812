"""The methods that consumers share, and ways to read messages one by one or in batches."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from offsetmgr.consumer.client import PREFETCH
from offsetmgr.consumer.member import Member
from offsetmgr.consumer.settings import (
    ConsumerSettings,
    ConsumerStats,
    Notification,
    by_topic,
    drain,
    kafka_settings,
)
from offsetmgr.consumer.topics import Subscription
from offsetmgr.consumer.work import ending
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.clients import Closing
from offsetmgr.kafka.config import FORCED, checked_config
from offsetmgr.stores import OffsetStore, open_store
from offsetmgr.stores.base import ManagerStore
from offsetmgr.stores.broker import BrokerOffsetStore
from offsetmgr.types import (
    TopicPartition,
    check_count,
    check_group,
    check_list,
    check_timeout,
    check_topic,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.consumer.work import Work
    from offsetmgr.errors import OffsetManagerError

LONG_S: Final = 1.0
"""Longest wait in a thread next to an event loop, so that a closed consumer is noticed."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class BaseConsumer(Closing):
    """A reader of Kafka that commits what its application has processed.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings.  ``topics`` are names,
    ``include`` is a regular expression of further topics, ``exclude`` one of topics that it leaves
    out; both match anywhere in a name, Kafka's own topics only if the pattern has their ``__``.
    Topics are shared with the other members of the group.  ``partitions`` in their place are read
    by this consumer alone, without membership.

    ``store`` keeps the offsets: the group in Kafka by default, else an OffsetStore, or what
    ``open_store`` takes, such as the URL of a database.  For ``partitions`` it may be a
    LocalOffsets or OffsetClient: its managers commit.  A partition is read once the store has
    given it to this consumer; failures before are retried, and reported by ``errors``.

    In the child of a fork reads and commits raise ManagerStoppedError.

    Raises InvalidValueError for a bad name or setting.  With ``partitions`` also
    ManagerExistsError where another consumer has one of them, and other OffsetManagerErrors where
    the committed offsets cannot be read.
    """

    _SETTINGS: type[ConsumerSettings] = ConsumerSettings
    _starts: Mapping[TopicPartition, int] = MappingProxyType({})
    """Offsets to begin at if nothing is committed, librdkafka's negative ones among them; else as
    ``missing`` says."""

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str] = (),
        *,
        include: str | None = None,
        exclude: str | None = None,
        partitions: Iterable[tuple[str, int]] = (),
        store: str | Mapping[str, object] | OffsetStore | Offsets | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._process = os.getpid()
        config = _checked_kafka(kafka)
        names = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        subscription = Subscription(names, include, exclude)
        chosen = check_topic_partitions(partitions)
        given = None if store is None else open_store(store)
        own_url = f"kafka://{config.get('bootstrap.servers')}"
        is_own = isinstance(given, BrokerOffsetStore) and given.url == own_url
        self._opened = ExitStack()
        if given is not None and given is not store:
            self._opened.callback(given.close)
        try:
            _check_assignment(subscription, chosen, given)
            settings = self._checked(config, group, settings)
            work, read = self._begin(subscription, kafka=config, group=group, settings=settings)
            used = None if is_own else given
            options: dict[str, Any] = {"partitions": chosen, "store": used, "starts": self._starts}
            self._member = Member(config, group, work, settings, read, **options)
        except BaseException:
            self._opened.close()
            raise

    @classmethod
    def _checked(
        cls, kafka: Mapping[str, Any], group: str, settings: ConsumerSettings | None
    ) -> ConsumerSettings:
        """Return the settings, after all checks that need no Kafka.  Raises InvalidValueError."""
        settings = cls._SETTINGS() if settings is None else settings
        if not isinstance(settings, cls._SETTINGS):
            hint = f"give {cls._SETTINGS.__name__}(...)"
            raise InvalidValueError("settings", settings, "are those of another consumer", hint)
        kafka_settings(kafka, check_group(group), settings)
        return settings

    @abstractmethod
    def _begin(
        self, subscription: Subscription, *, kafka: Mapping[str, Any], group: str, settings: Any
    ) -> tuple[Work[Any], Subscription]:
        """Return what handles the messages, and the topics to read: none if partitions are read."""

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._member.group

    @property
    def closed(self) -> bool:
        """True once no more messages come: it is closed, or has ended with an error."""
        return self._member.ended.is_set()

    def commit_offsets(self) -> None:
        """Commit what is processed by now, and wait for it.

        While the coordinator of the group is away, that takes up to librdkafka's
        ``session.timeout.ms``, 45 s by default.  Raises OffsetManagerError where it is refused; it
        is committed later then.
        """
        self.check_process()
        self._member.commit()

    def subscriptions(self) -> dict[str, list[int]]:
        """Return the claimed partitions by topic."""
        return by_topic(self._member.assigned)

    def notifications(self) -> list[Notification]:
        """Return the steps of rebalances since the last call; at most the newest 100."""
        return drain(self._member.notifications)

    def high_water_marks(self) -> dict[str, dict[int, int]]:
        """Return the ends of the claimed partitions by topic, as fetches saw them 0.1 s ago."""
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), end in self._member.high_watermarks.items():
            if (topic, partition) in self._member.assigned:
                found.setdefault(topic, {})[partition] = end
        return found

    def errors(self) -> list[OffsetManagerError]:
        """Return the errors since the last call, each cause once in 30 s; at most the newest 100.

        They have a topic, a partition and an offset where they are about one.
        """
        return drain(self._member.errors)

    def stats(self) -> ConsumerStats:
        """Return the figures since the consumer was made."""
        return replace(self._member.stats)

    def close(self) -> None:
        """Commit what is processed and leave the group; twice is harmless.

        In a callback of librdkafka's, or a signal's handler during a call, this returns at once,
        and the next poll or the consumer's own thread does it.  In the child of a fork it does
        nothing.
        """
        if self.is_forked or self._member.defers(self.close):
            return
        try:
            self._member.close()
        finally:
            self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


class _Stream(Protocol[_T]):
    """Messages that wait to be handed out."""

    def count(self) -> int: ...
    def next(self) -> _T | None: ...
    def take(self, most: int) -> list[_T]: ...


class MessageReader(BaseConsumer, Generic[_T]):
    """A consumer that hands out its messages as one stream; they are read by one thread."""

    _work: _Stream[_T]
    _next: Callable[[], _T | None]
    """The method of ``_work``."""

    def _fill(self, timeout_s: float) -> None:
        """Receive messages for at most so long; returns at once where the consumer is closed."""
        self._member.wait_for(PREFETCH, min(LONG_S, timeout_s))

    def _fill_batch(self, _most: int, timeout_s: float) -> None:
        self._fill(timeout_s)

    def __iter__(self) -> Iterator[_T]:
        """Iterate over the messages until the consumer is closed.

        A message is in work until the next one is asked for.  Raises KafkaRequestError where Kafka
        refuses this consumer for good.
        """
        while (message := self._ending(self._read, None)) is not None:
            yield message
        self._member.raise_failure()

    async def __aiter__(self) -> AsyncIterator[_T]:
        """Iterate without blocking the event loop."""
        while (message := self._ending(self._next)) is not None or not self.closed:
            if message is not None:
                yield message
            else:
                await asyncio.to_thread(self._fill, LONG_S)
        self._member.raise_failure()

    def poll(self, timeout: float | None = 1.0) -> _T | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.  Raises as the iteration.
        """
        check_timeout(timeout, forever=True)
        message = self._ending(self._read, timeout)
        if message is None and self.closed:
            self._member.raise_failure()
        return message

    def batches(self, max_records: int = 500, max_wait_s: float = 1.0) -> Iterator[list[_T]]:
        """Iterate over lists of up to ``max_records`` messages until the consumer is closed.

        A batch is handed out when it is full, or ``max_wait_s`` after its first message came; it
        is in work until the next one is asked for.  Raises InvalidValueError, and as the iteration.
        """
        check_count(max_records, "max_records")
        check_timeout(max_wait_s, "max_wait_s")
        while not self.closed:
            if batch := self._ending(self._next_batch, max_records, max_wait_s):
                yield batch
        self._member.raise_failure()

    def _ending(self, read: Callable[..., _R], *arguments: Any) -> _R:
        """Return what ``read`` returns; the consumer ends where it raises."""
        self.check_process()
        return ending(self._member.ended, read, *arguments)

    def _read(self, timeout: float | None) -> _T | None:
        deadline: Deadline | None = None
        while (message := self._next()) is None and not self.closed:
            if deadline is None:
                deadline = Deadline(timeout, forever=True)
            elif deadline.over:
                break
            self._fill(deadline.left_s)
        return message

    def _next_batch(self, max_records: int, max_wait_s: float) -> list[_T]:
        self._work.take(0)  # the application is done with the batch before
        deadline: Deadline | None = None
        while (count := self._work.count()) < max_records and not self.closed:
            if count and deadline is None:
                deadline = Deadline(max_wait_s)
            if deadline is not None and deadline.over:
                break
            left_s = LONG_S if deadline is None else min(LONG_S, deadline.left_s)
            self._fill_batch(max_records - count, left_s)
        return self._work.take(max_records)


def _checked_kafka(kafka: object) -> dict[str, Any]:
    """Return librdkafka's settings.  Raises InvalidValueError."""
    if not isinstance(kafka, Mapping):
        return checked_config(kafka)
    others = {name: value for name, value in kafka.items() if name not in FORCED}
    return {**kafka, **checked_config(others)}


def _check_assignment(
    topics: Subscription, partitions: Sequence[TopicPartition], store: OffsetStore | None
) -> None:
    if bool(topics.names or topics.include) == bool(partitions):
        problem = "are given with topics" if partitions else "are not given, nor topics"
        hint = 'give topics, such as ["orders"], or partitions, such as [("orders", 0)]'
        raise InvalidValueError("partitions", partitions, problem, hint)
    if not partitions and isinstance(store, ManagerStore):
        problem = "commits only to groups without members"
        hint = "give partitions in place of topics, or leave it out"
        raise InvalidValueError("store", store.url, problem, hint)
