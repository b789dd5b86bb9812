"""The coordinator port with a fence: the newest service of a group alone commits it.

The service joins each of its groups as a static member that fetches nothing, and commits as that
member.  A newer service takes its place, and Kafka refuses the older one's commits from then on.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from actors import Future, MonotonicClock
from actors.timers import ThreadTimers
from offsetmgr.codes import (
    CLOSED,
    NOT_SENT,
    TIMED_OUT,
    TOPIC_REFUSED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC,
    ErrorInfo,
    Fault,
    Scope,
    Verdict,
    error_info,
)
from offsetmgr.coordinator.base import (
    CommitResult,
    Failure,
    FenceCounts,
    FetchResult,
    commit_in_batches,
    live_members,
)
from offsetmgr.deadlines import Deadline
from offsetmgr.kafka.clients import Closing, check_thread_room
from offsetmgr.kafka.config import DEFAULTS, FORCED, INSTANCE
from offsetmgr.kafka.errors import failure_of
from offsetmgr.kafka.librdkafka import Member
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.logs import SafeLogger
from offsetmgr.text import visible
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.coordinator.kafka import KafkaCoordinator
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_REQUEST_S: Final = 5.0
"""Time-out of reads of a group's members and of its committed offsets."""

_RETRY_S: Final = 5.0
"""Pause after a failed join, unless a manager asks for one sooner."""

_IDLE_S: Final = 1.0
"""Interval at which a group's thread polls its membership and for requests."""

_JOIN_POLLS: Final = 60
"""Polls of ``_IDLE_S`` after which a join is given up and tried again."""

_REBALANCE_IN_PROGRESS: Final = 27
_FENCED_INSTANCE_ID: Final = 82
_FATAL: Final = -150
_ENDED: Final = frozenset(
    {22, UNKNOWN_MEMBER_ID, _REBALANCE_IN_PROGRESS, _FENCED_INSTANCE_ID, _FATAL}
)
"""Codes of a commit that had no effect, as the membership had ended."""

TOO_MANY_GROUPS: Final = ErrorInfo(
    81, "TOO_MANY_FENCED_GROUPS", True, Scope.GROUP, Fault.OPERATOR, Verdict.REFUSED,  # noqa: FBT003
    "the service already keeps as many groups with its fence as limits.fenced_groups allows; "
    "raise it, run another service for some of the groups, or switch the fence off",
)  # fmt: skip
"""There is no room for the group until the managers of another one are gone."""

_JOINING: Final = Failure(NOT_SENT, "the service is still joining the group")

_R = TypeVar("_R", FetchResult, CommitResult)

log = SafeLogger("offsetmgr.coordinator.fence")


