"""The commits of a consumer: to its own group in Kafka, as a member, or to another store."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotAnsweredError
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.consumer.claims import LATE_S, no_answer
from offsetmgr.consumer.settings import MOST_METADATA_CHARS
from offsetmgr.errors import OffsetManagerError, OffsetsUncommittedError, OffsetTimeoutError
from offsetmgr.kafka.errors import known, request_error
from offsetmgr.stores.base import OffsetStore, as_store_error, causes_of
from offsetmgr.text import listed
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from confluent_kafka import Consumer, KafkaError

    from offsetmgr.errors import KafkaRequestError
    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_Offsets: TypeAlias = "Mapping[TopicPartition, OffsetAndMetadata]"

_REBALANCING: Final = frozenset({"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"})
"""Refusals of a commit between two generations of the group; later it succeeds."""

_TOO_LONG: Final = "OFFSET_METADATA_TOO_LARGE"


class MemberStore(OffsetStore):
    """Commits as the member that ``consumer`` is; ``reader`` reads the same cluster."""

    def __init__(self, consumer: Consumer, reader: ClusterReader) -> None:
        self._consumer = consumer
        self._reader = reader
        self._begun: deque[Future[None]] = deque()  # answered in their order

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        # confluent-kafka's own `committed` reads beyond metadata that has no NUL at its end, and
        # what follows it may look like acks.
        if partitions is None:
            return known(self._reader.committed([group])[group])
        return self._reader.stable_offsets(group, partitions) if partitions else {}

    def commit(self, group: str, offsets: _Offsets) -> None:
        # While the coordinator is away this waits for the time-out of a session, as do all polls.
        try:
            answers = self._consumer.commit(offsets=_sent(offsets), asynchronous=False)
        except KafkaException as error:
            raise _refusal(group, error) from error
        _check(group, answers or ())

    def begin_commit(self, group: str, offsets: _Offsets) -> Future[None]:
        """Begin to commit; the answer comes during a later poll, by ``answered``."""
        answer: Future[None] = Future()
        try:
            self._consumer.commit(offsets=_sent(offsets), asynchronous=True)
        except KafkaException as error:
            answer.set_exception(_refusal(group, error))
        else:
            self._begun.append(answer)
        return answer

    def answered(
        self, group: str, error: KafkaError | None, answers: Iterable[KafkaPartition]
    ) -> None:
        """Take in librdkafka's answer to the oldest commit that was begun."""
        if not self._begun:
            return
        answer = self._begun.popleft()
        try:
            # Without an answer of Kafka's the partitions have no errors of their own.
            _check(group, answers)
            if error is not None:
                raise _refusal(group, error)
        except OffsetManagerError as failure:
            answer.set_exception(failure)
        else:
            answer.set_result(None)


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
        report: Callable[[OffsetManagerError, str], None],
    ) -> None:
        """``committed`` is called with the offsets that were committed."""
        self._store = store
        self._group = group
        self._committed = committed
        self._report = report
        self._most_chars = MOST_METADATA_CHARS
        self._what = f"commit for group {group}"
        self._sent: _Offsets = {}
        self._answer: Future[None] | None = None
        self._late_at_s = inf  # a Kafka that is away is reported by its client

    @property
    def under_way(self) -> bool:
        """True while a commit that was begun has no answer."""
        return self._answer is not None

    def begin(self, offsets: _Offsets) -> None:
        """Begin to commit, so that no poll waits for it; ``end`` has the answer."""
        if not offsets:
            return
        self._sent = offsets
        fitting = self._fitting()
        if isinstance(self._store, MemberStore):
            self._answer = self._store.begin_commit(self._group, fitting)
        else:
            self._answer = Question(partial(self._store.commit, self._group, fitting)).answer
            self._late_at_s = time.monotonic() + LATE_S

    def end(self, timeout_s: float = 0.0) -> OffsetManagerError | None:
        """Take in the answer of the commit under way, if it comes; return its error.

        Where it is late, return that as an error.
        """
        if self._answer is None:
            return None
        try:
            error = self._answer.exception(max(0.0, timeout_s))
        except NotAnsweredError:
            late = time.monotonic() > self._late_at_s
            return OffsetTimeoutError(f"{self._what}: {no_answer(LATE_S)}") if late else None
        self._answer = None
        if error is not None:
            failure = as_store_error(self._what, error)
            if not self._has_shortened(failure):
                return failure
            self.begin(self._sent)
            return self.end(timeout_s)
        self._committed(self._sent)
        return None

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

    def check_ended(self) -> None:
        """Raise OffsetTimeoutError if a commit is under way."""
        if self._answer is not None:
            text = f"{self._what}: no answer in time for {listed(sorted(self._sent))}"
            raise OffsetTimeoutError(text)

    def commit(self, offsets: _Offsets, timeout_s: float) -> None:
        """Commit, after a commit under way; each has ``timeout_s``.  Raises OffsetManagerError."""
        if isinstance(self._store, MemberStore):
            self._answer = None  # librdkafka keeps the order, and the answer needs a poll
            self._sent = offsets
            try:
                if offsets:
                    self._store.commit(self._group, self._fitting())
            except OffsetManagerError as failure:
                if not self._has_shortened(failure):
                    raise
                self.commit(offsets, timeout_s)
            else:
                self._committed(offsets)
            return
        self.end(timeout_s)
        self.check_ended()
        self.begin(offsets)
        if (error := self.end(timeout_s)) is not None:
            raise error
        self.check_ended()

    def answered(self, error: KafkaError | None, answers: Iterable[KafkaPartition]) -> None:
        """Take in librdkafka's answer to a commit that was begun."""
        if isinstance(self._store, MemberStore):
            self._store.answered(self._group, error, answers)


def _sent(offsets: _Offsets) -> list[KafkaPartition]:
    return [KafkaPartition(*key, each.offset, each.metadata) for key, each in offsets.items()]


def _refusal(group: str, error: KafkaError | KafkaException) -> KafkaRequestError:
    return request_error(f"commit of group {group}", error, right="READ")


def _check(group: str, answers: Iterable[KafkaPartition]) -> None:
    """Raise the errors of single partitions."""
    refused = {}
    for each in answers:
        if each.error is not None:
            refused[each.topic, each.partition] = request_error(
                f"commit of group {group} for {each.topic}-{each.partition}",
                each.error,
                right="READ",
                topic=each.topic,
                partition=each.partition,
                offset=each.offset,
            )
    if refused:
        raise OffsetsUncommittedError.one_of(refused)


def is_rebalancing(error: OffsetManagerError) -> bool:
    """Return True if a commit was refused as the group is between two generations."""
    return any(each.code in _REBALANCING for each in causes_of(error))
