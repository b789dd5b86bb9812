"""Copies the log of a table's topic into a store, and follows it: for views and for lookups.

One thread reads all partitions and gathers their rows; a second one writes what was gathered, so
that rows of a large write share pages.  A third one asks Kafka about the topic: for its id, so that
a recreated table is read from its beginning, and for its partitions, so that added ones are read.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from offsetmgr.deadlines import Latch
from offsetmgr.errors import KafkaRequestError, OffsetManagerError, OffsetTimeoutError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import checked_config
from offsetmgr.kafka.errors import does_not_exist, request_error
from offsetmgr.kafka.messages import headers_of
from offsetmgr.logs import SafeLogger
from offsetmgr.streams.errors import TopicsError, ViewError
from offsetmgr.streams.messages import Message as TableMessage
from offsetmgr.streams.partition_table import (
    PendingRows,
    Progress,
    TableState,
    beyond_log,
    missed_rows,
)
from offsetmgr.streams.topics import logs_of
from offsetmgr.text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Consumer

    from offsetmgr.answers import PartitionLog, TopicLog
    from offsetmgr.streams.memory import Storage

LOOK_S: Final = 5.0
"""Pause between two questions for the topic's id and its partitions."""

GATHERED_BYTES: Final = 64 * 1024**2
"""Most memory of the rows that are gathered for one write; twice as much while one is written."""
GATHERED_S: Final = 1.0
"""Longest time for which rows are gathered."""

_CHUNK: Final = 250
"""Most messages of a read: fewer than start Python's garbage collector, whose full runs took half
of a recovery's time."""
_ROW_BYTES: Final = 200
"""Memory of a gathered row without its key and value."""
_IDLE_S: Final = 0.1
_PAUSE_S: Final = 0.01
_DAY_S: Final = 24 * 3600.0
_POOL_ENDED: Final = "cannot schedule new futures"
_AWAY: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 -- its public name
_OUTSIDE_LOG: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 -- its public name
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 -- its public name

log = SafeLogger("offsetmgr.streams")


class _Answer(NamedTuple):
    """The topic as it was when Kafka was asked."""

    at_s: float
    """Time of the question, since 1970."""
    positions: Mapping[int, int]
    """The next offsets of the partitions that were connected then."""
    log: TopicLog
    delete_retention_s: float
    """For so long tombstones stay in the topic; infinite if it is not compacted."""


