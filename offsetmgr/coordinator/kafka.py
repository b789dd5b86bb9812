"""The coordinator port on Kafka: a fixed pool of clients that commit, a group always on the same.

Kafka serves one request of a connection at a time and a commit waits some milliseconds for its
turn to be written, so commits of many groups need many connections.  Each client costs librdkafka
three threads and one for every broker; see ``CLIENTS``.  That a group commits over one connection
also keeps its written commits in order, also those of unknown outcome.  A request that librdkafka
still holds at its deadline may be written after later ones: see ``STUCK_S``.

Fetches are quick and share one client, questions about the cluster use an admin client of
confluent-kafka; all other clients are those of ``librdkafka.py``.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import TimeoutError as NotAnsweredError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from actors import Future, MonotonicClock
from actors.timers import ThreadTimers
from offsetmgr.codes import NOT_COORDINATOR, TIMED_OUT, UNKNOWN_MEMBER_ID
from offsetmgr.coordinator.base import (
    CommitResult,
    Coordinator,
    Failure,
    FetchResult,
    GroupMember,
    TopicLog,
    TopicNames,
    commit_in_batches,
    live_members,
)
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.clients import open_admin
from offsetmgr.kafka.config import ASKS_CONTROLLER, checked_config, client_config
from offsetmgr.kafka.connections import (
    LIBRDKAFKA_S,
    STUCK_S,
    ConnectionQueue,
    QueuedRequest,
)
from offsetmgr.kafka.errors import failure_of
from offsetmgr.kafka.librdkafka import (
    CONSUMER,
    PRODUCER,
    GroupClient,
    commit_result,
    fetch_result,
)
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.kafka.topics import EARLIEST, LATEST, topic_logs, topic_names
from offsetmgr.types import check_existing_group, check_list, check_timeout, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import AdminClient
    from typing_extensions import Self

    from offsetmgr.kafka.librdkafka import Answer, PartitionAnswer
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

CLIENTS: Final = 12
"""Clients that commit: with one broker 48 threads, and 12 times the commits of a single one."""

MAX_CLIENTS: Final = 64

QUESTIONS: Final = 32
"""Questions about the cluster that librdkafka may hold: each takes a thread."""

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that Kafka keeps for itself, as it names them."""

_GROUP_ID_NOT_FOUND: Final = 69

_G = TypeVar("_G", FetchResult, CommitResult)
_R = TypeVar("_R")


