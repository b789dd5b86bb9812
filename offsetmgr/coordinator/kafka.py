"""The coordinator port on Kafka: a fixed pool of clients that commit, a group always on the same.

Kafka serves one request of a connection at a time and a commit waits some milliseconds for its
turn to be written, so commits of many groups need many connections.  Each client costs librdkafka
three threads and one for every broker; see ``CLIENTS``.  That a group commits over one connection
also keeps what was written to it in order, commits of unknown outcome included.  What librdkafka
still holds at its deadline may be written after later ones: see ``STUCK_S``.

Fetches are quick and go through one client of their own, requests about the cluster through an
admin client of confluent-kafka's; for the others see ``librdkafka.py``.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from confluent_kafka import KafkaException, TopicCollection

from actors import Future, MonotonicClock
from actors.timers import ThreadTimers
from offsetmgr.coordinator.base import (
    NO_FENCE,
    CommitResult,
    Failure,
    FenceCounts,
    FetchResult,
    TopicLog,
    TopicNames,
)
from offsetmgr.coordinator.kafka_answers import (
    NOT_COORDINATOR,
    TIMED_OUT,
    UNKNOWN_MEMBER_ID,
    failure_of_code,
    failure_of_exception,
    holders,
    offsets_of,
    partition_failures,
)
from offsetmgr.coordinator.kafka_client import (
    RELEASE_S,
    LibrdkafkaLog,
    Troubles,
    admin_slot,
    checked,
    committer_slot,
    fetcher_slot,
)
from offsetmgr.coordinator.kafka_lane import GivenUpError, Job, Lane
from offsetmgr.coordinator.kafka_lanes import Lanes
from offsetmgr.coordinator.kafka_logs import ask, id_of, topic_logs, wanted
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import AdminClient

    from offsetmgr.coordinator.kafka_client import ClientSlot
    from offsetmgr.coordinator.kafka_logs import Wanted
    from offsetmgr.coordinator.kafka_offsets import (
        Committed,
        Fetched,
        OffsetCommitter,
        OffsetFetcher,
    )
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

__all__ = ["CLIENTS", "KafkaCoordinator"]

CLIENTS: Final = 12
"""Clients that commit: with one broker 48 threads, and 12 times the commits of a single one."""

MAX_CLIENTS: Final = 64

POLL_INTERVAL_S: Final = 0.2
"""How often librdkafka's log and connection errors are taken from it."""

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that Kafka keeps for itself, as it names them."""


_C = TypeVar("_C")
_R = TypeVar("_R")

log = structlog.get_logger("offsetmgr.coordinator.kafka")


class KafkaCoordinator:
    """Kafka as the port wants it.  Thread-safe; no method but ``close`` blocks."""

    def __init__(self, config: Mapping[str, object], *, clients: int = CLIENTS) -> None:
        """``config`` is for librdkafka and goes before the pool's defaults; ``clients`` is 1 to 64.

        Connects in the background; that no broker answers is no error here.  Raises
        InvalidValueError where librdkafka does not take a setting.
        """
        if not config.get("bootstrap.servers"):
            fix = "give it, as host:port,host:port"
            raise InvalidValueError("bootstrap.servers", None, "is missing", fix)
        if not 1 <= clients <= MAX_CLIENTS:
            fix = f"give a number from 1 to {MAX_CLIENTS}"
            raise InvalidValueError("clients", clients, "is out of range", fix)
        clock = MonotonicClock()
        self._clock = clock
        self._troubles = Troubles()
        librdkafka_log = LibrdkafkaLog(clock)
        self._slots = [
            committer_slot(config, self._troubles, librdkafka_log) for _ in range(clients)
        ]
        self._cluster_slot = admin_slot(config, self._troubles, librdkafka_log)
        checked(config, self._cluster_slot)
        self._fetch_slot = fetcher_slot(config)
        self._timers = ThreadTimers(clock, name="kafka-deadlines")
        self._commit_lanes = [self._lane(slot) for slot in self._slots]
        self._lanes = Lanes(self._commit_lanes)
        self._fetch_lane = self._lane(self._fetch_slot)
        # Requests about the cluster go past the groups' queues: a busy group is no sick Kafka.
        # Some take a thread each, so there are no more of them under way than its window.
        self._cluster_lane = Lane(
            self._cluster_slot, self._timers, clock, self._troubles, aside_limit=0
        )
        self._poll()

    # -- the port

    @property
    def reader(self) -> KafkaCoordinator:
        """Itself."""
        return self

    @property
    def fence(self) -> FenceCounts:
        """None."""
        return NO_FENCE

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Committed offsets of ``partitions`` (all of the group's where None), in one request.

        Offsets of a transaction that is not over are no answer: UNSTABLE_OFFSET_COMMIT.
        """
        if partitions is not None and not partitions:
            return _answered(FetchResult({}, {}))
        asked = None if partitions is None else list(dict.fromkeys(partitions))

        def spoil(failure: Failure) -> FetchResult:
            group_failure = failure if asked is None else None
            return FetchResult({}, dict.fromkeys(asked or (), failure), group_failure)

        def send(fetcher: OffsetFetcher, job: Job[FetchResult]) -> None:
            answered = partial(_guarded, job, partial(self._fetched, job, asked))
            fetcher.fetch(group, asked, job.librdkafka_timeout_s(), answered)

        return self._submit(self._fetch_lane, group, timeout_s, send, spoil)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets`` in one request, as a simple (memberless) committer."""
        if not offsets:
            return _answered(CommitResult({}))
        # What the caller does to its mapping while this waits its turn is not to be sent.
        offsets = dict(offsets)

        def spoil(failure: Failure) -> CommitResult:
            return CommitResult(dict.fromkeys(offsets, failure))

        def send(client: OffsetCommitter, job: Job[CommitResult]) -> None:
            answered = partial(_guarded, job, partial(self._committed, job))
            client.commit(group, offsets, job.librdkafka_timeout_s(), answered)

        return self._submit(self._lanes.of(group), group, timeout_s, send, spoil)

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """Partitions of ``topics`` with the ends of their logs, and their offsets at a time."""
        if not topics:
            return _answered({})
        asked = list(dict.fromkeys(topics))
        asks = wanted(at_ms, stable=stable)

        def spoil(failure: Failure) -> Mapping[str, TopicLog]:
            return dict.fromkeys(asked, TopicLog({}, failure))

        def send(client: AdminClient, job: Job[Mapping[str, TopicLog]]) -> None:
            pending = client.describe_topics(
                TopicCollection(asked), request_timeout=job.librdkafka_timeout_s()
            )
            then = partial(self._described, job, pending, asks)
            _when_done(list(pending.values()), job, then)

        return self._submit(self._cluster_lane, "", timeout_s, send, spoil)

    def release(self, group: str) -> None:
        """Give the place of ``group`` among those of its client to others."""
        self._lanes.release(group)

    def members(self, group: str, timeout_s: float) -> Future[str]:
        """Who the live members of ``group`` are, in words; empty where that cannot be told."""

        def send(client: AdminClient, job: Job[str]) -> None:
            pending = client.describe_consumer_groups(
                [group], request_timeout=job.librdkafka_timeout_s()
            )[group]
            _when_done([pending], job, lambda done: job.finish(holders(group, done)))

        return self._submit(self._cluster_lane, group, timeout_s, send, lambda _: "")

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """The topics of the cluster, sorted."""

        def send(_client: AdminClient, job: Job[TopicNames]) -> None:
            # librdkafka lists them in a call that waits, and nobody who calls us may.
            then = partial(_guarded, job, self._list_topics, job)
            threading.Thread(target=then, name="kafka-topic-names", daemon=True).start()

        return self._submit(
            self._cluster_lane, "", timeout_s, send, lambda failure: TopicNames([], failure)
        )

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """Whether Kafka answers: None where it does."""

        def send(_client: AdminClient, job: Job[Failure | None]) -> None:
            then = partial(_guarded, job, self._find_brokers, job)
            threading.Thread(target=then, name="kafka-check", daemon=True).start()

        return self._submit(self._cluster_lane, "", timeout_s, send, lambda failure: failure)

    def close(self, timeout_s: float) -> None:
        """Let requests under way end, then release the connections; returns by ``timeout_s``.

        What is not answered by then is: as refused where it was never sent, else as unknown.
        """
        deadline_s = self._clock.now() + timeout_s
        lanes: list[Lane[Any]] = [*self._commit_lanes, self._fetch_lane, self._cluster_lane]
        for lane in lanes:
            lane.close()
        for lane in lanes:
            lane.wait_idle(max(deadline_s - self._clock.now(), 0.0))
        for lane in lanes:
            lane.abandon()
        self._timers.close(max(deadline_s - self._clock.now(), 0.0))
        # librdkafka joins its threads as it ends a client; that no broker answers must not matter.
        closer = threading.Thread(target=self._release, name="kafka-close", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # no thread is to be had; the connections end with the process
            return
        closer.join(max(deadline_s - self._clock.now(), 0.0))

    # -- answers, in a thread of librdkafka

    def _fetched(
        self,
        job: Job[FetchResult],
        asked: Sequence[TopicPartition] | None,
        answer: Fetched,
    ) -> None:
        if answer.error:
            failure = self._or_troubles(failure_of_code(answer.error, answer.text))
            _note_move(job, [failure])
            job.finish(job.spoil(failure))
            return
        self._troubles.clear()
        offsets, failures = offsets_of(answer.partitions, asked)
        _note_move(job, failures.values())
        job.finish(FetchResult(offsets, failures))

    def _committed(self, job: Job[CommitResult], committed: Committed) -> None:
        if committed.error:
            failure = failure_of_code(committed.error, committed.text)
            answer = job.spoil(self._or_troubles(failure))
        else:
            self._troubles.clear()
            answer = CommitResult(partition_failures(committed.refused))
        _note_move(job, answer.failures.values())
        if any(f.info.code == UNKNOWN_MEMBER_ID for f in answer.failures.values()):
            job.known = answer
            left_s = max(job.deadline_s - self._clock.now(), 0.0)
            told = self.members(job.group, left_s)
            told.add_done_callback(lambda done: self._name_holders(job, answer, done.get()))
        else:
            job.finish(answer)

    @staticmethod
    def _name_holders(job: Job[CommitResult], answer: CommitResult, detail: str) -> None:
        failures = {
            p: f._replace(detail=detail) if f.info.code == UNKNOWN_MEMBER_ID else f
            for p, f in answer.failures.items()
        }
        job.finish(CommitResult(failures))

    def _described(
        self,
        job: Job[Mapping[str, TopicLog]],
        topics: Mapping[str, Pending[Any]],
        asks: Sequence[Wanted],
        _: object,
    ) -> None:
        """Ask for the ends of the logs of the topics that exist."""
        found: dict[str, list[int]] = {}
        ids: dict[str, str] = {}
        unknown: dict[str, TopicLog] = {}
        for topic, pending in topics.items():
            error = pending.exception()
            if error is None:
                described = pending.result()
                found[topic] = [p.id for p in described.partitions]
                ids[topic] = id_of(described.topic_id)
            else:
                unknown[topic] = TopicLog({}, self._explained(error))
        if not found:
            job.finish(unknown)
            return
        self._troubles.clear()
        left_s = job.librdkafka_timeout_s()
        asked = job.lane.with_client(job, lambda client: ask(client, found, asks, left_s))

        def put_together(_: object) -> None:
            job.finish({**topic_logs(found, ids, asked), **unknown})

        answers = [future for each in asked.values() for future in each.values()]
        _when_done(answers, job, put_together)

    def _list_topics(self, job: Job[TopicNames]) -> None:
        try:
            left_s = max(job.deadline_s - self._clock.now(), 0.001)
            found = job.lane.with_client(job, lambda client: client.list_topics(timeout=left_s))
        except KafkaException as error:
            job.finish(TopicNames([], self._explained(error)))
            return
        self._troubles.clear()
        names = sorted(name for name in found.topics if name not in _INTERNAL)
        job.finish(TopicNames(names))

    def _find_brokers(self, job: Job[Failure | None]) -> None:
        left_s = max(job.deadline_s - self._clock.now(), 0.001)
        code = self._fetch_slot.call(lambda fetcher: fetcher.find_brokers(left_s))
        if not code:
            self._troubles.clear()
        job.finish(self._or_troubles(failure_of_code(code)) if code else None)

    def _explained(self, error: BaseException) -> Failure:
        return self._or_troubles(failure_of_exception(error))

    def _or_troubles(self, failure: Failure) -> Failure:
        return self._troubles.timed_out() if failure.info.code == TIMED_OUT else failure

    # -- the pool

    def _lane(self, slot: ClientSlot[_C]) -> Lane[_C]:
        return Lane(slot, self._timers, self._clock, self._troubles)

    def _submit(
        self,
        lane: Lane[_C],
        group: str,
        timeout_s: float,
        send: Callable[[_C, Job[_R]], None],
        spoil: Callable[[Failure], _R],
    ) -> Future[_R]:
        return lane.submit(Job(lane, group, self._clock.now() + timeout_s, send, spoil))

    def _poll(self) -> None:
        # Without it librdkafka's log and errors pile up unread.
        try:
            self._cluster_slot.poll(lambda client: client.poll(0))
        except Exception:
            log.exception("kafka_poll_failed")
        self._timers.call_after(POLL_INTERVAL_S, self._poll)

    def _release(self) -> None:
        slots: list[ClientSlot[Any]] = [self._fetch_slot, self._cluster_slot, *self._slots]
        for slot in slots:
            slot.close(RELEASE_S)


def _note_move(job: Job[Any], failures: Iterable[Failure]) -> None:
    if any(f.info.code == NOT_COORDINATOR for f in failures):
        job.lane.coordinator_moved(job.group)


def _when_done(
    pending: Sequence[Pending[Any]], job: Job[_R], then: Callable[[Pending[Any]], None]
) -> None:
    """Call ``then`` with the last of ``pending`` to be done."""
    lock = threading.Lock()
    left = len(pending)

    def one_done(future: Pending[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        _guarded(job, then, future)

    for future in pending:
        future.add_done_callback(one_done)


def _guarded(job: Job[Any], then: Callable[[_C], None], answer: _C) -> None:
    """Call ``then(answer)``; were it to fail, the job would keep its place for ever."""
    try:
        then(answer)
    except GivenUpError:
        pass  # Kafka's answer came after its deadline, which has been told
    except Exception as error:
        log.exception("kafka_answer_failed", group=job.group)
        known = job.known
        job.finish(job.spoil(failure_of_exception(error)) if known is None else known)


def _answered(answer: _R) -> Future[_R]:
    future: Future[_R] = Future()
    future.set(answer)
    return future
