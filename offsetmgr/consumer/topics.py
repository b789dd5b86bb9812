"""The topics that a consumer reads, by name and pattern, and their logs, by the topics' ids."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, TOPIC_RECREATED, UNKNOWN_TOPIC, error_info
from offsetmgr.consumer.offsets import is_late, late_error
from offsetmgr.consumer.settings import REFRESH_S
from offsetmgr.errors import InvalidValueError, KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.errors import does_not_exist, known
from offsetmgr.stores.base import as_store_error
from offsetmgr.text import listed
from offsetmgr.types import MAX_OFFSET, TopicPartition
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from confluent_kafka import Consumer, Message

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.stores import OffsetStore
    from offsetmgr.types import OffsetAndMetadata

_Report: TypeAlias = "Callable[[OffsetManagerError, str], None]"
_Found: TypeAlias = (
    "tuple[list[str], dict[TopicPartition, int], dict[str, str], dict[str, OffsetManagerError]]"
)

INTERNAL: Final = "__"  # begins the names of Kafka's own topics
_RETRY_S: Final = 1.0
_NOT_READ: Final = "a partition cannot be read"

SETTLED_REFRESHES: Final = 1.2
"""Refreshes of librdkafka's metadata from a rebalance to a look for unassigned partitions."""
_LONGEST_SETTLED_S: Final = 3_600.0

_FETCH_S: Final = 3.0
"""A fetch of a new log is answered within this time, as topics are looked up each second."""

LOOK_S: Final = 1.0
"""A commit uses topic ids that were looked up so recently, and waits so long for them."""


@dataclass(frozen=True)
class Subscription:
    """Names of topics, and patterns that match anywhere in a name."""

    names: Sequence[str]
    include: str | None = None
    """A regular expression of further topics."""
    exclude: str | None = None
    """A regular expression of topics that ``include`` leaves out."""
    own: str | None = None
    """A regular expression of retry and dead-letter topics that ``include`` does not match."""
    retries: Sequence[str] = ()
    """Retry topics, which are read too."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a bad pattern."""
        given: dict[str, object] = {"include": self.include, "exclude": self.exclude}
        for field, pattern in given.items():
            if pattern is None:
                continue
            problem = "is not a regular expression"
            try:
                good = isinstance(pattern, str) and bool(pattern) and bool(re.compile(pattern))
            except (re.error, RecursionError, OverflowError) as error:
                good, problem = False, f"{problem}: {error}"
            if not good:
                raise InvalidValueError(field, pattern, problem, 'give one, such as "^orders"')
        if self.exclude is not None and self.include is None:
            hint = "give include too, or leave topics out of the list"
            raise InvalidValueError("exclude", self.exclude, "has nothing to leave out", hint)

    def of(self, existing: Iterable[str]) -> list[str]:
        """Return the topics to read, where ``existing`` ones may match."""
        found = [each for each in sorted(existing) if self.include and self._matches(each)]
        return list(dict.fromkeys([*self.names, *found, *self.retries]))

    def _matches(self, topic: str) -> bool:
        include = self.include or ""
        if topic.startswith(INTERNAL) and INTERNAL not in include:
            return False
        if self.own is not None and re.fullmatch(self.own, topic):
            return False
        excluded = self.exclude is not None and re.search(self.exclude, topic)
        return not excluded and re.search(include, topic) is not None


