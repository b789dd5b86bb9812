"""Parts that all consumers have: topics, errors, closing, and ways to read messages."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from offsetmgr.consumer.membership import ConsumerSettings, MemberCallbacks, Membership
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import (
    check_count,
    check_group,
    check_list,
    check_timeout,
    check_topic,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.consumer.keepers import OffsetKeeper
    from offsetmgr.errors import OffsetManagerError

PREFETCH: Final = 500
"""Messages taken from librdkafka at once where they are handed out one by one."""

UNREAD: Final = 100
"""Notifications and errors kept until they are read; the oldest are dropped."""

_LONG_S: Final = 1.0
"""Longest wait in a thread beside an event loop, so that a closed consumer is noticed."""

_T = TypeVar("_T")


class BaseConsumer(ABC):
    """A reader of Kafka that commits what its application has processed.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings.  ``topics`` are names,
    ``whitelist`` is a regular expression of further topics, ``blacklist`` one of topics to leave
    out; they are shared with the other members of the group.  ``partitions`` in their place are
    read by this consumer alone, without membership.

    ``offsets`` says where offsets are kept: in the group in Kafka by default, or in a store of
    offsets.  For ``partitions`` it may be a LocalOffsets or OffsetClient: its managers commit.

    Raises InvalidValueError for a bad name or setting.  With ``partitions`` also
    ManagerExistsError where another consumer has one of them, and other OffsetManagerErrors where
    the committed offsets cannot be read.
    """

    _SETTINGS: type[ConsumerSettings] = ConsumerSettings

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str] = (),
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        partitions: Iterable[tuple[str, int]] = (),
        offsets: OffsetKeeper | Offsets | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._group = check_group(group)
        self._config = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        if blacklist is not None:
            self._config["topic.blacklist"] = _pattern(blacklist, "blacklist")
        self._topics = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        if whitelist is not None:
            self._topics.append(_pattern(whitelist, "whitelist"))
        self._partitions = check_topic_partitions(partitions)
        self._errors: deque[OffsetManagerError] = deque(maxlen=UNREAD)
        self._settings = settings or self._SETTINGS()
        self._prepare()
        self._membership = Membership(
            self._config,
            group,
            self._topics_to_read(),
            self._callbacks(),
            self._settings,
            partitions=self._partitions,
            offsets=offsets,
        )
        self._membership.start()

    @abstractmethod
    def _prepare(self) -> None:
        """Get ready for the first rebalance and the first message."""

    @abstractmethod
    def _callbacks(self) -> MemberCallbacks: ...

    def _topics_to_read(self) -> Sequence[str]:
        return self._topics

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._group

    @property
    def closed(self) -> bool:
        return self._membership.closed

    def commit_offsets(self) -> None:
        """Commit what is processed by now, and wait for it.

        Raises OffsetManagerError where it is refused; it is committed later then.
        """
        self._membership.commit()

    def high_water_marks(self) -> dict[str, dict[int, int]]:
        """Return the ends of the claimed partitions by topic, as their last fetches saw them."""
        found: dict[str, dict[int, int]] = {}
        for where, end in self._membership.high_watermarks().items():
            found.setdefault(where.topic, {})[where.partition] = end
        return found

    def errors(self) -> list[OffsetManagerError]:
        """Return the errors since the last call; at most the newest 100."""
        return drain(self._errors)

    def close(self) -> None:
        """Commit what is processed and leave the group; twice is harmless."""
        self._membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)


class MessageReader(BaseConsumer, Generic[_T]):
    """A consumer that hands out its messages as one stream; they are read by one thread."""

    @abstractmethod
    def _next(self) -> _T | None:
        """Return a message that is there already."""

    @abstractmethod
    def _fill(self, timeout_s: float) -> None:
        """Receive messages for at most so long; returns at once where the consumer is closed."""

    def __iter__(self) -> Iterator[_T]:
        """Iterate over the messages until the consumer is closed.

        A message is in work until the next one is asked for.
        """
        while (message := self._poll(math.inf, self._next)) is not None:
            yield message

    async def __aiter__(self) -> AsyncIterator[_T]:
        """Iterate without blocking the event loop."""
        while True:
            message = self._next()
            if message is not None:
                yield message
            elif self.closed:
                return
            else:
                await asyncio.to_thread(self._fill, _LONG_S)

    def poll(self, *, timeout: float | None = 1.0) -> _T | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.
        """
        return self._poll(check_timeout(timeout, forever=True), self._next)

    def _poll(self, timeout_s: float, take: Callable[[], _T | None]) -> _T | None:
        message = take()
        if message is not None:
            return message
        deadline = time.monotonic() + timeout_s
        while message is None and not self.closed:
            left_s = deadline - time.monotonic()
            self._fill(max(0.0, left_s))
            message = take()
            if left_s <= 0:
                break
        return message

    def batches(self, max_records: int = 500, max_wait_s: float = 1.0) -> Iterator[list[_T]]:
        """Iterate over lists of up to ``max_records`` messages until the consumer is closed.

        A batch is handed out when it is full, or ``max_wait_s`` after its first message came; it
        is in work until the next one is asked for.  Raises InvalidValueError.
        """
        check_count(max_records, "max_records")
        check_timeout(max_wait_s, "max_wait_s")
        while not self.closed:
            batch = self._next_batch(max_records, max_wait_s)
            if batch:
                yield batch

    def _next_batch(self, max_records: int, max_wait_s: float) -> list[_T]:
        first = self._poll(math.inf, self._next)
        batch = [] if first is None else [first]
        deadline = time.monotonic() + max_wait_s
        while batch and len(batch) < max_records:
            message = self._poll(max(0.0, deadline - time.monotonic()), self._next)
            if message is None:
                break
            batch.append(message)
        return batch


def drain(unread: deque[_T]) -> list[_T]:
    """Take all that is in ``unread``, while others add to it."""
    return [unread.popleft() for _ in range(len(unread))]


def _pattern(text: object, field: str) -> str:
    """Return a regular expression as librdkafka marks it."""
    if not isinstance(text, str) or not text:
        raise InvalidValueError(field, text, "is no regular expression", 'give one, as "orders.*"')
    return text if text.startswith("^") else f"^{text}"
