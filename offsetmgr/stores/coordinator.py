"""The coordinator port over an offset store: managers that commit to any store."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from actors import Future, MonotonicClock, PoolDispatcher, Strand, ThreadTimers
from offsetmgr.answers import CommitResult, Failure, FenceCounts, FetchResult
from offsetmgr.codes import CLOSED, GENERATION_FENCED, STORE_FAILED, TIMED_OUT, Fault
from offsetmgr.coordinator.base import or_fail
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    CoordinatorError,
    KafkaRequestError,
    OffsetManagerError,
    OffsetStoreError,
    error_info,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.stores import open_store
from offsetmgr.stores.base import as_store_error, in_halves, offer_topic_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.stores import OffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_THREADS: Final = 8
"""Requests that may wait for the database at once."""

_LOOK_S: Final = 1.0
"""Time for Kafka to tell the ids of topics; the database's groups do not need it for more."""

_T = TypeVar("_T")

log = SafeLogger("offsetmgr.stores")


class StoreCoordinator:
    """Commits to ``store``, and asks ``kafka`` about topics; ``close`` closes both.

    The first commit of a partition claims it: from then on a database refuses the commits of a
    service that was started earlier.
    """

    def __init__(self, store: str | Mapping[str, object] | OffsetStore, kafka: Coordinator) -> None:
        """Raises InvalidValueError for a bad URL.  ``close`` leaves a given OffsetStore open."""
        # Failures at a URL are not retried here: a committer does it, with its newest offsets.
        self._store = open_store(store, patience_s=0.0)
        self._owned = self._store is not store
        self._claimed: dict[str, set[TopicPartition]] = {}  # by group
        self._kafka = kafka
        self._end_offer = offer_topic_ids(self._store, self._existing_ids)
        self.topic_logs = kafka.topic_logs
        self.topic_names = kafka.topic_names
        self._fenced: set[str] = set()
        self._clock = MonotonicClock()
        self._timers = ThreadTimers(self._clock, name="store-deadlines")
        self._closed = False
        self._threads = PoolDispatcher(_THREADS, 1, name="offset-store")
        self._lock = threading.Lock()
        self._strands = WeakValueDictionary[str, Strand]()
        """Of the groups with requests: those under way keep it alive."""

    @property
    def fence(self) -> FenceCounts:
        claimed = {group for group, partitions in [*self._claimed.items()] if partitions}
        return FenceCounts(len(claimed - self._fenced), len(self._fenced))

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}

        def work() -> FetchResult:
            if partitions is None:
                return FetchResult(self._store.fetch_offsets(group), {})
            errors = in_halves(
                partitions, lambda part: offsets.update(self._store.fetch_offsets(group, part))
            )
            return FetchResult(offsets, {where: _failure_of(e) for where, e in errors.items()})

        return self._ask(group, work, partial(FetchResult.failed, partitions), timeout_s)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        def claim(part: Sequence[TopicPartition]) -> None:
            self._store.claim(group, [*part])
            self._claimed[group].update(part)

        def commit(part: Sequence[TopicPartition]) -> None:
            self._store.commit(group, {each: offsets[each] for each in part})

        def work() -> CommitResult:
            claimed = self._claimed.setdefault(group, set())
            errors = in_halves([each for each in offsets if each not in claimed], claim)
            errors |= in_halves([each for each in offsets if each not in errors], commit)
            failures = {where: _failure_of(error) for where, error in errors.items()}
            if any(failure.info.code == GENERATION_FENCED for failure in failures.values()):
                self._fenced.add(group)
            return CommitResult(failures)

        return self._ask(group, work, partial(CommitResult.failed, offsets), timeout_s)

    def topic_ids(
        self, topics: Sequence[str], timeout_s: float
    ) -> Future[Mapping[str, str | Failure]]:
        """Read the ids of ``topics``; empty ones while Kafka is away, as commits do without it."""
        answer: Future[Mapping[str, str | Failure]] = Future()

        def answered(done: Future[Mapping[str, str | Failure]]) -> None:
            found = done.get().items()
            answer.set({topic: "" if _is_away(topic_id) else topic_id for topic, topic_id in found})

        wait_s = min(timeout_s, _LOOK_S)
        self._kafka.topic_ids(topics, wait_s).add_done_callback(or_fail(answer, answered))
        return answer

    def _existing_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics for the store; none while Kafka is away."""
        found = self.topic_ids([*topics], _LOOK_S).get()
        return {each: topic_id for each, topic_id in found.items() if isinstance(topic_id, str)}

    def release(self, group: str) -> None:
        """Keep the claims until ``close``: a newer service can take them over at any time."""

    def check(self, timeout_s: float) -> Future[Failure | None]:
        return self._ask("", self._store.check, lambda failure: failure, timeout_s)

    def close(self, timeout: float) -> None:
        deadline = Deadline(timeout)
        releases = [
            self._ask(group, partial(self._release, group), lambda why: why, timeout)
            for group in [*self._claimed]
        ]
        self._closed = True
        failures = [failure for each in releases if (failure := each.get()) is not None]
        if failures:
            text = "partitions of %d groups not released: %s"
            log.warning(text, len(failures), failures[0].reason)
        self._threads.stop(deadline.left_s)
        self._kafka.close(deadline.left_s)
        self._end_offer()
        if self._owned:
            self._store.close()
        self._timers.close()

    def _release(self, group: str) -> None:
        partitions = self._claimed[group]
        if partitions and group not in self._fenced:
            self._store.release(group, [*partitions])

    def _ask(
        self,
        group: str,
        work: Callable[[], _T],
        failed: Callable[[Failure], _T],
        timeout_s: float,
    ) -> Future[_T]:
        """Do ``work`` in a thread; the answer comes by the deadline, whatever the database does.

        The requests of a group are done one after the other: where one hangs, as on a locked row,
        those behind it do not take the threads of other groups.
        """
        future: Future[_T] = Future()
        if self._closed:
            future.set(failed(Failure(CLOSED)))
            return future
        late = Failure(error_info(TIMED_OUT), "the offset store did not answer in time")
        timer = self._timers.call_after(timeout_s, lambda: future.set(failed(late)))

        def run(_: int) -> None:
            if future.done():
                return
            try:
                future.set(work())
            except BaseException as error:  # noqa: BLE001 -- whatever a store raises is the answer
                future.set(failed(_failure_of(as_store_error("offset store", error))))
            timer.cancel()

        with self._lock:
            strand = self._strands.setdefault(group, Strand(self._threads))
        strand.schedule(_Request(group, run))
        return future


class _Request(NamedTuple):
    """A request of a group, as a dispatcher runs it."""

    path: str
    run: Callable[[int], None]


def _failure_of(error: OffsetManagerError) -> Failure:
    """Return an error as an answer; it may pass unless the error says otherwise."""
    if isinstance(error, (CoordinatorError, KafkaRequestError, OffsetStoreError)):
        return Failure(error.info, error.detail)
    return Failure(error_info(STORE_FAILED), str(error))


def _is_away(topic_id: str | Failure) -> bool:
    """Return True if Kafka has not answered."""
    return isinstance(topic_id, Failure) and topic_id.info.fault is Fault.NETWORK
