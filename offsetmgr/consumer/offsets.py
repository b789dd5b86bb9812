"""The offsets of a consumer's partitions: claims and commits, in its group in Kafka or a store.

A store is asked in threads of its own, so that no poll waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotAnsweredError
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.backoff import Backoff
from offsetmgr.consumer.settings import MOST_METADATA_CHARS
from offsetmgr.errors import OffsetManagerError, OffsetTimeoutError
from offsetmgr.kafka.errors import known, request_error
from offsetmgr.stores.base import (
    OffsetStore,
    as_store_error,
    causes_of,
    checked_answer,
    raise_for,
)
from offsetmgr.text import listed
from offsetmgr.types import TopicPartition
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from confluent_kafka import Consumer, KafkaError

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.types import OffsetAndMetadata

_LATE_S: Final = 10.0  # a store that has not answered for so long is reported
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

_REBALANCING: Final = frozenset({"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"})
"""Refusals of a commit between two generations of the group; later it succeeds."""

_TOO_LONG: Final = "OFFSET_METADATA_TOO_LARGE"

_Offsets: TypeAlias = "Mapping[TopicPartition, OffsetAndMetadata]"
_Found: TypeAlias = "dict[TopicPartition, OffsetAndMetadata | None]"
_Report: TypeAlias = "Callable[[OffsetManagerError, str], object]"


def late_error(what: str, late_s: float = _LATE_S) -> OffsetTimeoutError:
    text = f"the store has not answered for {late_s:g} s; it is waited for"
    return OffsetTimeoutError(f"{what}: {text}")


def is_late(asked_at_s: float) -> bool:
    """Return True if a store that has not answered is to be reported."""
    return time.monotonic() - asked_at_s > _LATE_S


def answer_with(answer: Future[None], work: Callable[[], None]) -> Future[None]:
    """Set the answer to what ``work`` does."""
    try:
        work()
    except OffsetManagerError as failure:
        answer.set_exception(failure)
    else:
        answer.set_result(None)
    return answer


class MemberStore(OffsetStore):
    """Commits as the member that ``client`` returns; ``reader`` reads the same cluster."""

    def __init__(self, client: Callable[[], Consumer], reader: ClusterReader) -> None:
        self._client = client
        self._reader = reader
        self.begun: deque[tuple[str, Future[None]]] = deque()
        """Groups and answers of commits, which come in their order."""

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        # confluent-kafka's own `committed` reads beyond metadata that has no NUL at its end, and
        # what follows it may look like acks.
        if partitions is None:
            return known(self._reader.committed([group])[group])
        return self._reader.stable_offsets(group, partitions) if partitions else {}

    def commit(self, group: str, offsets: _Offsets) -> None:
        """Commit; while the coordinator is away, this waits for the time-out of a session."""
        try:
            sent = [as_kafka(*each) for each in offsets.items()]
            answers = self._client().commit(offsets=sent, asynchronous=False)
        except KafkaException as error:
            raise request_error(f"commit of group {group}", error, right="READ") from error
        _check(group, None, answers or ())

    def begin_commit(self, group: str, offsets: _Offsets) -> Future[None]:
        """Begin to commit; the answer comes during a later poll, by ``answered``."""
        answer: Future[None] = Future()
        try:
            sent = [as_kafka(*each) for each in offsets.items()]
            self._client().commit(offsets=sent, asynchronous=True)
        except KafkaException as error:
            what = f"commit of group {group}"
            answer.set_exception(request_error(what, error, right="READ"))
        else:
            self.begun.append((group, answer))
        return answer

    def answered(self, error: KafkaError | None, answers: Iterable[KafkaPartition]) -> None:
        """Take in librdkafka's answer to the oldest commit that was begun."""
        if self.begun:
            group, answer = self.begun.popleft()
            answer_with(answer, partial(_check, group, error, answers))


def as_kafka(where: TopicPartition, at: OffsetAndMetadata) -> KafkaPartition:
    """Return an offset of a partition as confluent-kafka takes it."""
    epoch = -1 if at.leader_epoch is None else at.leader_epoch
    return KafkaPartition(*where, at.offset, at.metadata, epoch)


