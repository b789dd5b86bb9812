"""The coordinator port on Kafka: a fixed pool of clients that commit, a group always on the same.

Kafka serves one request of a connection at a time and a commit waits some milliseconds for its
turn to be written, so commits of many groups need many connections.  Each client costs librdkafka
three threads and one for every broker; see ``CLIENTS``.  That a group commits over one connection
also keeps its written commits in order, also those of unknown outcome.  A request that librdkafka
still holds at its deadline may be written after later ones: see ``STUCK_S``.

Fetches are quick and share one client, those of all that a group has committed another one;
questions about the cluster use an admin client of confluent-kafka.  All other clients are those of
``librdkafka.py``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import TimeoutError as NotAnsweredError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from confluent_kafka import KafkaException

from actors import Future, MonotonicClock
from actors.timers import ThreadTimers
from offsetmgr.codes import CLOSED, NOT_COORDINATOR, TIMED_OUT, UNKNOWN_MEMBER_ID
from offsetmgr.coordinator.base import (
    CommitResult,
    Coordinator,
    Failure,
    FetchResult,
    TopicLog,
    TopicNames,
    commit_in_batches,
    fetch_in_batches,
    live_members,
)
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.clients import FORKED, Closing, open_admin
from offsetmgr.kafka.cluster import members_of
from offsetmgr.kafka.config import ASKS_CONTROLLER, checked_config, client_config
from offsetmgr.kafka.connections import (
    LIBRDKAFKA_S,
    STUCK_S,
    ConnectionQueue,
    QueuedRequest,
)
from offsetmgr.kafka.errors import failure_of
from offsetmgr.kafka.librdkafka import CONSUMER, PRODUCER, GroupClient
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.kafka.topics import topic_logs, topic_names
from offsetmgr.types import check_existing_group, check_topics
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import AdminClient

    from offsetmgr.answers import GroupMember
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

CLIENTS: Final = 12
"""Clients that commit: with one broker 48 threads, and 12 times the commits of a single one."""

MAX_CLIENTS: Final = 64

QUESTIONS: Final = 32
"""Questions about the cluster that librdkafka may hold: each takes a thread."""

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that Kafka keeps for itself, as it names them."""

_GROUP_ID_NOT_FOUND: Final = 69

_C = TypeVar("_C")
_R = TypeVar("_R")