class Discovery:
    """Finds the topics to subscribe to, in the background; for one thread."""

    def __init__(
        self,
        subscription: Subscription,
        reader: ClusterReader,
        store: OffsetStore,
        group: str,
        report: _Report,
        kafka: Mapping[str, Any],
        *,
        latest: bool,
    ) -> None:
        """With ``latest`` topics that were not read before begin where they end now."""
        self.topics: list[str] = []
        """Topics as of the last discovery."""
        self.firsts: dict[TopicPartition, int] = {}
        """With ``latest``: where the logs ended that the group had not read, at the first one."""
        self.first_ids: dict[str, str] = {}
        """The ids of the topics whose logs those are, where Kafka told them."""
        self.subscription: Final = subscription
        self._reader = reader
        self._store = store
        self._group = group
        self._report = report
        refresh_ms = float(kafka.get("topic.metadata.refresh.interval.ms", 0))
        self._interval_s = max(_RETRY_S, refresh_ms / 1000) if refresh_ms > 0 else REFRESH_S
        self.unassigned: Final = Unassigned(reader, group, report, self._interval_s)
        self._unplaced: Collection[str] | None = None if latest else ()
        """Topics whose ends are to be looked up, at first with ``latest`` all."""
        self._due_s = -inf
        self._question: Question[_Found] | None = None

    def changed(self) -> bool:
        """Return True if ``topics`` are others since the last call."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        if self.subscription.include is None and self._unplaced == ():
            self.topics, self._due_s = self.subscription.of(()), inf
            return True
        if self._question is None:
            self._question = Question(self._discover)
        what = f"topics of group {self._group}"
        if not self._question.wait():
            if is_late(self._question.asked_at_s):
                self._report(late_error(what), "the store does not answer")
            return False
        question, self._question = self._question, None
        if (failure := question.answer.exception()) is not None:  # of a user's store, too
            self._report(as_store_error(what, failure), "could not look up topics; tries again")
            self._due_s = now_s + _RETRY_S
            return False
        topics, firsts, first_ids, failures = question.result()
        self.firsts = firsts | self.firsts
        self.first_ids = first_ids | self.first_ids
        self._unplaced = tuple(failures)
        for failure in failures.values():
            self._report(failure, "could not look up a topic; tries again")
        if failures:
            self._due_s = now_s + _RETRY_S
        else:
            self._due_s = inf if self.subscription.include is None else now_s + self._interval_s
        if not (topics or failures):
            text = f"no topic matches {self.subscription.include!r}; tries again"
            what = f"include of group {self._group}"
            nothing = KafkaRequestError(what, error_info(UNKNOWN_TOPIC), text)
            self._report(nothing, "there is nothing to read")
        before, self.topics = self.topics, topics
        return topics != before

    def _discover(self) -> _Found:
        """Return the topics to read, ends and ids of new ones, and why others are not read yet."""
        existing = self._reader.topic_names() if self.subscription.include is not None else ()
        topics = self.subscription.of(existing)
        unplaced = topics if self._unplaced is None else [e for e in topics if e in self._unplaced]
        # What waits in a retry topic is acknowledged where it came from: none of it may be skipped.
        unplaced = [each for each in unplaced if each not in self.subscription.retries]
        if not unplaced:
            return topics, {}, {}, {}
        ids = self._reader.topic_ids(unplaced)
        first_ids = {topic: each for topic, each in ids.items() if isinstance(each, str)}
        firsts, failures = first_positions(self._reader, self._store, self._group, unplaced)
        readable = [each for each in topics if each not in failures]
        return readable, firsts, first_ids, failures


def first_positions(
    reader: ClusterReader, store: OffsetStore, group: str, topics: Collection[str]
) -> tuple[dict[TopicPartition, int], dict[str, OffsetManagerError]]:
    """Return where the logs end of topics that ``group`` has not read yet, and failures by topic.

    A topic of which a partition is committed was read before: partitions of it that are not
    committed are new.  Raises what Kafka or the store raises.
    """
    described = {
        topic: numbers
        for topic, numbers in reader.partitions_of(topics).items()
        if not does_not_exist(numbers)
    }
    failures = {t: each for t, each in described.items() if isinstance(each, OffsetManagerError)}
    partitions = [
        TopicPartition(topic, number)
        for topic in described.keys() - failures.keys()
        for number in known(described[topic])
    ]
    committed = store.fetch(group, partitions) if partitions else {}
    read = {each.topic for each in partitions if committed.get(each) is not None}
    logs = reader.log_ranges([each for each in partitions if each.topic not in read])
    failures |= {e.topic: log for e, log in logs.items() if isinstance(log, OffsetManagerError)}
    firsts = {e: known(log).high_watermark for e, log in logs.items() if e.topic not in failures}
    return firsts, failures


def missing_partition(
    existing: Mapping[str, list[int] | OffsetManagerError], topic_partition: TopicPartition
) -> OffsetManagerError | None:
    """Return why a partition cannot be read yet; ``existing`` are the partitions by topic."""
    topic, partition = topic_partition
    numbers = existing[topic]
    if isinstance(numbers, OffsetManagerError):
        return numbers
    if partition in numbers:
        return None
    what, info = f"reading of {topic_partition}", error_info(UNKNOWN_TOPIC)
    return KafkaRequestError(what, info, topic=topic, partition=partition)


def report_missing(
    reader: ClusterReader, partitions: Collection[TopicPartition], report: _Report
) -> None:
    """Report partitions that do not exist: librdkafka waits for them in silence."""
    existing = reader.partitions_of({each.topic for each in partitions})
    for topic_partition in partitions:
        if (error := missing_partition(existing, topic_partition)) is not None:
            report(error, _NOT_READ)


class Unassigned:
    """Finds partitions that a rebalance has assigned to no member; for one thread.

    A topic that is away during a rebalance is assigned to nobody.  Once it is back, librdkafka
    (2.16) joins again if the topic has other partitions than at the last refresh of its metadata.
    If that was before the topic was deleted, they are the same, and no member would ever read it.
    """

    def __init__(
        self, reader: ClusterReader, group: str, report: _Report, refresh_s: float
    ) -> None:
        """The metadata is refreshed every ``refresh_s``."""
        self._reader = reader
        self._group = group
        self._report = report
        self._first_pause_s = self._pause_s = SETTLED_REFRESHES * refresh_s
        self._due_s = inf
        self._before: frozenset[TopicPartition] = frozenset()
        self._question: Question[frozenset[TopicPartition] | None] | None = None

    def begin(self) -> None:
        """The group has rebalanced."""
        self._question, self._before = None, frozenset()
        self._due_s = time.monotonic() + self._pause_s

    def are_found(self, topics: Sequence[str]) -> bool:
        """Return True, and report it, if two looks found the same unassigned ones of ``topics``."""
        if time.monotonic() < self._due_s:
            return False
        if self._question is None:
            self._question = Question(partial(self._look, topics))
        if not self._question.wait():
            return False
        question, self._question = self._question, None
        # All members look, and where one of them has joined again, the others begin anew.
        self._due_s = time.monotonic() + self._first_pause_s * random.uniform(0.1, 0.3)  # noqa: S311 -- jitter
        found = None if question.answer.exception() else question.result()
        if found is None:  # Kafka is away, or the next rebalance is under way
            return False
        unassigned, self._before = found & self._before, found
        if not found:
            self._pause_s, self._due_s = self._first_pause_s, inf
        if not unassigned:
            return False
        self._pause_s = min(2 * self._pause_s, _LONGEST_SETTLED_S)  # it may not help
        text = f"{listed(sorted(unassigned))} were assigned to no member; the group rebalances"
        what, info = f"assignment of group {self._group}", error_info(UNKNOWN_TOPIC)
        self._report(KafkaRequestError(what, info, text), "partitions were not read")
        return True

    def _look(self, topics: Sequence[str]) -> frozenset[TopicPartition] | None:
        """Return the unassigned partitions; None while the group rebalances."""
        group = known(self._reader.describe([self._group])[self._group])
        if group.state != "Stable":
            return None
        assigned = {each for member in group.members for each in member.partitions}
        return frozenset(
            TopicPartition(topic, number)
            for topic, numbers in self._reader.partitions_of(topics).items()
            if not isinstance(numbers, OffsetManagerError)
            for number in numbers
            if (topic, number) not in assigned
        )


class LogWatch:
    """The logs that a consumer reads, by the ids of their topics; for one thread at a time.

    Brokers before 2.8 have no ids: there a recreated topic is noticed once an offset is out of
    range.
    """

    def __init__(self, reader: ClusterReader, group: str, report: _Report, *, alone: bool) -> None:
        """``alone``: without membership, where librdkafka reports no missing topics."""
        self.doubts: dict[TopicPartition, int | None] = {}
        """Partitions whose offset is not in their log; None if their topic was recreated."""
        self.missing: frozenset[str] = frozenset()
        """Topics that did not exist at the last look."""
        self.positions: dict[TopicPartition, int] = {}
        """Offsets at which partitions were claimed, or up to which they were committed since."""
        self.received: dict[TopicPartition, tuple[int, int | None]] = {}
        """The offsets after the newest messages of the logs, and the leader epochs of those."""
        self.starts: dict[TopicPartition, KafkaPartition] = {}
        """The places where reading of the assigned partitions began."""
        self.uncompared: dict[TopicPartition, KafkaPartition] = {}
        """Starts whose leader epochs are still to be compared; what comes of them is dropped."""
        self.recreated: set[str] = set()
        """Topics that were recreated since the member's client was opened."""
        self.unfetched: dict[TopicPartition, tuple[int | None, float]] = {}
        """Partitions of which nothing was received since their reading began: the ends of their
        logs at the last fetch before, None without one, and when it began."""
        self._reader = reader
        self._group = group
        self._report = report
        self._alone = alone
        self._ids: dict[TopicPartition, str] = {}
        self._topic_ids: dict[str, str] = {}
        self._seen_at_s = -inf
        self._question: Question[Mapping[str, str | OffsetManagerError]] | None = None

    def expire(self) -> None:
        """Let the next look ask again, also where a question is under way."""
        self._seen_at_s = -inf
        self._question = None

    def begin(self, topic_partition: TopicPartition, offset: int, topic_id: str = "") -> bool:
        """Take in that a partition is claimed, and read from ``offset`` on.

        Returns True if that is our own position in a former claim, of which the log has to be the
        same.  Else it has to be that of ``topic_id``; without one it is taken as it is at the next
        look.
        """
        resumed = self.positions.get(topic_partition) == offset
        if not resumed:
            self._ids.pop(topic_partition, None)
            self._ids.update({topic_partition: topic_id} if topic_id else {})
            self.positions[topic_partition] = offset
            self.received.pop(topic_partition, None)
        return resumed

    def receive(self, topic_partition: TopicPartition, newest: Message) -> None:
        self.unfetched.pop(topic_partition, None)
        self.received[topic_partition] = (newest.offset() or 0) + 1, newest.leader_epoch()

    def compare(self, consumer: Consumer, assigned: Iterable[KafkaPartition] = ()) -> None:
        """Have librdkafka compare the starts' leader epochs, also of those now ``assigned``."""
        for at in assigned:
            each = TopicPartition(at.topic, at.partition)
            self.uncompared.pop(each, None)
            if at is self.starts[each] and at.offset > 0 and at.leader_epoch is not None:
                self.uncompared[each] = at
        for each, start in list(self.uncompared.items()):
            try:
                consumer.seek(start)
            except KafkaException as error:
                # It is read once a commit under way is answered, or the leader is known.
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001
                    continue
            del self.uncompared[each]

    def places(
        self, consumer: Consumer, partitions: Iterable[TopicPartition]
    ) -> list[KafkaPartition]:
        """Return ``partitions`` with the offsets where the application goes on."""
        places = {each: self.starts[each] for each in sorted(partitions)}
        asked = [KafkaPartition(*each) for each in places if each not in self.uncompared]
        for place in consumer.position(asked):
            if place.offset >= 0:
                places[TopicPartition(place.topic, place.partition)] = place
        return [*places.values()]

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            for places in (self.doubts, self.unfetched, self.starts, self.uncompared):
                places.pop(each, None)

    def look(self, partitions: Collection[TopicPartition], wait_s: float = 0.0) -> bool:
        """Look topics up, unless that was done within 1 s; doubt partitions with another log.

        False if nothing is answered within ``wait_s``.  One that takes long is not waited for.
        """
        if not partitions or time.monotonic() - self._seen_at_s < LOOK_S:
            return True
        if self._question is None:
            topics = {each.topic for each in partitions}
            self._question = Question(lambda: self._reader.topic_ids(topics))
        question = self._question
        if not question.wait(wait_s):
            return time.monotonic() - question.asked_at_s >= LOOK_S
        self._question = None
        try:
            found = question.result()
        except Exception as error:  # noqa: BLE001 -- the reader may be closed
            self._report(as_store_error("topic ids", error), "could not look up topics")
            return True
        self._seen_at_s = question.asked_at_s
        self.missing = frozenset(topic for topic, each in found.items() if does_not_exist(each))
        for each in partitions:
            topic_id = found.get(each.topic)
            if isinstance(topic_id, str) and topic_id:
                if self._ids.setdefault(each, topic_id) != topic_id:
                    self.doubts[each] = None
                self._ids[each] = topic_id
                if self._topic_ids.setdefault(each.topic, topic_id) != topic_id:
                    self._topic_ids[each.topic] = topic_id
                    self.recreated.add(each.topic)
            elif self._alone and isinstance(topic_id, OffsetManagerError):
                self._report(topic_id, _NOT_READ)
        return True

    def unread(
        self, reading: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """Return those of ``reading``, which are not paused, that the member's client cannot read.

        ``ends`` are the ends of the logs at their last fetches.

        librdkafka (2.16, issue 4898) takes no leader whose epoch is lower than the one it knows.
        The epochs of a recreated topic begin with 0 again, so after a fail-over of the former topic
        it asks the former leader forever, in silence.  Only another client reads the new log.
        """
        if not self.recreated:
            return []
        now_s = time.monotonic()
        for each, (end, _) in list(self.unfetched.items()):
            if ends.get(each) != end:
                del self.unfetched[each]
            elif each.topic not in self.recreated or each in self.doubts or each not in reading:
                self.unfetched[each] = end, now_s
        return sorted(e for e, (_, at_s) in self.unfetched.items() if now_s - at_s >= _FETCH_S)

    def leave_out_former(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        partitions: Collection[TopicPartition],
    ) -> KafkaRequestError | None:
        """Drop offsets that may be of another log; return an error of those without a topic.

        Looks the topics of ``partitions`` up, for up to 1 s.  The others get the leader epochs of
        what was received, by which a log that is cut later is found.
        """
        if not self.missing.isdisjoint(each.topic for each in offsets):
            self.expire()
        if offsets:
            self.look(partitions, LOOK_S)
        missing = [each for each in offsets if each.topic in self.missing]
        for each in {*missing, *self.doubts}:
            offsets.pop(each, None)
        for each, at in offsets.items():
            end, epoch = self.received.get(each, (-1, None))
            if at.offset <= end:
                offsets[each] = at._replace(leader_epoch=epoch)
        if not missing:
            return None
        text, info = f"the topic of {listed(missing)} does not exist", error_info(UNKNOWN_TOPIC)
        what = f"commit for group {self._group}"
        return KafkaRequestError(what, info, text, topic=missing[0].topic)


def restart_at(
    topic_partition: TopicPartition, offset: int | None, low: int, high: int, *, latest: bool
) -> tuple[int, KafkaRequestError | None]:
    """Return the offset at which to go on in a log from ``low`` up to before ``high``, and why.

    ``offset`` was out of range; MAX_OFFSET if that part of the log was replaced by another one, and
    None if the topic was recreated, which is read from its start.  A logical offset stays.
    """
    start, code = high if latest else low, OFFSET_OUTSIDE_LOG
    if offset is None:
        start, code = low, TOPIC_RECREATED
        text = f"its new log of {high - low} records is read from offset {low} on"
    elif 0 <= offset < low:
        start = low
        text = f"{low - offset} records were deleted before they were read; goes on at {low}"
    elif offset > high:
        cut = "was cut before" if offset == MAX_OFFSET else "ends at"
        text = f"the log {cut} {high}; goes on at {start}, so {high - start} are read again"
        offset = None if offset == MAX_OFFSET else offset
    else:
        return offset, None
    topic, partition = topic_partition
    place: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset}
    error = KafkaRequestError(f"reading of {topic_partition}", error_info(code), text, **place)
    return start, error