class KafkaCoordinator(Coordinator):
    """Kafka as the port wants it.  Thread-safe; no method but ``close`` blocks."""

    def __init__(self, config: str | Mapping[str, object], *, clients: int = CLIENTS) -> None:
        """``config`` is the bootstrap servers (``host:port,host:port``) or librdkafka's settings.

        The settings replace the pool's defaults; ``clients`` is 1 to 64.  Connects in the
        background, without an error if no broker answers.  Raises InvalidValueError if librdkafka
        refuses a setting.
        """
        config = checked_config(config)
        if type(clients) is not int or not 1 <= clients <= MAX_CLIENTS:
            hint = f"give a number from 1 to {MAX_CLIENTS}"
            raise InvalidValueError("clients", clients, "is out of range", hint)
        self._clock = MonotonicClock()
        self._reports = ConnectionReports(self._clock)
        self._timers = ThreadTimers(self._clock, name="kafka-deadlines")
        shared = self._timers, self._clock, self._reports.timed_out
        complete = client_config(config)
        open_committer = partial(GroupClient, complete, PRODUCER, self._reports, "kafka-commits")
        asking = {**complete, **ASKS_CONTROLLER}
        open_fetcher = partial(GroupClient, asking, CONSUMER, self._reports, "kafka-fetches")
        end = GroupClient.close
        self._commits = [ConnectionQueue(open_committer, end, *shared) for _ in range(clients)]
        self._fetches = ConnectionQueue(open_fetcher, end, *shared)
        # Questions about the cluster bypass the groups' queues: a busy group says nothing of Kafka.
        self._questions = ConnectionQueue(
            lambda: open_admin(config, self._reports), lambda _: None, *shared, QUESTIONS
        )
        self._queues: list[ConnectionQueue[Any]] = [*self._commits, self._fetches, self._questions]
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
        check_timeout(timeout_s, "timeout_s")
        asked = None if partitions is None else list(dict.fromkeys(partitions))

        def send(client: GroupClient, request: QueuedRequest[FetchResult]) -> None:
            read = partial(fetch_result, asked)
            sent = client.fetch(group, asked, self._left_s(request.deadline_s) + LIBRDKAFKA_S)
            sent.add_done_callback(partial(self._answer_group, self._fetches, request, read))

        deadline_s = self._clock.now() + timeout_s
        failed = partial(FetchResult.failed, asked)
        return self._fetches.submit(QueuedRequest(group, deadline_s, send, failed))

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets`` as a simple (memberless) committer."""
        check_existing_group(group)
        check_timeout(timeout_s, "timeout_s")
        send = partial(self._commit, group, self._clock.now() + timeout_s)
        return commit_in_batches(group, offsets, send)

    def topic_ids(
        self, topics: Sequence[str], timeout_s: float
    ) -> Future[Mapping[str, str | Failure]]:
        asked = _checked(topics, timeout_s)

        def failed(failure: Failure) -> Mapping[str, str | Failure]:
            return dict.fromkeys(asked, failure)

        def send(client: GroupClient, request: QueuedRequest[Mapping[str, str | Failure]]) -> None:
            def answered(sent: Pending[Answer]) -> None:
                self._fetches.finish(request, self._result(request, sent.result(), dict))

            left_s = self._left_s(request.deadline_s) + LIBRDKAFKA_S
            client.topic_ids(asked, left_s).add_done_callback(answered)

        deadline_s = self._clock.now() + timeout_s
        return self._fetches.submit(QueuedRequest("", deadline_s, send, failed))

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        asked = _checked(topics, timeout_s)
        specs = {"log_start_offset": EARLIEST, "high_watermark": LATEST}
        if stable:
            specs["last_stable_offset"] = LATEST
        if at_ms is not None:
            specs["offset_at"] = OffsetSpec.for_timestamp(at_ms)

        def question(client: AdminClient, left_s: float, wait_s: float) -> dict[str, TopicLog]:
            return topic_logs(client, asked, specs, wait_s, left_s + LIBRDKAFKA_S)

        def failed(failure: Failure) -> Mapping[str, TopicLog]:
            return dict.fromkeys(asked, TopicLog({}, failure))

        return self._ask(question, failed, timeout_s)

    def members(self, group: str, timeout_s: float) -> Future[list[GroupMember] | Failure]:
        """Return the live members of ``group``; none if the group does not exist."""
        check_existing_group(group)
        check_timeout(timeout_s, "timeout_s")

        def question(
            client: AdminClient, left_s: float, wait_s: float
        ) -> list[GroupMember] | Failure:
            limit_s = left_s + LIBRDKAFKA_S
            pending = client.describe_consumer_groups([group], request_timeout=limit_s)[group]
            try:
                found = pending.result(wait_s).members
            except KafkaException as error:
                if failure_of(error).info.code == _GROUP_ID_NOT_FOUND:
                    return []
                raise
            return [
                GroupMember(m.member_id, m.client_id, m.host, m.group_instance_id or "")
                for m in found
            ]

        return self._ask(question, lambda failure: failure, timeout_s)

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        check_timeout(timeout_s, "timeout_s")

        def question(client: AdminClient, left_s: float, _: float) -> TopicNames:
            found = topic_names(client, None, left_s)
            return TopicNames(sorted(name for name in found if name not in _INTERNAL))

        return self._ask(question, lambda failure: TopicNames([], failure), timeout_s)

    def check(self, timeout_s: float) -> Future[Failure | None]:
        check_timeout(timeout_s, "timeout_s")

        def question(client: AdminClient, left_s: float, _: float) -> Failure | None:
            # Of one topic, as a cluster may have many; ``describe_cluster`` aborts the process
            # where a broker has not heard of any yet (``rdkafka_admin.c:960``).
            topic_names(client, "__consumer_offsets", left_s)
            return None

        return self._ask(question, lambda failure: failure, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float = 10.0) -> None:
        """Let requests under way end, then release the connections; within ``timeout`` seconds.

        Then the others are answered: as refused if they were never sent, else as unknown.  Twice is
        harmless.
        """
        deadline_s = self._clock.now() + check_timeout(timeout)
        for queue in self._queues:
            queue.close()
        for queue in self._queues:
            queue.drain(self._left_s(deadline_s))
        self._timers.close(self._left_s(deadline_s))
        # librdkafka joins its threads as it ends a client: long, if no broker answers.
        closer = threading.Thread(target=self._end_clients, name="kafka-close", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # no thread is to be had; the connections end with the process
            return
        closer.join(self._left_s(deadline_s))

    # -- fetches and commits

    def _commit(
        self, group: str, deadline_s: float, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Future[CommitResult]:
        queue = self._commits[crc32(group.encode()) % len(self._commits)]

        def send(client: GroupClient, request: QueuedRequest[CommitResult]) -> None:
            sent = client.commit(group, offsets, self._left_s(deadline_s) + LIBRDKAFKA_S)
            sent.add_done_callback(partial(self._answer_group, queue, request, commit_result))

        failed = partial(CommitResult.failed, offsets)
        return queue.submit(QueuedRequest(group, deadline_s, send, failed))

    def _answer_group(
        self,
        queue: ConnectionQueue[GroupClient],
        request: QueuedRequest[_G],
        read: Callable[[list[PartitionAnswer]], _G],
        sent: Pending[Answer],
    ) -> None:
        answer = sent.result()
        result: _G = self._result(request, answer, read)
        codes = {answer.error, *(failure.info.code for failure in result.failures.values())}
        if NOT_COORDINATOR in codes:
            queue.pause(request.group)
        if UNKNOWN_MEMBER_ID in codes:
            self._name_members(queue, request, result)
        else:
            queue.finish(request, result)

    def _result(self, request: QueuedRequest[_R], answer: Answer, read: Callable[[Any], _R]) -> _R:
        """Return what ``read`` makes of Kafka's answer, or of why there is none."""
        if not answer.error:
            self._reports.answered()
            return read(answer.found)
        timed_out = answer.error == TIMED_OUT
        failure = self._reports.timed_out() if timed_out else failure_of(answer.error, answer.text)
        return request.failed(failure)

    def _name_members(
        self, queue: ConnectionQueue[GroupClient], request: QueuedRequest[_G], result: _G
    ) -> None:
        """Answer ``request``, which the group's live members forbid, with their names."""
        group = request.group

        def named(done: Future[list[GroupMember] | Failure]) -> None:
            members = done.get()
            detail = live_members(group, members) if isinstance(members, list) and members else ""
            failures = {
                p: f._replace(detail=detail) if f.info.code == UNKNOWN_MEMBER_ID else f
                for p, f in result.failures.items()
            }
            queue.finish(request, result._replace(failures=failures))

        # Half of the time that is left: an answer without names is better than none.
        self.members(group, self._left_s(request.deadline_s) / 2).add_done_callback(named)

    # -- questions about the cluster

    def _ask(
        self,
        question: Callable[[AdminClient, float, float], _R],
        failed: Callable[[Failure], _R],
        timeout_s: float,
    ) -> Future[_R]:
        """Ask ``question`` in a thread of its own.

        Its arguments are the client, the seconds until the deadline, and those it may wait.
        """

        def send(client: AdminClient, request: QueuedRequest[_R]) -> None:
            answer = partial(self._answer, question, client, request)
            threading.Thread(target=answer, name="kafka-question", daemon=True).start()

        deadline_s = self._clock.now() + timeout_s
        return self._questions.submit(QueuedRequest("", deadline_s, send, failed))

    def _answer(
        self,
        question: Callable[[AdminClient, float, float], _R],
        client: AdminClient,
        request: QueuedRequest[_R],
    ) -> None:
        left_s = max(self._left_s(request.deadline_s), 0.001)
        # Past the deadline of the request: a late answer shows that the client is not stuck.
        wait_s = self._left_s(max(request.deadline_s, request.sent_s + STUCK_S))
        try:
            answer = question(client, left_s, wait_s)
        except NotAnsweredError:
            return
        except Exception as error:  # noqa: BLE001 -- it is the answer, whatever it is
            answer = request.failed(failure_of(error))
        else:
            self._reports.answered()
        self._questions.finish(request, answer)

    # -- the pool

    def _left_s(self, deadline_s: float) -> float:
        return max(deadline_s - self._clock.now(), 0.0)

    def _poll(self) -> None:
        # librdkafka's log and errors wait for a poll.
        self._timers.call_after(0.2, self._poll)
        client = self._questions.current
        if client is not None:
            client.poll(0)

    def _end_clients(self) -> None:
        for queue in self._queues:
            queue.end_clients()


def _checked(topics: Sequence[str], timeout_s: float) -> list[str]:
    """Return checked topics, each once."""
    check_timeout(timeout_s, "timeout_s")
    listed = check_list(topics, "topics", '["orders"]')
    return list(dict.fromkeys(check_topic(name) for name in listed))