class FencedCoordinator(Closing):
    """Commits as the member of each group; all other requests go to the inner coordinator.

    Thread-safe; no method but ``close`` blocks.  Fetching named partitions takes a group over, as
    committing does: from then on the former service of the group cannot change them.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        inner: KafkaCoordinator,
        *,
        session_timeout_s: float = 45.0,
        most_groups: int = 200,
    ) -> None:
        """``config`` as for ``inner``, which is closed with this one.

        Kafka reserves a group for ``session_timeout_s`` if the service dies or is cut off.  Its
        successor need not wait for it; ordinary consumers and Kafka's own tools must.  Each of
        ``most_groups`` costs five threads, a connection to its coordinator and 0.5 MB.
        """
        self._inner = inner
        self.topic_ids = inner.topic_ids
        self.topic_logs = inner.topic_logs
        self.topic_names = inner.topic_names
        self.check = inner.check
        self._most_groups = most_groups
        name = config.get("client.id", "offsetmgr")
        place = f"{socket.gethostname()}-{os.getpid()}"
        self._config: dict[str, object] = {
            **DEFAULTS,
            **config,
            "client.id": f"{name}-{place}-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "group.instance.id": INSTANCE,
            "group.protocol": "classic",
            "heartbeat.interval.ms": int(session_timeout_s * 1_000 / 9),
            # Java's consumers do not offer it by default, so Kafka keeps those out.
            "partition.assignment.strategy": "roundrobin",
            "session.timeout.ms": int(session_timeout_s * 1_000),
            "socket.timeout.ms": FORCED["socket.timeout.ms"],
        }
        self._listener = ConnectionReports()
        self._timers = ThreadTimers(MonotonicClock(), name="kafka-fence-deadlines")
        self._lock = threading.Lock()
        self._groups: dict[str, _FencedGroup] = {}
        self._closed = False

    @property
    def fence(self) -> FenceCounts:
        """The number of groups this service has, and of those that another one took over."""
        with self._lock:
            groups = list(self._groups.values())
        held = sum(group.held for group in groups)
        return FenceCounts(held, sum(group.refusal is not None for group in groups))

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Take the group over, then fetch; a fetch of all partitions takes nothing over."""
        if not partitions:
            return self._inner.fetch(group, partitions, timeout_s)

        def run(kept: _FencedGroup, left_s: float) -> FetchResult:
            found = self._inner.fetch(group, partitions, left_s).get()
            kept.read(found.offsets)  # taken note of before it is used
            return found

        failed = partial(FetchResult.failed, partitions)
        return self._submit(group, partitions, Deadline(timeout_s, "timeout_s"), run, failed)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Take the group over, where that is still to be done, and commit as its member."""
        deadline = Deadline(timeout_s, "timeout_s")

        def send(batch: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[CommitResult]:
            def run(kept: _FencedGroup, left_s: float) -> CommitResult | None:
                return kept.commit(batch, left_s)

            return self._submit(group, batch, deadline, run, partial(CommitResult.failed, batch))

        return commit_in_batches(group, offsets, send)

    def release(self, group: str) -> None:
        """Leave the group, so that others may commit, join or reset it."""
        with self._lock:
            kept = self._groups.get(group)
        if kept is not None:
            kept.release()

    def close(self, timeout: float = 10.0) -> None:
        """Leave all groups, as far as the time allows, then close the other side too."""
        deadline = Deadline(timeout)
        with self._lock:
            self._closed = True
            groups = list(self._groups.values())
        for group in groups:
            group.release()
        leaving = Deadline(timeout * 0.8)  # the rest is for the other side
        for group in groups:
            group.join(leaving.left_s)
        self._timers.close(deadline.left_s)
        self._inner.close(deadline.left_s)

    def _submit(
        self,
        name: str,
        partitions: Iterable[TopicPartition],
        deadline: Deadline,
        run: Callable[[_FencedGroup, float], _R | None],
        failed: Callable[[Failure], _R],
    ) -> Future[_R]:
        """Call ``run`` once this service is the group's member."""
        check_group(name)  # librdkafka ends the process where it is empty
        topics = sorted({topic for topic, _ in partitions})
        request = _FencedRequest(topics, deadline, run, failed)
        with self._lock:
            group = self._group(name)
            refusal = group if isinstance(group, Failure) else group.submit(request)
        if refusal is not None:
            request.fail(refusal)
        return request.future

    def _group(self, name: str) -> _FencedGroup | Failure:
        """Return the group, if there is room for it; the lock is held."""
        if self._closed:
            return Failure(CLOSED)
        group = self._groups.get(name)
        if group is not None and not group.forgettable:
            return group
        self._groups = {n: group for n, group in self._groups.items() if not group.forgettable}
        if sum(kept.active for kept in self._groups.values()) >= self._most_groups:
            why = f"group {visible(name)} is one too many for {self._most_groups} fenced groups"
            return Failure(TOO_MANY_GROUPS, why)
        config = {**self._config, "group.id": name}
        made = _FencedGroup(name, self._inner, config, self._listener, self._timers)
        self._groups[name] = made
        return made


@dataclass(eq=False)
class _FencedRequest(Generic[_R]):
    """A request that the group's thread runs, or that fails at its deadline."""

    topics: Sequence[str]
    """To subscribe to."""
    deadline: Deadline
    run: Callable[[_FencedGroup, float], _R | None]
    """Gets the seconds left; returns its answer, or None if the membership ended without effect."""
    failed: Callable[[Failure], _R]
    """Returns its answer if all of it failed."""
    future: Future[_R] = field(default_factory=Future)

    def fail(self, failure: Failure) -> None:
        self.future.set(self.failed(failure))