class KafkaCoordinator(Closing, Coordinator):
    """Kafka as the port wants it.  Thread-safe; no method but ``close`` blocks."""

    def __init__(self, config: str | Mapping[str, object], *, clients: int = CLIENTS) -> None:
        """``config`` is the bootstrap servers (``host:port,host:port``) or librdkafka's settings.

        The settings replace the pool's defaults; ``clients`` is 1 to 64.  Connects in the
        background, without an error if no broker answers.  Raises InvalidValueError if librdkafka
        refuses a setting.
        """
        config = checked_config(config)
        self._process = os.getpid()
        if type(clients) is not int or not 1 <= clients <= MAX_CLIENTS:
            hint = f"give a number from 1 to {MAX_CLIENTS}"
            raise InvalidValueError("clients", clients, "is out of range", hint)
        clock = MonotonicClock()
        self._reports = ConnectionReports()
        self._timers = ThreadTimers(clock, name="kafka-deadlines")
        shared = self._timers, clock, self._reports.timed_out
        complete = client_config(config)
        open_committer = partial(GroupClient, complete, PRODUCER, self._reports, "kafka-commits")
        asking = {**complete, **ASKS_CONTROLLER}
        open_fetcher = partial(GroupClient, asking, CONSUMER, self._reports, "kafka-fetches")
        end = GroupClient.close
        self._commits = [ConnectionQueue(open_committer, end, *shared) for _ in range(clients)]
        self._fetches = ConnectionQueue(open_fetcher, end, *shared)
        # librdkafka keeps a client for 4 s over the answer about a group with 45,000 partitions.
        self._whole_groups = ConnectionQueue(open_fetcher, end, *shared)
        # Questions about the cluster bypass the groups' queues: a busy group says nothing of Kafka.
        self._questions = ConnectionQueue(
            lambda: open_admin(config, self._reports), lambda _: None, *shared, QUESTIONS
        )
        fetches = self._fetches, self._whole_groups
        self._queues: list[ConnectionQueue[Any]] = [*self._commits, *fetches, self._questions]
        try:
            self._questions.client()
        except InvalidValueError:
            self._timers.close()
            raise
        self._poll()

    def connect(self) -> None:
        """Open the clients that commit and fetch now; else their first requests do.

        From Python 3.12 on their threads cannot be started once the interpreter exits.
        """
        for queue in (*self._commits, self._fetches):
            with contextlib.suppress(KafkaException, RuntimeError):  # then with a request
                queue.client()

    # -- the port

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Read the committed offsets of ``partitions``, or all of the group's if None.

        An offset that an open transaction may replace is a failure: UNSTABLE_OFFSET_COMMIT.
        """
        check_existing_group(group)
        deadline = Deadline(timeout_s, "timeout_s")

        queue = self._whole_groups if partitions is None else self._fetches

        def send(asked: Sequence[TopicPartition] | None) -> Future[FetchResult]:
            def ask(client: GroupClient, left_s: float) -> Pending[FetchResult | Failure]:
                return client.fetch(group, asked, left_s + LIBRDKAFKA_S)

            failed = partial(FetchResult.failed, asked)
            return self._send(queue, ask, failed, deadline, group)

        if partitions is None:
            return send(None)
        return fetch_in_batches(list(dict.fromkeys(partitions)), send)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets`` as a simple (memberless) committer."""
        check_existing_group(group)
        deadline = Deadline(timeout_s, "timeout_s")
        queue = self._commits[crc32(group.encode()) % len(self._commits)]

        def send(batch: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[CommitResult]:
            def ask(client: GroupClient, left_s: float) -> Pending[CommitResult | Failure]:
                return client.commit(group, batch, left_s + LIBRDKAFKA_S)

            return self._send(queue, ask, partial(CommitResult.failed, batch), deadline, group)

        return commit_in_batches(group, offsets, send)

    def topic_ids(
        self, topics: Sequence[str], timeout_s: float
    ) -> Future[Mapping[str, str | Failure]]:
        asked = check_topics(topics)

        def ask(client: GroupClient, left_s: float) -> Pending[dict[str, str | Failure] | Failure]:
            return client.topic_ids(asked, left_s + LIBRDKAFKA_S)

        def failed(failure: Failure) -> Mapping[str, str | Failure]:
            return dict.fromkeys(asked, failure)

        return self._send(self._fetches, ask, failed, Deadline(timeout_s, "timeout_s"))

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        asked = check_topics(topics)

        def question(client: AdminClient, left_s: float) -> Mapping[str, TopicLog]:
            limit_s = left_s + LIBRDKAFKA_S
            return topic_logs(client, asked, _wait_s(left_s), limit_s, at_ms, stable=stable)

        def failed(failure: Failure) -> Mapping[str, TopicLog]:
            return dict.fromkeys(asked, TopicLog({}, failure))

        return self._ask(question, failed, timeout_s)

    def members(self, group: str, timeout_s: float) -> Future[list[GroupMember] | Failure]:
        """Return the live members of ``group``; none if the group does not exist."""
        check_existing_group(group)

        def question(client: AdminClient, left_s: float) -> list[GroupMember]:
            limit_s = left_s + LIBRDKAFKA_S
            pending = client.describe_consumer_groups([group], request_timeout=limit_s)[group]
            try:
                return members_of(pending.result(_wait_s(left_s)))
            except KafkaException as error:
                if failure_of(error).info.code == _GROUP_ID_NOT_FOUND:
                    return []
                raise

        return self._ask(question, lambda failure: failure, timeout_s)

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        def question(client: AdminClient, left_s: float) -> TopicNames:
            found = topic_names(client, None, left_s)
            return TopicNames(sorted(name for name in found if name not in _INTERNAL))

        return self._ask(question, partial(TopicNames, []), timeout_s)

    def check(self, timeout_s: float) -> Future[Failure | None]:
        def question(client: AdminClient, left_s: float) -> None:
            # Of one topic, as a cluster may have many; ``describe_cluster`` aborts the process
            # where a broker has not heard of any yet (``rdkafka_admin.c:960``).
            topic_names(client, "__consumer_offsets", left_s)

        return self._ask(question, lambda failure: failure, timeout_s)

    def close(self, timeout: float = 10.0) -> None:
        """Let requests under way end, then release the connections; within ``timeout`` seconds.

        Then the others are answered: as refused if they were never sent, else as unknown.  Twice is
        harmless; in the child of a fork it does nothing.
        """
        deadline = Deadline(timeout)
        if self.is_forked:
            return
        for queue in self._queues:
            queue.close()
        for queue in self._queues:
            queue.drain(deadline.left_s)
        self._timers.close(deadline.left_s)
        # librdkafka joins its threads as it ends a client: long, if no broker answers.
        closer = threading.Thread(target=self._end_clients, name="kafka-close", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # no thread is to be had; the connections end with the process
            return
        closer.join(deadline.left_s)

    # -- requests

    def _send(
        self,
        queue: ConnectionQueue[_C],
        ask: Callable[[_C, float], Pending[Any]],
        failed: Callable[[Failure], _R],
        deadline: Deadline,
        group: str = "",
    ) -> Future[_R]:
        """Have a client of ``queue`` send a request; its answer is of the type _R, or a Failure.

        ``ask`` gets the client and the seconds left.
        """

        def send(client: _C, request: QueuedRequest[_R]) -> None:
            sent = ask(client, deadline.left_s)
            sent.add_done_callback(partial(self._answered, queue, request))

        if self.is_forked:  # nobody would answer
            refused: Future[_R] = Future()
            refused.set(failed(Failure(CLOSED, f"the connections to Kafka were {FORKED}")))
            return refused
        return queue.submit(QueuedRequest(group, deadline, send, failed))

    def _ask(
        self,
        question: Callable[[AdminClient, float], _R],
        failed: Callable[[Failure], _R],
        timeout_s: float,
    ) -> Future[_R]:
        """Have ``question`` answered in a thread of its own; it gets an admin client and seconds.

        If it raises NotAnsweredError, the client may be stuck: it is replaced after STUCK_S.
        """

        def ask(client: AdminClient, left_s: float) -> Pending[_R]:
            return Question(lambda: question(client, max(left_s, 0.001))).answer

        return self._send(self._questions, ask, failed, Deadline(timeout_s, "timeout_s"))

    def _answered(
        self, queue: ConnectionQueue[Any], request: QueuedRequest[Any], sent: Pending[Any]
    ) -> None:
        try:
            result = sent.result()
        except NotAnsweredError:
            return
        except Exception as error:  # noqa: BLE001 -- it is the answer, whatever it is
            result = failure_of(error)
        codes = set()
        if isinstance(result, Failure):
            codes.add(result.info.code)
            failure = self._reports.timed_out() if TIMED_OUT in codes else result
            result = request.failed(failure)
        else:
            self._reports.answered()
        if isinstance(result, (CommitResult, FetchResult)):
            codes |= {failure.info.code for failure in result.failures.values()}
        if request.group and NOT_COORDINATOR in codes:
            queue.pause(request.group)
        if isinstance(result, CommitResult) and UNKNOWN_MEMBER_ID in codes:
            self._name_members(queue, request, result)
        else:
            queue.finish(request, result)

    def _name_members(
        self,
        queue: ConnectionQueue[GroupClient],
        request: QueuedRequest[CommitResult],
        result: CommitResult,
    ) -> None:
        """Answer a commit, which the group's live members forbid, with their names."""
        group = request.group

        def named(done: Future[list[GroupMember] | Failure]) -> None:
            members = done.get()
            detail = live_members(group, members) if isinstance(members, list) and members else ""
            failures = {
                p: f._replace(detail=detail) if f.info.code == UNKNOWN_MEMBER_ID else f
                for p, f in result.failures.items()
            }
            queue.finish(request, CommitResult(failures))

        # Half of the time that is left: an answer without names is better than none.
        self.members(group, request.deadline.left_s / 2).add_done_callback(named)

    # -- the pool

    def _poll(self) -> None:
        # librdkafka's log and errors wait for a poll.
        self._timers.call_after(0.2, self._poll)
        client = self._questions.current
        if client is not None:
            client.poll(0)

    def _end_clients(self) -> None:
        for queue in self._queues:
            queue.end_clients()


def _wait_s(left_s: float) -> float:
    """Return the seconds to wait for an answer: a late one shows that the client is not stuck."""
    return max(left_s, STUCK_S)