def _check(group: str, error: KafkaError | None, answers: Iterable[KafkaPartition]) -> None:
    """Raise the errors of single partitions, which there are only in answers of Kafka's."""
    what = f"commit of group {group}"
    refused: dict[TopicPartition, OffsetManagerError] = {}
    for each in answers:
        if each.error is not None:
            refused[TopicPartition(each.topic, each.partition)] = request_error(
                f"{what} for {each.topic}-{each.partition}",
                each.error,
                right="READ",
                topic=each.topic,
                partition=each.partition,
                offset=each.offset,
            )
    raise_for(group, refused)
    if error is not None:
        raise request_error(what, error, right="READ")


class Commits:
    """Commits of a consumer, one at a time; for one thread at a time.

    Metadata that is longer than the broker takes (``offset.metadata.max.bytes``) is left out: it
    must not cost the offset.
    """

    def __init__(
        self,
        store: OffsetStore,
        group: str,
        committed: Callable[[_Offsets], object],
        report: _Report,
        recommit_interval_s: float = inf,
    ) -> None:
        """``committed`` is called with the offsets that were committed.

        What has not changed for ``recommit_interval_s`` is ``expiring``: Kafka would delete it.
        """
        self._store = store
        self._group = group
        self._committed = committed
        self._report = report
        self._most_chars = MOST_METADATA_CHARS
        self._what = f"commit for group {group}"
        self._sent: _Offsets = {}
        self._at_once = False
        self._begun_at_s = 0.0
        self._answer: Future[None] | None = None
        self._recommit_interval_s = recommit_interval_s
        self._unchanged: dict[TopicPartition, tuple[OffsetAndMetadata, float]] = {}
        """Committed offsets, and since when."""

    def keep(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Take in what is committed."""
        now_s = time.monotonic()
        self._unchanged.update((each, (at, now_s)) for each, at in committed.items() if at)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._unchanged.pop(each, None)

    def expiring(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed again."""
        old_s = time.monotonic() - self._recommit_interval_s
        return {each: at for each, (at, since_s) in self._unchanged.items() if since_s <= old_s}

    @property
    def under_way(self) -> bool:
        """True while a commit that was begun has no answer."""
        return self._answer is not None

    def begin(self, offsets: _Offsets, *, at_once: bool = False) -> None:
        """Begin to commit; ``end`` has the answer.

        That of a member needs a poll, or is waited for here ``at_once``.  librdkafka keeps the
        order of both.
        """
        if not offsets:
            return
        self._sent, self._at_once, self._begun_at_s = offsets, at_once, time.monotonic()
        fitting = self._fitting()
        commit = partial(self._store.commit, self._group, fitting)
        if not isinstance(self._store, MemberStore):
            self._answer = Question(commit).answer
        elif at_once:
            self._answer = answer_with(Future(), commit)
        else:
            self._answer = self._store.begin_commit(self._group, fitting)

    def end(self, timeout_s: float = 0.0) -> OffsetManagerError | None:
        """Take in the answer of the commit under way, if it comes; return its error.

        Where it is late, return that as an error.  A Kafka that is away is reported by its client.
        """
        if self._answer is None:
            return None
        try:
            error = self._answer.exception(max(0.0, timeout_s))
        except NotAnsweredError:
            is_reported = is_late(self._begun_at_s) and not isinstance(self._store, MemberStore)
            return late_error(self._what) if is_reported else None
        self._answer = None
        if error is None:
            self.keep(self._sent)
            self._committed(self._sent)
            return None
        failure = as_store_error(self._what, error)
        if not self._has_shortened(failure):
            return failure
        self.begin(self._sent, at_once=self._at_once)
        return self.end(timeout_s)

    def abandon(self) -> None:
        """Wait for no answer of the commit under way."""
        self._answer = None
        if isinstance(self._store, MemberStore):
            self._store.begun.clear()

    def _fitting(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be sent, without metadata that is known to be too long."""
        return {
            where: at if len(at.metadata) <= self._most_chars else at._replace(metadata="")
            for where, at in self._sent.items()
        }

    def _has_shortened(self, error: OffsetManagerError) -> bool:
        """Return True if metadata was refused as too long, and will be left out."""
        refused = {(e.topic, e.partition): e for e in causes_of(error) if e.code == _TOO_LONG}
        lengths = [
            len(at.metadata)
            for where, at in self._fitting().items()
            if at.metadata and (where in refused or (None, None) in refused)
        ]  # librdkafka may name none where all are refused
        if lengths:
            self._most_chars = min(lengths) - 1
            for each in refused.values():
                self._report(each, "metadata is left out of commits")
        return bool(lengths)

    def unanswered(self) -> OffsetTimeoutError | None:
        """Return an error if a commit is under way."""
        if not self.under_way:
            return None
        text = f"{self._what}: no answer in time for {listed(sorted(self._sent))}"
        return OffsetTimeoutError(text)


def is_rebalancing(error: OffsetManagerError) -> bool:
    """Return True if a commit was refused as the group is between two generations."""
    return any(each.code in _REBALANCING for each in causes_of(error))


def claim(store: OffsetStore, group: str, partitions: Collection[TopicPartition]) -> _Found:
    """Claim ``partitions`` and return their committed offsets.

    Raises OffsetManagerError, whatever error the store raises.
    """
    try:
        return checked_answer(store.claim(group, [*partitions]), partitions)
    except Exception as error:
        raise as_store_error(f"claim for group {group}", error) from error


class Claims:
    """Claims partitions in the background, and releases them; for one thread at a time.

    The store is asked one thing at a time, in order.  A failed claim is reported and retried with
    back-off until it succeeds or the partitions are dropped: no message of a partition may be
    delivered before.  It is retried in halves, so that a partition that cannot be claimed holds up
    no other.
    """

    def __init__(self, store: OffsetStore, group: str, report: _Report) -> None:
        self._store = store
        self._group = group
        self._report = report
        self._wanted: dict[TopicPartition, None] = {}  # in the order in which they are asked for
        self._most: int | None = None  # partitions of the next claim; None for all
        self._claim: Question[_Found] | None = None
        self._claiming: set[TopicPartition] = set()  # those of the claim that are wanted ever since
        self._last: Question[Any] | None = None  # the next one comes after this
        self._due_s = 0.0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to claim ``partitions``."""
        self._wanted.update(dict.fromkeys(partitions))

    def take(self, timeout_s: float = 0.0) -> _Found:
        """Return what was claimed since the last call; wait up to ``timeout_s`` for it."""
        if self._claim is None and self._wanted and time.monotonic() >= self._due_s:
            self._claiming = set(islice(self._wanted, self._most))
            ask = partial(claim, self._store, self._group, [*self._claiming])
            self._claim = self._last = Question(ask, after=self._last)
        question = self._claim
        if question is None:
            return {}
        if not question.wait(timeout_s):
            if is_late(question.asked_at_s):
                self._report_late("claim")
            return {}
        claimed, self._claim, self._claiming = self._claiming, None, set()
        if (failure := question.answer.exception()) is not None:
            self._due_s = time.monotonic() + self._backoff.failed()
            error = as_store_error(f"claim for group {self._group}", failure)
            self._report(error, "could not claim partitions; tries again")
            self._most = max(1, len(claimed) // 2)
            for each in claimed:
                self._wanted[each] = self._wanted.pop(each)  # the others come first
            return {}
        self._backoff.succeeded()
        self._most = None
        self.drop(claimed)
        committed = question.result()
        return {each: committed[each] for each in claimed}

    def drop(self, partitions: Collection[TopicPartition], timeout_s: float = 0.0) -> None:
        """Claim ``partitions`` no longer; release those that were claimed and not taken.

        Waits up to ``timeout_s`` for a claim under way, which could else end after their next
        owner's.
        """
        for each in partitions:
            self._wanted.pop(each, None)
        stale = self._claiming.intersection(partitions)
        self._claiming -= stale
        self.release(stale, timeout_s, claim=self._claim)

    def close(self, timeout_s: float) -> None:
        """Drop all partitions; wait up to ``timeout_s`` for a claim under way."""
        self.drop([*self._wanted], timeout_s)

    def release(
        self,
        partitions: Collection[TopicPartition],
        timeout_s: float = 0.0,
        claim: Question[_Found] | None = None,
    ) -> None:
        """Give partitions back, if their ``claim`` succeeds; wait up to ``timeout_s`` for it.

        A failure is reported.
        """
        if not partitions:
            return

        def work() -> None:
            if claim is None or claim.answer.exception() is None:
                self._store.release(self._group, partitions)

        self._last = Question(work, after=self._last)
        self._last.answer.add_done_callback(self._check_release)
        if timeout_s and not self._last.wait(timeout_s):
            self._report_late("release", timeout_s)

    def _check_release(self, answer: Future[None]) -> None:
        if (error := answer.exception()) is not None:
            what = f"release for group {self._group}"
            self._report(as_store_error(what, error), "could not give back partitions")

    def _report_late(self, what: str, late_s: float = _LATE_S) -> None:
        late = late_error(f"{what} for group {self._group}", late_s)
        self._report(late, "the store does not answer")
