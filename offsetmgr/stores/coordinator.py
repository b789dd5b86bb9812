"""The coordinator port over an offset store: a service whose groups are kept in a database."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

from actors import Future, MonotonicClock, ThreadTimers
from offsetmgr.answers import CommitResult, Failure, FenceCounts, FetchResult
from offsetmgr.codes import CLOSED, GENERATION_FENCED
from offsetmgr.errors import OffsetFetchError, OffsetStoreError, error_info
from offsetmgr.stores import open_database
from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.stores.sql import SqlOffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

THREADS: Final = 8
"""Requests that may wait for the database at once."""

_TIMED_OUT: Final = Failure(error_info(-185), "the offset store did not answer in time")

_T = TypeVar("_T")


class StoreCoordinator:
    """Commits to ``store``, and asks ``kafka`` about topics; ``close`` closes both.

    The first commit of a partition claims it: from then on the store refuses the commits of a
    service that was started earlier.
    """

    def __init__(self, store: SqlOffsetStore, kafka: Coordinator) -> None:
        self._store = store
        self._kafka = kafka
        self.topic_logs = kafka.topic_logs
        self.topic_names = kafka.topic_names
        self._groups: set[str] = set()  # with claims
        self._fenced: set[str] = set()
        self._clock = MonotonicClock()
        self._timers = ThreadTimers(self._clock, name="store-deadlines")
        self._closed = False
        self._requests: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # Daemons, so that a database that hangs does not keep the process from its end.
        self._workers = [
            threading.Thread(target=self._work, name=f"offset-store-{number}", daemon=True)
            for number in range(THREADS)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def fence(self) -> FenceCounts:
        fenced = len(self._fenced)
        return FenceCounts(len(self._groups) - fenced, fenced)

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        def work() -> FetchResult:
            return FetchResult(self._store.fetch_offsets(group, partitions), {})

        def failed(failure: Failure) -> FetchResult:
            if partitions is None:
                return FetchResult({}, {}, failure)
            return FetchResult({}, dict.fromkeys(partitions, failure))

        return self._ask(work, failed, timeout_s)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        def work() -> CommitResult:
            self._store.claim_new(group, offsets)
            self._groups.add(group)
            refused = self._store.try_commit(group, offsets)
            if any(error.info.code == GENERATION_FENCED for error in refused.values()):
                self._fenced.add(group)
            failures = {where: Failure(e.info, e.detail) for where, e in refused.items()}
            return CommitResult(failures)

        return self._ask(work, lambda why: CommitResult(dict.fromkeys(offsets, why)), timeout_s)

    def release(self, group: str) -> None:
        """Keep the claims: a service that is started later takes them over all the same."""

    def check(self, timeout_s: float) -> Future[Failure | None]:
        return self._ask(self._store.check, lambda failure: failure, timeout_s)

    def close(self, timeout: float) -> None:
        self._closed = True
        deadline_s = self._clock.now() + timeout
        for _ in self._workers:
            self._requests.put(None)
        for worker in self._workers:
            worker.join(max(deadline_s - self._clock.now(), 0.0))
        self._kafka.close(max(deadline_s - self._clock.now(), 0.0))
        self._store.close()
        self._timers.close()

    def _ask(
        self, work: Callable[[], _T], failed: Callable[[Failure], _T], timeout_s: float
    ) -> Future[_T]:
        """Do ``work`` in a thread; the answer comes by the deadline, whatever the database does."""
        future: Future[_T] = Future()
        if self._closed:
            future.set(failed(Failure(CLOSED)))
            return future
        deadline_s = self._clock.now() + timeout_s
        timer = self._timers.call_after(timeout_s, lambda: future.set(failed(_TIMED_OUT)))

        def run() -> None:
            if self._clock.now() >= deadline_s:
                return
            try:
                answer = work()
            except (OffsetFetchError, OffsetStoreError) as error:
                answer = failed(Failure(error.info, error.detail))
            except Exception as error:  # noqa: BLE001 -- told as the answer, whatever it is
                text = visible(f"{type(error).__name__}: {error}", 100)
                answer = failed(Failure(error_info(-1), text))
            future.set(answer)
            timer.cancel()

        self._requests.put(run)
        return future

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            request()


def open_coordinator(url: str, kafka: Coordinator) -> StoreCoordinator:
    """Return a coordinator whose groups are kept in the database at ``url``."""
    # Not tried again there: a committer does it, with its newest offsets.
    return StoreCoordinator(open_database(url, patience_s=0.0), kafka)
