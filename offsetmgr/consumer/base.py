"""A member of a consumer group: polling, rebalances, commits, and ways to read messages.

The application polls in its own thread.  While it is busy with what it got, a thread of the
consumer pauses the partitions and polls in its place, so that a slow application neither leaves
the group nor delays a rebalance.

All calls of confluent-kafka's consumer are in the turn of one thread: during a rebalance a second
thread's call waits for the end of the first one's poll, so that the two could wait for each other.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, get_args

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.consumer.claims import Claims, claim
from offsetmgr.consumer.keepers import MemberStore
from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetManagerError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.errors import request_error
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.stores import OffsetStore, open_store
from offsetmgr.stores.base import as_store_error
from offsetmgr.stores.broker import BrokerOffsetStore
from offsetmgr.stores.managers import ManagerStore
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
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
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from confluent_kafka import Message
    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets

Strategy = Literal["range", "roundrobin", "cooperative-sticky"]

PREFETCH: Final = 500
"""Messages taken from librdkafka at once where they are handed out one by one."""

UNREAD: Final = 100
"""Notifications and errors kept until they are read; the oldest are dropped."""

SLICE_S: Final = 0.1
"""Longest single wait for Kafka, so that another thread's turn comes soon."""

LONG_S: Final = 1.0
"""Longest wait in a thread beside an event loop, so that a closed consumer is noticed."""

_REBALANCING: Final = frozenset({"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"})
"""Refusals of a commit between two generations of the group; later it is taken."""

_FULL_QUEUE_MS: Final = 50
"""librdkafka's pause in fetching after its queue was full.  In its default of 1 s a fast consumer
of small messages reads the whole queue and waits."""

_T = TypeVar("_T")

log = SafeLogger("offsetmgr.consumer")


@dataclass(frozen=True)
class ConsumerSettings:
    """Settings of a group consumer.  All times are seconds."""

    strategy: Strategy = "cooperative-sticky"
    """Assignment of partitions to members; the same in all members of the group."""

    start: Literal["earliest", "latest"] = "earliest"
    """First message of a partition where nothing is committed."""

    commit_interval_s: float = 1.0
    """Marks and acks are committed this often, in one request."""

    dwell_s: float = 5.0
    """Time that the application has to process what it got of a partition that is released."""

    away_s: float = 0.5
    """After this time without a poll of the application the partitions are paused."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first setting that makes no sense."""
        check_choice(self.strategy, "strategy", get_args(Strategy))
        check_choice(self.start, "start", ("earliest", "latest"))
        for field in fields(self):
            if field.name.endswith("_s"):
                check_timeout(getattr(self, field.name), field.name)