class _Gathered:
    """Messages that were read and are not written yet."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.messages: list[Message] = []
        """For an update callback, instead of the rows."""
        self.size = 0
        self.since_s = 0.0
        self.lasts: dict[int, Message] = {}
        """The last message of each partition."""
        self.counts: dict[int, int] = {}
        """Messages of each partition."""
        self.ends: dict[int, int] = {}
        """Ends of the partitions that were read to their end."""


class TableReader:
    """Keeps the rows of a topic in a store up to date, from `start` to `stop`."""

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        topic: str,
        storage: Storage,
        *,
        group: str,
        update: Callable[[PendingRows, TableMessage], object] | None = None,
        changed: Callable[[], object] = lambda: None,
        until_stable: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        """``update`` replaces what is done with each message: its row is put or deleted.

        ``group`` is never joined, but Kafka may ask for the right to it.  ``changed`` is called
        after the state of a partition has changed.  With ``until_stable`` a table is recovered at
        its last stable offset, else at its high watermark, which waits for open transactions.
        ``timeout_s`` is for each request.  Raises InvalidValueError.
        """
        self._topic = topic
        self._storage = storage
        self._update = update
        self._changed = changed
        self._until_stable = until_stable
        settings = checked_config(kafka)
        self._group = str(settings.get("group.id", group))
        self._settings: dict[str, object] = {
            # librdkafka's own, 1 MB and a second's pause whenever a queue is full, slow a recovery.
            "max.partition.fetch.bytes": 8 * 1024**2,
            "fetch.queue.backoff.ms": 5,
            **settings,
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._timeout_s = timeout_s
        self._kafka = settings
        self.partitions: dict[int, Progress] = {}
        self.error: Exception | None = None
        """Why it has ended by itself."""
        self.stopped = False
        self.caught_up = Latch()
        """Set once all is read that the topic held at the start, or when it was recreated."""
        self._topic_id = ""
        self._thread: threading.Thread | None = None
        self._consumer: Consumer | None = None
        self._gathered = _Gathered()
        self._ended = Latch()
        self._away: KafkaError | None = None
        self._asked: Future[_Answer] | None = None
        self._unread: _Answer | None = None
        """An answer to whose ends the table is not read yet."""
        self._look_s = self._tick_s = 0.0
        self._writing: Future[None] | None = None
        self._warned: set[str] = set()

    def start(self) -> None:
        """Open the store and begin to read.  Raises TopicsError, KafkaRequestError, ViewError."""
        with ExitStack() as opened:  # what is open is closed after an error, or Ctrl-C
            self._reader = ClusterReader(self._kafka, timeout_s=self._timeout_s)
            opened.callback(self._reader.close)
            try:
                answer = self._ask({}, connecting=True)
            except KafkaRequestError as error:
                if not does_not_exist(error):
                    raise
                fix = "create it, or start what writes the table"
                raise TopicsError(f"topic {self._topic} does not exist: {fix}") from None
            self._topic_id = answer.log.topic_id
            self._storage.open(self._topic, self._topic_id)
            opened.callback(self._storage.close)
            now_s = time.monotonic()
            self.partitions = {n: Progress(n, now_s) for n in sorted(answer.log.partitions)}
            self._changed()
            name = f"table-{self._topic}-{id(self):016x}"  # other topics may begin with this one
            self._pool = ThreadPoolExecutor(2, name)
            self._asked = Future()
            self._asked.set_result(answer)
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
            opened.pop_all()

    def stop(self, timeout: float) -> None:
        """End reading, and close the store after the last write; harmless when repeated."""
        thread = self._thread
        if thread is None or threading.current_thread().name.startswith(thread.name):
            text = f"the table of {self._topic} cannot be stopped by its own observer or update"
            raise ViewError(f"{text}, nor while it starts: stop it after that in another thread")
        self._ended.set()
        thread.join(timeout)
        if thread.is_alive():
            text = f"the table of {self._topic} still writes its store after {timeout} s"
            raise OffsetTimeoutError(text)
        if not self.stopped:
            try:
                self._storage.close()
            except Exception:
                self.stopped = True
                raise
            self.stopped = True  # not after Ctrl-C, which may have come before

    @property
    def ending(self) -> bool:
        """True once it is to end."""
        return self._ended.is_set()

    @property
    def trouble(self) -> str | None:
        """The first error of a partition."""
        return next((part.error for part in self.partitions.values() if part.error), None)

    # The thread that reads

    def _run(self) -> None:
        try:
            self._enter(self.partitions.values(), TableState.CONNECTING)
            while not self._ended.is_set():
                self._look()
                self._read()
            self._written()
            self._note_seen()
        except BaseException as error:
            # At the end of the process the pool ends first, the main thread after it.
            is_over = isinstance(error, RuntimeError) and _POOL_ENDED in str(error)
            if threading.main_thread().is_alive() and not is_over:
                text = error_text(error)
                self.error = error if isinstance(error, OffsetManagerError) else ViewError(text)
                log.exception("table %s is no longer read: %s", self._topic, self.error)
        finally:
            self._close_consumer()
            for part in self.partitions.values():
                part.error = part.error if self.error is None else str(self.error)
                part.state = TableState.STOPPED
            self.caught_up.set()  # whoever waits for it finds the error
            self._changed()
            with suppress(RuntimeError):  # of a process that ends
                self._pool.submit(self._reader.close)
            self._pool.shutdown(wait=False)

    def _look(self) -> None:
        """Ask about the topic where that is due, and take in the answer."""
        now_s = time.monotonic()
        if self._writing is not None and self._writing.done():
            self._written()
        if now_s >= self._tick_s:
            self._tick(now_s)
        parts = self.partitions.values()
        if self._asked is None:
            due = any(part.is_due(now_s) for part in parts)
            if due or now_s >= self._look_s:
                positions = {p.partition: p.next_offset or 0 for p in parts if p.connected}
                self._asked = self._pool.submit(self._ask, positions, connecting=due)
        elif self._asked.done():
            asked, self._asked = self._asked, None
            self._look_s = now_s + LOOK_S
            try:
                answer = asked.result()
            except KafkaRequestError as error:
                gone = does_not_exist(error)
                self._lose([p for p in parts if p.is_due(now_s) or (gone and p.connected)], error)
            else:
                self._take(answer)

    def _tick(self, now_s: float) -> None:
        self._tick_s = now_s + 1.0
        for number, part in self.partitions.items():
            part.sample(now_s)
            if part.connected and self._consumer is not None:
                topic_partition = TopicPartition(self._topic, number)
                _, end = self._consumer.get_watermark_offsets(topic_partition, cached=True)
                part.high_watermark = max(end, part.high_watermark or 0)
        if self._writing is None:
            self._note_seen()

    def _note_seen(self) -> None:
        """Note the time of the question once the table is read to the ends of its answer."""
        answer = self._unread
        if answer is not None and all(
            (self.partitions[number].next_offset or 0) >= (ends.last_stable_offset or 0)
            for number, ends in answer.log.partitions.items()
        ):
            self._storage.note_seen(answer.at_s)
            self._unread = None

    def _take(self, answer: _Answer) -> None:
        now_s = time.monotonic()
        topic_id, logs = answer.log.topic_id, answer.log.partitions
        if self._topic_id and topic_id and topic_id != self._topic_id:
            self._start_over("the topic was deleted and recreated", topic_id)
            self.partitions = {n: part for n, part in self.partitions.items() if n in logs}
        self._topic_id = topic_id or self._topic_id
        for number in sorted(logs.keys() - self.partitions.keys()):
            log.info("topic %s has a new partition %d, which is read too", self._topic, number)
            part = Progress(number, now_s)
            part.state = TableState.CONNECTING
            self.partitions = {**self.partitions, number: part}
        for number, part in self.partitions.items():
            ends = logs.get(number)
            # One that was lost since may have stored more than the answer knows.
            due = part.is_due(now_s) and number not in answer.positions
            if ends is None or ends.failure is not None:
                if due or (ends is None and part.connected):
                    self._lose([part], self._failure(number, ends))
                continue
            part.high_watermark = ends.high_watermark
            part.last_stable_offset = ends.last_stable_offset
            # Without ids this alone tells of another log.
            cut = part.connected and answer.positions.get(number, 0) > ends.high_watermark
            if due or cut:
                self._connect(part, ends, answer.delete_retention_s)
            self._watch_transaction(part)
        complete = all(part.connected for part in self.partitions.values())
        if self._unread is None and complete and not any(log.failure for log in logs.values()):
            self._unread = answer

    def _failure(self, number: int, ends: PartitionLog | None) -> KafkaRequestError:
        if ends is None or ends.failure is None:
            return self._error(KafkaError(KafkaError._UNKNOWN_PARTITION))  # noqa: SLF001
        return request_error(f"log of {self._topic}/{number}", ends.failure, topic=self._topic)

    def _connect(self, part: Progress, ends: PartitionLog, delete_retention_s: float) -> None:
        self._hand_over()
        self._written()
        number, storage = part.partition, self._storage
        stored, seen_s = storage.offset(number), storage.seen_s()
        away_s = 0.0 if seen_s is None else time.time() - seen_s
        why = beyond_log(stored, ends, is_outside=part.is_outside_log)
        missed = missed_rows(stored, ends, away_s, delete_retention_s)
        if why or (missed and self._update is None and delete_retention_s < inf):
            self._start_over(why or missed, self._topic_id)
            stored = None
        elif missed:
            log.warning("table %s/%d: %s", self._topic, number, missed)
        start = ends.log_start_offset if stored is None else max(stored + 1, ends.log_start_offset)
        stable = ends.last_stable_offset if self._until_stable else None
        target = ends.high_watermark if stable is None else stable
        part.connect(start, target, time.monotonic())
        self._changed()
        topic_partition = TopicPartition(self._topic, number, start)
        if self._consumer is None:
            self._consumer = open_consumer(self._settings, {"error_cb": self._fail})
        self._consumer.incremental_assign([topic_partition])
        self._gathered.ends.update({number: start} if start >= target else {})
        if part.leader_epoch is None:
            part.leader_epoch = storage.leader_epoch(number)
        if stored is not None and part.leader_epoch is not None:
            self._compare(part, part.leader_epoch)

    def _compare(self, part: Progress, epoch: int) -> None:
        """Have librdkafka report a log that was cut: of starts, it compares only that of a seek."""
        consumer: Any = self._consumer
        for _ in range(3):
            consumer.assignment()  # its thread, which answers in turn, has begun to read by then
        try:
            consumer.seek(TopicPartition(self._topic, part.partition, part.start, "", epoch))
        except KafkaException as error:
            self._lose([part], self._error(error.args[0]))

    def _start_over(self, why: str, topic_id: str) -> None:
        """Delete all rows, and read the topic from its beginning."""
        text = "the rows of topic %s are deleted and read again from its beginning: %s"
        log.warning(text, self._topic, why)
        self._written()
        self.caught_up.clear()
        self._close_consumer()
        self._gathered = _Gathered()
        self._unread = None
        self._storage.clear(topic_id)
        for part in self.partitions.values():
            part.start_over(time.monotonic())
        self._changed()

    def _watch_transaction(self, part: Progress) -> None:
        """Name an open transaction for which alone a partition waits."""
        waits, stable = part.state is TableState.RECOVERING, part.last_stable_offset or 0
        if waits and part.error is None and stable <= (part.next_offset or 0) < part.target:
            part.error = f"an open transaction hides the messages from offset {stable} on"
            log.warning("table %s/%d waits: %s", self._topic, part.partition, part.error)

    def _lose(self, parts: Sequence[Progress], error: KafkaRequestError) -> None:
        """Connect partitions again after their back-off."""
        now_s = time.monotonic()
        if not parts:
            return
        assigned = [TopicPartition(self._topic, p.partition) for p in parts if p.connected]
        if assigned and self._consumer is not None:
            self._consumer.incremental_unassign(assigned)
        waits_s = {part.disconnect(str(error), now_s) for part in parts}
        text = "table %s connects again in %.0f s to partitions %s: %s"
        log.warning(text, self._topic, max(waits_s), [p.partition for p in parts], error)
        if not any(part.connected for part in self.partitions.values()):
            self._close_consumer()
        self._changed()

    def _read(self) -> None:
        if self._consumer is None:
            self._ended.wait(_IDLE_S)
            return
        gathered = self._gathered
        found = self._consumer.consume(_CHUNK, 0)
        if not found:
            empty = not (gathered.lasts or gathered.ends)
            found = self._consumer.consume(1, _IDLE_S if empty else _PAUSE_S)
        if any(map(Message.error, found)):
            found = self._without_events(found)
        if found:
            self._gather(found)
        elif self._away is not None:
            error, self._away = self._error(self._away), None
            self._lose([part for part in self.partitions.values() if part.connected], error)
        if self._is_enough():
            self._hand_over()

    def _without_events(self, found: list[Message]) -> list[Message]:
        """Take in ends of partitions and errors; return the messages."""
        messages = []
        for message in found:
            error, number = message.error(), message.partition()
            part = self.partitions.get(-1 if number is None else number)
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                text = (
                    f"Kafka does not let this user DESCRIBE the group {self._group}; topic "
                    f"{self._topic} is read without it"
                )
                self._warn_once(text)
            elif part is None or message.topic() is None:
                self._away = error
            elif error.code() == _END:
                self._gathered.ends[part.partition] = message.offset() or 0
            elif part.connected:
                part.is_outside_log = error.code() == _OUTSIDE_LOG
                self._lose([part], self._error(error))
        return messages

    def _gather(self, messages: list[Message]) -> None:
        gathered = self._gathered
        if not gathered.lasts:
            gathered.since_s = time.monotonic()
        # In C wherever possible: this is done for each message of a recovery.
        partition_of: Any = Message.partition
        for number, grouped in groupby(messages, partition_of):
            run = list(grouped)
            gathered.lasts[number] = run[-1]
            gathered.counts[number] = gathered.counts.get(number, 0) + len(run)
        keys: list[Any] = list(map(Message.key, messages))
        values: list[Any] = list(map(Message.value, messages))
        if None in keys:
            keys = [key or b"" for key in keys]
        if self._update is None:
            gathered.rows.update(zip(keys, values, strict=True))
        else:
            gathered.messages += messages
        data = sum(map(len, keys)) + sum(map(len, filter(None, values)))
        gathered.size += data + _ROW_BYTES * len(messages)

    def _is_enough(self) -> bool:
        gathered = self._gathered
        if not (gathered.lasts or gathered.ends):
            return False
        if gathered.size >= GATHERED_BYTES:
            return True  # and wait for the write before
        if self._writing is not None:
            return False
        recovering = any(
            part.state is TableState.RECOVERING and number not in gathered.ends
            for number, part in self.partitions.items()
        )
        return not recovering or time.monotonic() - gathered.since_s >= GATHERED_S

    def _hand_over(self) -> None:
        self._written()
        gathered, self._gathered = self._gathered, _Gathered()
        if gathered.lasts or gathered.ends:
            self._writing = self._pool.submit(self._write, gathered)

    def _written(self) -> None:
        """Wait for the write under way, and raise what it has raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _fail(self, error: KafkaError) -> None:
        """Take in an error of the client; it connects again to a single broker by itself."""
        if error.code() == _AWAY or error.fatal():
            self._away = error

    def _error(self, error: KafkaError) -> KafkaRequestError:
        return request_error(f"read of {self._topic}", error, right="READ", topic=self._topic)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # In other threads

    def _ask(self, positions: Mapping[int, int], *, connecting: bool) -> _Answer:
        at_s = time.time()
        topic = logs_of(self._reader, [self._topic], self._timeout_s)[self._topic]
        if topic.failure is not None:
            what = f"description of topic {self._topic}"
            raise request_error(what, topic.failure, topic=self._topic)
        retention_s = self._delete_retention_s() if connecting else _DAY_S
        return _Answer(at_s, positions, topic, retention_s)

    def _delete_retention_s(self) -> float:
        """Return how long tombstones stay in the topic; infinite if none are taken out."""
        settings = self._reader.topic_settings([self._topic])[self._topic]
        if isinstance(settings, OffsetManagerError):
            self._warn_once(f"{settings}; delete.retention.ms of one day is assumed")
            return _DAY_S
        if "compact" not in settings.get("cleanup.policy", "compact"):
            return inf
        return int(settings.get("delete.retention.ms", _DAY_S * 1_000)) / 1_000

    def _write(self, gathered: _Gathered) -> None:
        rows = gathered.rows
        if self._update is not None:
            pending = PendingRows(self._storage)
            for message in gathered.messages:
                self._update(pending, _message(self._topic, message))
            rows = pending.changes
        offsets = self._note_epochs(gathered.lasts)
        if offsets:
            self._storage.apply(rows, offsets)
        now_s = time.monotonic()
        recovered = []
        for number in offsets.keys() | gathered.ends.keys():
            part = self.partitions[number]
            part.wrote(
                gathered.counts.get(number, 0),
                offsets.get(number),
                gathered.ends.get(number),
                now_s,
            )
            if part.state is TableState.RECOVERING and (part.next_offset or 0) >= part.target:
                recovered.append(part)
        if recovered:
            self._enter(recovered, TableState.PREPARING)
            self._storage.flush()
            for part in recovered:
                part.recovery_s = part.recovery_s or time.monotonic() - part.began_s
                part.error = None
            self._enter(recovered, TableState.RUNNING)
        if all(part.state is TableState.RUNNING for part in self.partitions.values()):
            self.caught_up.set()

    def _note_epochs(self, lasts: Mapping[int, Message]) -> dict[int, int]:
        """Note the leader epochs of the last messages, and return their offsets."""
        for number, message in lasts.items():
            part, epoch = self.partitions[number], message.leader_epoch()
            if epoch is not None and epoch != part.leader_epoch:
                part.leader_epoch = epoch
                self._storage.note_leader_epoch(number, epoch)
        return {number: message.offset() or 0 for number, message in lasts.items()}

    def _enter(self, parts: Iterable[Progress], state: TableState) -> None:
        for part in parts:
            part.state = state
        self._changed()


def _message(topic: str, raw: Message) -> TableMessage:
    _, timestamp_ms = raw.timestamp()
    return TableMessage(
        topic,
        raw.key() or b"",
        raw.value(),
        raw.partition() or 0,
        raw.offset() or 0,
        timestamp_ms,
        headers_of(raw),
    )