class _FencedGroup:
    """Joins a group on request, joins again after losing the membership, leaves on release.

    Its thread alone joins, commits and leaves; everything that other threads call never waits.
    """

    def __init__(
        self,
        name: str,
        kafka: KafkaCoordinator,
        config: Mapping[str, object],
        listener: ConnectionReports,
        timers: ThreadTimers,
    ) -> None:
        """``config`` is that of its member, whose log ``listener`` gets."""
        self.name = name
        self.held = False
        """True if this service is the group's member."""
        self.refusal: Failure | None = None
        """Set once another service has, or had, the group: this one never commits it again."""
        self._kafka = kafka
        self._config = config
        self._listener = listener
        self._timers = timers
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._topics: Sequence[str] = ()
        """To subscribe to."""
        self._waiting: list[_FencedRequest[Any]] = []
        self._ours: dict[TopicPartition, set[int]] = {}
        """Offsets that this service has read, committed or tried to commit."""
        # Of the group's thread:
        self._member: Member | None = None
        self._member_id = ""
        """Id of the last membership; empty if there was none, or the service left by itself."""
        self._unanswered = False
        """True if a request to join may have been granted without an answer."""
        self._leave = False
        """True if the member leaves the group when it ends, so that others can have it."""

    @property
    def active(self) -> bool:
        """True if the group needs a client of its own."""
        return self._thread is not None

    @property
    def forgettable(self) -> bool:
        """True if there is nothing to remember of the group."""
        return not self.active and self.refusal is None

    def submit(self, request: _FencedRequest[Any]) -> Failure | None:
        """Hand ``request`` to the group's thread; return the failure if that is impossible."""
        with self._changed:
            if self.refusal is not None:
                return self.refusal
            self._wanted, self._topics = True, request.topics
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="kafka-fence", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    return _not_sent(error)
                self._thread = thread
            self._waiting.append(request)
            self._changed.notify_all()
        expire = partial(self._fail, [request], _JOINING)
        self._timers.call_after(request.deadline.left_s, expire)
        return None

    def read(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Remember the committed offsets, which were read as the group's member."""
        with self._changed:
            for partition, value in offsets.items():
                self._ours.setdefault(partition, set() if value is None else {value.offset})

    def release(self) -> None:
        """Leave the group."""
        with self._changed:
            self._wanted = False
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until the group is left, then refuse the unsent requests."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        self._fail(self._waiting, Failure(CLOSED))

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> CommitResult | None:
        """Commit as the group's member; None if it had no effect, as the membership has ended.

        For the group's thread alone.
        """
        codes = None if self._member is None else self._member.commit(offsets, timeout_s)
        if codes is None:
            codes = dict.fromkeys(offsets, TIMED_OUT)
        elif len(codes) > 1:
            codes = self._codes_by_partition(offsets, codes, timeout_s)
        failures: dict[TopicPartition, Failure] = {}
        with self._changed:
            for partition, value in offsets.items():
                code = codes[partition]
                if not code:
                    self._ours[partition] = {value.offset}
                    continue
                failures[partition] = failure_of(code)
                if code in _ENDED or failures[partition].info.verdict is Verdict.UNKNOWN:
                    self._ours.setdefault(partition, set()).add(value.offset)
                    self.held = False  # so that it cannot land any more
        ended = _ENDED.intersection(codes.values())
        self._leave |= _REBALANCE_IN_PROGRESS in ended
        return None if ended else CommitResult(failures)

    def _codes_by_partition(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        codes: dict[TopicPartition, int],
        timeout_s: float,
    ) -> dict[TopicPartition, int]:
        """Return the code of each partition: librdkafka gives all the code of the last failed one.

        Nobody else can commit to the group, so those that Kafka has were committed.
        """
        code = next(iter(codes.values()))
        if not code or error_info(code).scope is not Scope.PARTITION:
            return codes
        found = self._kafka.fetch(self.name, list(offsets), min(timeout_s, _REQUEST_S)).get()
        answer = dict(codes)
        for partition, value in offsets.items():
            there = found.offsets.get(partition)
            if partition in found.failures:
                answer[partition] = TIMED_OUT
            elif there is not None and there[:2] == value[:2]:  # offset and metadata
                answer[partition] = 0
        return answer

    def _fail(self, requests: Sequence[_FencedRequest[Any]], failure: Failure) -> None:
        """Refuse those of ``requests`` that still wait."""
        with self._changed:
            unsent = [request for request in requests if request in self._waiting]
            self._waiting = [request for request in self._waiting if request not in unsent]
        for request in unsent:
            request.fail(failure)

    # -- the group's thread

    def _run(self) -> None:
        over = False
        while not over:
            try:
                failure = self._join()
                if failure is None and self._member is not None:
                    self._serve(self._member)
            except Exception as error:  # no thread is left, a setting is refused
                log.exception("group_failed", group=self.name)
                failure = _not_sent(error)
            self._drop()
            if failure is not None:
                self._fail(self._waiting, failure)
            over = self._pause(failed=failure is not None)

    def _join(self) -> Failure | None:
        """Become the group's member; return the failure if that is impossible."""
        members = self._kafka.members(self.name, _REQUEST_S).get()
        if isinstance(members, Failure):
            return _refused(members)
        strangers = [member for member in members if member.group_instance_id != INSTANCE]
        if strangers:
            return Failure(error_info(UNKNOWN_MEMBER_ID), live_members(self.name, strangers))
        ours = {self._member_id}
        if self._unanswered:
            ours |= {m.member_id for m in members if m.client_id == self._config["client.id"]}
        others = [member for member in members if member.member_id not in ours]
        if others and self._member_id:
            return self._fence("is owned by another service now")
        check_thread_room()
        self._member = member = Member(self._config, self._listener)
        failure = self._await_assignment(member)
        if failure is None:
            for other in others:
                log.info("group_taken_over", group=self.name, client=other.client_id)
            failure = self._compare() if self._ours else None
        if failure is None:
            with self._changed:
                self.held = True
        return failure

    def _await_assignment(self, member: Member) -> Failure | None:
        unknown = set(self._topics)
        member.subscribe(self._topics)
        self._unanswered = True
        for _ in range(_JOIN_POLLS):
            event = member.poll(_IDLE_S)
            if event is not None and event.kind == "assigned":
                self._member_id, self._unanswered = member.id, False
                log.debug("group_held", group=self.name, member=self._member_id)
                return None
            if event is not None and event.code == UNKNOWN_TOPIC:
                unknown -= {topic for topic in unknown if f" {topic}: " in event.text}
                if unknown:
                    continue
            if event is not None and event.code > 0:
                self._unanswered = False
                if event.code != _FENCED_INSTANCE_ID:
                    return _refused(failure_of(event.code, event.text))
                self._member_id = member.id  # a newer service was quicker
                break
            if not self._wanted:
                break
        return _JOINING

    def _compare(self) -> Failure | None:
        """Fence this service if the group was changed while it was not a member."""
        # By name: librdkafka takes seconds for an answer about a whole group that is large.
        found = self._kafka.fetch(self.name, list(self._ours), _REQUEST_S).get()
        for failure in found.failures.values():
            if failure.info.code != TOPIC_REFUSED:  # which this service cannot commit either
                return _refused(failure)
        for partition, value in found.offsets.items():
            if value is not None and value.offset not in self._ours[partition]:
                self._leave = True
                return self._fence("was changed by somebody else while this service was cut off")
        return None

    def _serve(self, member: Member) -> None:
        """Run the requests until the membership ends."""
        while self.held:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._wanted, _IDLE_S)
            if self._ended(member):
                return
            with self._changed:
                if not self._wanted:  # given up: there is nothing to compare later on
                    self._member_id, self._ours = "", {}
                    return
                if not self._waiting:
                    continue
                request = self._waiting.pop(0)
            try:
                answer = request.run(self, request.deadline.left_s)
            except Exception as error:
                request.fail(Failure(error_info(TIMED_OUT), visible(str(error), 100)))
                raise
            if answer is not None:
                request.future.set(answer)
                continue
            with self._changed:
                self._waiting.insert(0, request)
            if request.deadline.over:  # its timer came while it ran
                self._fail([request], _JOINING)

    def _ended(self, member: Member) -> bool:
        """Return True if the membership has ended."""
        while (event := member.poll(0.0)) is not None:
            if event.kind in {"revoked", "lost"} or event.code in _ENDED:
                self._leave |= event.kind == "revoked"
                return True
        return False

    def _drop(self) -> None:
        self.held = False
        member, self._member = self._member, None
        leave, self._leave = self._leave or not self._wanted, False
        if member is None:
            return
        if leave:
            member.leave()
        member.end()

    def _pause(self, *, failed: bool) -> bool:
        """Wait before the next try; return True if the group is given up."""
        with self._changed:
            if failed and self.refusal is None:
                self._changed.wait_for(lambda: self._waiting or not self._wanted, _RETRY_S)
            over = self.refusal is not None or not self._wanted
            if over:
                self._thread = None
            if not self._wanted:  # given up without a membership: as in ``_serve``
                self._member_id, self._ours = "", {}
        if over:
            self._fail(self._waiting, self.refusal or _JOINING)
        return over

    def _fence(self, what: str) -> Failure:
        why = (
            f"group {visible(self.name)} {what}; this service commits nothing of it any more; "
            "run one service for a group: stop this one, or, where this is the right one, stop "
            "the other and restart this one"
        )
        log.error("group_fenced", group=self.name, reason=why)
        self.refusal = Failure(error_info(_FENCED_INSTANCE_ID), why)
        return self.refusal


def _refused(failure: Failure) -> Failure:
    """Return the failure of a request before a commit as refused: nothing was committed."""
    return failure._replace(info=failure.info._replace(verdict=Verdict.REFUSED))


def _not_sent(error: Exception) -> Failure:
    return Failure(NOT_SENT, f"nothing was sent: {visible(str(error), 300)}")