class BaseConsumer(ABC):
    """A reader of Kafka that commits what its application has processed.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings.  ``topics`` are names,
    ``whitelist`` is a regular expression of further topics, ``blacklist`` one of topics to leave
    out; they are shared with the other members of the group.  ``partitions`` in their place are
    read by this consumer alone, without membership.

    ``store`` keeps the offsets: the group in Kafka by default, else an OffsetStore, or what
    ``open_store`` takes, such as the URL of a database.  For ``partitions`` it may be a
    LocalOffsets or OffsetClient: its managers commit.  A partition is read once the store has
    given it to this consumer; failures before are retried, and reported by ``errors``.

    Raises InvalidValueError for a bad name or setting.  With ``partitions`` also
    ManagerExistsError where another consumer has one of them, and other OffsetManagerErrors where
    the committed offsets cannot be read.
    """

    _SETTINGS: type[ConsumerSettings] = ConsumerSettings
    _starts: Mapping[TopicPartition, int] = MappingProxyType({})
    """Where to begin if nothing is committed, also librdkafka's negative offsets; else `start`."""

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str] = (),
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        partitions: Iterable[tuple[str, int]] = (),
        store: str | Mapping[str, object] | OffsetStore | Offsets | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._group = check_group(group)
        self._config: dict[str, Any] = (
            {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        )
        if blacklist is not None:
            self._config["topic.blacklist"] = _pattern(blacklist, "blacklist")
        self._topics = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        if whitelist is not None:
            self._topics.append(_pattern(whitelist, "whitelist"))
        self._partitions = check_topic_partitions(partitions)
        given = None if store is None else open_store(store)
        _check_assignment(self._topics, self._partitions, given)
        self._opened = None if given is store else given  # to be closed here
        self._settings = settings or self._SETTINGS()
        if not isinstance(self._settings, self._SETTINGS):
            fix = f"give {self._SETTINGS.__name__}(...)"
            raise InvalidValueError("settings", settings, "are those of another consumer", fix)
        self._errors: deque[OffsetManagerError] = deque(maxlen=UNREAD)
        self._repeats = RepeatLimiter()
        self._turn = _Turn()
        self._here = threading.Event()  # the application waits for messages
        self._ended = threading.Event()
        self._closed = False
        self._polled_at_s = time.monotonic()
        self._commit_at_s = self._polled_at_s + self._settings.commit_interval_s
        self._look_at_s = self._polled_at_s
        self._polled_away = False  # the consumer's own thread handed over messages
        self._released_in_poll: set[TopicPartition] = set()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._paused: frozenset[TopicPartition] = frozenset()
        self._held: set[TopicPartition] = set()  # to be paused until `_resume`
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._prepare()
        config = _kafka_settings(self._config, self._group, self._settings)
        self._consumer = open_consumer(config, {})
        own_url = f"kafka://{self._config.get('bootstrap.servers')}"
        if given is None or (isinstance(given, BrokerOffsetStore) and given.url == own_url):
            given = MemberStore(self._consumer, self._config)
        self._store: OffsetStore = given
        self._claims = Claims(given, group, self._failed)
        self._cooperative = self._settings.strategy == "cooperative-sticky" and not self._partitions
        self._thread = threading.Thread(target=self._keep, name=f"member-{group}", daemon=True)
        self._join()

    # What a subclass does, in the thread that polls

    @abstractmethod
    def _prepare(self) -> None:
        """Get ready for the first rebalance and the first message."""

    def _topics_to_read(self) -> Sequence[str]:
        return self._topics

    @abstractmethod
    def _receive(self, messages: Sequence[Message]) -> None:
        """Take in messages, all of assigned partitions."""

    @abstractmethod
    def _claim(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Take partitions, with what is committed for them."""

    @abstractmethod
    def _begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        """Hand out no more of partitions; wait so many seconds for what is in work of them.

        Not called where the consumer is being closed.
        """

    @abstractmethod
    def _release(self, partitions: Collection[TopicPartition], *, lost: bool) -> None:
        """Forget partitions; where they are ``lost``, another member may have them already."""

    @abstractmethod
    def _to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit that are not committed yet; called by any thread."""

    @abstractmethod
    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Take in that these offsets are committed; called by any thread."""

    # For the application

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._group

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def commit_offsets(self) -> None:
        """Commit what is processed by now, and wait for it.

        Raises OffsetManagerError where it is refused; it is committed later then.
        """
        with self._turn:
            self._commit()
            self._look_at_ends()

    def high_water_marks(self) -> dict[str, dict[int, int]]:
        """Return the ends of the claimed partitions by topic, as fetches saw them 0.1 s ago."""
        found: dict[str, dict[int, int]] = {}
        for where, end in self._high_watermarks.items():
            if where in self._assigned:
                found.setdefault(where.topic, {})[where.partition] = end
        return found

    def errors(self) -> list[OffsetManagerError]:
        """Return the errors since the last call; at most the newest 100."""
        return drain(self._errors)

    def close(self) -> None:
        """Commit what is processed and leave the group; twice is harmless."""
        self._ended.set()
        self._thread.join()
        with self._turn:
            if not self._closed:
                self._closed = True
                self._try_commit(last=True)
                if self._partitions:
                    self._let_go(self._partitions, lost=False)
                self._consumer.close()
                self._claims.close(self._settings.dwell_s)
                if self._opened is not None:
                    self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # Polling

    def _join(self) -> None:
        """Join the group, or claim the partitions.

        Raises OffsetManagerError where partitions cannot be claimed.  A member tries it again until
        it succeeds.
        """
        if self._partitions:
            try:
                committed = claim(self._store, self._group, self._partitions)
            except OffsetManagerError:
                self._consumer.close()
                raise
            self._take_over(committed)
        else:
            self._consumer.subscribe(
                list(self._topics_to_read()),
                on_assign=self._guarded(self._on_assign),
                on_revoke=self._guarded(self._on_revoke),
                on_lost=self._guarded(partial(self._let_go, lost=True)),
            )
        self._thread.start()

    def _wait_for(self, most: int, timeout_s: float, *, patient: bool = False) -> None:
        """Receive up to ``most`` messages; wait ``timeout_s`` for the first.

        Where ``patient``, up to 0.1 s longer for the others.  Raises ManagerStoppedError once the
        consumer is closed.
        """
        deadline = time.monotonic() + timeout_s
        self._here.set()
        try:
            while True:
                with self._turn:
                    if self._ended.is_set():
                        raise ManagerStoppedError(f"the consumer of group {self._group} is closed")
                    self._pause_and_resume(away=False)
                    slice_s = min(SLICE_S, max(0.0, deadline - time.monotonic()))
                    more_s = slice_s if patient else 0.0
                    try:
                        received = self._polled_away or self._poll_kafka(most, slice_s, more_s)
                    except BaseException:
                        # A signal's handler has raised: what was just read is lost, so that a
                        # later mark would pass it over.
                        self._ended.set()
                        raise
                    self._polled_away = False
                    self._do_what_is_due()
                if received or time.monotonic() >= deadline:
                    return
        finally:
            self._polled_at_s = time.monotonic()
            self._here.clear()

    def _poll_kafka(self, most: int, timeout_s: float, more_s: float) -> bool:
        """Wait for one message, then ``more_s`` for others; True if any were received."""
        first = self._consumer.poll(timeout_s)
        self._released_in_poll.clear()
        if first is None:
            return False
        found = [first]
        if most > 1:
            try:
                found += self._consumer.consume(most - 1, more_s)
            except KafkaException as error:
                self._errors.append(request_error("poll", error.args[0]))
        if self._released_in_poll:
            # The rebalance came between messages; librdkafka returns those before it all the same.
            gone: set[tuple[object, object]] = {*self._released_in_poll}
            found = [each for each in found if (each.topic(), each.partition()) not in gone]
        good = [each for each in found if each.error() is None and not self._ended.is_set()]
        if len(good) < len(found):
            problems = [each.error() for each in found]
            self._errors.extend(request_error("poll", each) for each in problems if each)
        self._receive(good)
        return len(good) > 0

    def _keep(self) -> None:
        """Commit in intervals, and poll while the application is away."""
        while not self._ended.wait(SLICE_S / 2):
            if self._here.is_set():
                continue
            try:
                with self._turn:
                    self._do_what_is_due()
                    away_s = time.monotonic() - self._polled_at_s
                    if away_s >= self._settings.away_s and not self._here.is_set():
                        self._pause_and_resume(away=True)
                        # A message that was on its way already is kept for the application.
                        self._polled_away = self._poll_kafka(1, 0.0, 0.0) or self._polled_away
            except Exception:
                log.exception("group %s: the member's own thread failed, and goes on", self._group)

    def _pause(self, where: TopicPartition) -> None:
        """Receive no more of a partition from the next poll on, until ``_resume``."""
        self._held.add(where)

    def _resume(self, where: TopicPartition) -> None:
        self._held.discard(where)

    def _pause_and_resume(self, *, away: bool) -> None:
        wanted = self._assigned if away else self._assigned & self._held
        if wanted != self._paused:
            self._consumer.pause([KafkaPartition(*where) for where in wanted - self._paused])
            self._consumer.resume([KafkaPartition(*where) for where in self._paused - wanted])
            self._paused = wanted

    def _do_what_is_due(self) -> None:
        claimed = self._claims.take()
        if claimed:
            self._take_over(claimed)
        if time.monotonic() >= self._look_at_s:
            self._look_at_ends()
        if time.monotonic() >= self._commit_at_s:
            self._try_commit(last=False)
            self._commit_at_s = time.monotonic() + self._settings.commit_interval_s

    def _look_at_ends(self) -> None:
        found = {}
        for where in sorted(self._assigned):
            here = KafkaPartition(*where)
            if where not in self._paused:
                # A former claim may have left it paused, and librdkafka may lose a resume that
                # meets a rebalance.  Else this does nothing.
                self._consumer.resume([here])
            answer = self._consumer.get_watermark_offsets(here, cached=True)
            if answer[1] != OFFSET_INVALID:
                found[where] = answer[1]
        self._high_watermarks = found
        self._look_at_s = time.monotonic() + SLICE_S

    # Commits

    def _commit(self) -> None:
        offsets = self._to_commit()
        if offsets:
            try:
                self._store.commit(self._group, offsets)
            except Exception as error:
                raise as_store_error(f"commit for group {self._group}", error) from error
            self._committed(offsets)

    def _try_commit(self, *, last: bool) -> None:
        deadline = time.monotonic() + (self._settings.dwell_s if last else 0.0)
        while True:
            try:
                self._commit()
            except OffsetManagerError as error:
                rebalancing = error.code in _REBALANCING
                if rebalancing and time.monotonic() < deadline:
                    time.sleep(SLICE_S)
                    continue
                if last or not rebalancing:
                    self._failed(error, "could not commit")
            return

    def _failed(self, error: OffsetManagerError, what: str) -> None:
        self._errors.append(error)
        suppressed = self._repeats.suppressed((error.code, what), time.monotonic())
        if suppressed is not None:
            log.warning("group %s: %s: %s (%d more)", self._group, what, error, suppressed)

    # Rebalances, in the thread that polls

    def _guarded(
        self, callback: Callable[[list[TopicPartition]], None]
    ) -> Callable[[Consumer, list[KafkaPartition]], None]:
        """Report an exception, which would lose the messages read by the same ``consume``.

        The consumer ends then: it may have partitions without a claim.
        """

        def run(_: Consumer, partitions: list[KafkaPartition]) -> None:
            try:
                callback([TopicPartition(each.topic, each.partition) for each in partitions])
            except Exception as error:
                log.exception("group %s: a rebalance failed; the consumer ends", self._group)
                what = f"rebalance of group {self._group}"
                self._errors.append(as_store_error(what, error))
                self._ended.set()

        return run

    def _on_assign(self, partitions: list[TopicPartition]) -> None:
        self._claims.add(partitions)
        # Else confluent-kafka itself would begin to read them, from anywhere.
        self._take_over(self._claims.take(SLICE_S))

    def _take_over(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Begin to read at once: librdkafka does not have to look up where.

        A pause or resume that meets a later start can undo it, and the partition would stand still.
        """
        if committed:
            self._claim(committed)
        self._assigned |= committed.keys()
        first = OFFSET_BEGINNING if self._settings.start == "earliest" else OFFSET_END
        partitions = []
        for where, known in committed.items():
            offset, _, epoch = known or OffsetAndMetadata(self._starts.get(where, first))
            epoch = -1 if epoch is None else epoch
            partitions.append(KafkaPartition(*where, offset, leader_epoch=epoch))
        if self._cooperative:
            self._consumer.incremental_assign(partitions)
        else:
            self._consumer.assign(partitions)
        # What this poll returns of a partition that it has released before is of the former claim.
        again = committed.keys() & self._released_in_poll
        self._consumer.pause([KafkaPartition(*where) for where in again])
        self._paused |= again

    def _on_revoke(self, partitions: list[TopicPartition]) -> None:
        if not self._ended.is_set():
            self._begin_release(self._assigned.intersection(partitions), self._settings.dwell_s)
        self._try_commit(last=True)
        self._let_go(partitions, lost=False)

    def _let_go(self, partitions: Collection[TopicPartition], *, lost: bool) -> None:
        self._claims.drop(partitions, 0.0 if lost else self._settings.dwell_s)
        gone = self._assigned.intersection(partitions)
        self._assigned -= gone
        self._paused -= gone
        self._held -= gone
        self._released_in_poll.update(gone)
        if gone:
            self._release(gone, lost=lost)
        if self._cooperative:
            self._consumer.incremental_unassign([KafkaPartition(*where) for where in gone])
        else:
            self._consumer.unassign()
        self._claims.release(gone)


class MessageReader(BaseConsumer, Generic[_T]):
    """A consumer that hands out its messages as one stream; they are read by one thread."""

    @abstractmethod
    def _next(self) -> _T | None:
        """Return a message that is there already."""

    def _fill(self, timeout_s: float) -> None:
        """Receive messages for at most so long; returns at once where the consumer is closed."""
        with suppress(ManagerStoppedError):
            self._wait_for(PREFETCH, min(LONG_S, timeout_s))

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
                await asyncio.to_thread(self._fill, LONG_S)

    def poll(self, *, timeout: float | None = 1.0) -> _T | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.
        """
        return self._poll(check_timeout(timeout, forever=True), self._next)

    def _poll(self, timeout_s: float, take: Callable[[], _T | None]) -> _T | None:
        if (message := take()) is not None:  # nearly always
            return message
        deadline = time.monotonic() + timeout_s
        expired = False
        while (message := take()) is None and not (expired or self.closed):
            left_s = deadline - time.monotonic()
            expired = left_s <= 0
            self._fill(max(0.0, left_s))
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


class _Turn:
    """A lock that is had in turn: who lets it go and wants it again comes after who waits."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def drain(unread: deque[_T]) -> list[_T]:
    """Take all that is in ``unread``, while others add to it."""
    return [unread.popleft() for _ in range(len(unread))]


def check_choice(value: object, field: str, choices: Sequence[object]) -> None:
    """Raise InvalidValueError where ``value`` is none of ``choices``."""
    if value not in choices:
        raise InvalidValueError(
            field, value, "is unknown", f"give one of {', '.join(map(str, choices))}"
        )


def _pattern(text: object, field: str) -> str:
    """Return a regular expression as librdkafka marks it."""
    if not isinstance(text, str) or not text:
        raise InvalidValueError(field, text, "is no regular expression", 'give one, as "orders.*"')
    return text if text.startswith("^") else f"^{text}"


def _check_assignment(
    topics: Sequence[str],
    partitions: Sequence[TopicPartition],
    store: OffsetStore | None,
) -> None:
    if bool(topics) == bool(partitions):
        problem = "are given with topics" if partitions else "are not given, nor topics"
        fix = 'give topics, such as ["orders"], or partitions, such as [("orders", 0)]'
        raise InvalidValueError("partitions", partitions, problem, fix)
    if not partitions and isinstance(store, ManagerStore):
        problem = "commits only to groups without members"
        fix = "give partitions in place of topics, or leave it out"
        raise InvalidValueError("store", store.url, problem, fix)


def _kafka_settings(
    kafka: Mapping[str, Any], group: str, settings: ConsumerSettings
) -> dict[str, Any]:
    ours = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "partition.assignment.strategy": settings.strategy,
        "auto.offset.reset": settings.start,
    }
    for name in sorted(ours.keys() & kafka.keys()):
        fix = "leave it out: the group's name and ConsumerSettings say it"
        raise InvalidValueError("kafka", name, "is set by the consumer itself", fix)
    return {"fetch.queue.backoff.ms": _FULL_QUEUE_MS, **kafka, **ours}
