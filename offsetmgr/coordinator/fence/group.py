"""One group that is kept for this service, and the thread that keeps it."""

from __future__ import annotations

import threading
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from actors import Future
from actors.logs import get_logger
from offsetmgr.coordinator.answers import failure_of_code
from offsetmgr.coordinator.base import CommitResult, Failure
from offsetmgr.coordinator.explain import CLOSED, NOT_SENT, live_members, one_line
from offsetmgr.coordinator.fence.member import INSTANCE, Assigned, Committed, Refused, Revoked
from offsetmgr.coordinator.librdkafka import NOT_NAMED
from offsetmgr.errors import ErrorInfo, Fault, Scope, Verdict, error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors import Timers
    from offsetmgr.coordinator.explain import Member as LiveMember
    from offsetmgr.coordinator.fence.member import Member
    from offsetmgr.coordinator.kafka import KafkaCoordinator
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

REQUEST_S: Final = 5.0
"""For the members of a group, and for what it has committed."""

RETRY_S: Final = 5.0
"""After a membership could not be had, unless a manager asks for it sooner."""

JOIN_POLLS: Final = 60
"""How often to wait a second for a membership before everything is looked at anew."""

_POLL_S: Final = 60.0
_TIMED_OUT: Final = -185
_DESTROYED: Final = -197
_UNKNOWN_SERVER_ERROR: Final = -1
_UNKNOWN_TOPIC: Final = 3
_UNKNOWN_MEMBER_ID: Final = 25
_REBALANCE_IN_PROGRESS: Final = 27
_FENCED_INSTANCE_ID: Final = 82
_FATAL: Final = -150
_ENDED: Final = frozenset(
    {22, _UNKNOWN_MEMBER_ID, _REBALANCE_IN_PROGRESS, _FENCED_INSTANCE_ID, _FATAL}
)
"""Answers to a commit that was not made, as the membership had ended."""

NOT_A_MEMBER: Final = ErrorInfo(
    _UNKNOWN_MEMBER_ID, "NOT_A_MEMBER", True, Scope.GROUP, Fault.NETWORK, Verdict.REFUSED,  # noqa: FBT003
    "the service had lost its membership of the group, so nothing was committed; it joins again "
    "unless another service has had the group; tried again",
)  # fmt: skip
"""A commit came after the membership was lost: it had no effect."""

JOINING: Final = ErrorInfo(
    _REBALANCE_IN_PROGRESS, "JOINING", True, Scope.GROUP, Fault.BROKER, Verdict.REFUSED,  # noqa: FBT003
    "the service is still joining the group, which takes as long as the broker's "
    "group.initial.rebalance.delay.ms; nothing was sent; tried again",
)  # fmt: skip
"""The deadline passed before the service was a member: the request was not sent."""

log = get_logger("offsetmgr.coordinator.fence")


class Standing(Enum):
    """How the service stands to a group."""

    OUT = "out"
    """It is no member: not yet, not any more, or it lost its membership."""
    HELD = "held"
    FENCED = "fenced"
    """Another service has, or had, the group: this one never commits to it again."""


class _Commit:
    """A commit under way."""

    def __init__(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.offsets = offsets
        self.answer: Future[CommitResult] = Future()

    def fail(self, failure: Failure) -> None:
        self.answer.set(CommitResult(dict.fromkeys(self.offsets, failure)))


class FencedGroup:
    """Joins when asked, keeps the membership, joins again when it is lost, leaves when told.

    Its thread alone joins and leaves; everything else may be called by any thread and never waits.
    """

    def __init__(
        self,
        name: str,
        kafka: KafkaCoordinator,
        open_member: Callable[[str], Member],
        client_id: str,
        timers: Timers,
    ) -> None:
        """``open_member`` makes a client for a group; its client id is ``client_id``."""
        self.name = name
        self.standing = Standing.OUT
        self._kafka = kafka
        self._open_member = open_member
        self._client_id = client_id
        self._timers = timers
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._closed = False
        self._topics: Sequence[str] = ()
        self._claims: list[Future[Failure | None]] = []
        self._member: Member | None = None
        """Also while it is still joining."""
        self._member_id = ""
        """Of the last membership; empty if there was none, or the service left by itself."""
        self._unanswered = False
        """True if a request to join may have been granted without our hearing of it."""
        self._ours: dict[TopicPartition, set[int]] = {}
        """What this service read, committed, or may have committed."""
        self._commits: dict[int, _Commit] = {}
        self._number = 0
        self._renew = False
        self._refusal = Failure(error_info(_FENCED_INSTANCE_ID))

    @property
    def active(self) -> bool:
        """True if it needs a client of its own."""
        return self._thread is not None

    @property
    def forgettable(self) -> bool:
        """True if there is nothing to remember of it."""
        return not self.active and not self._member_id and self.standing is Standing.OUT

    def claim(self, topics: Sequence[str], timeout_s: float) -> Future[Failure | None]:
        """Be the group's member, subscribed to ``topics`` if it must join; else why not."""
        claimed: Future[Failure | None] = Future()
        with self._changed:
            self._wanted = not self._closed
            if self._closed or self.standing is Standing.FENCED:
                claimed.set(Failure(CLOSED) if self._closed else self._refusal)
            elif self.standing is Standing.HELD and not self._renew:
                claimed.set(None)
            else:
                self._topics = topics
                self._claims.append(claimed)
                self._start()
                self._changed.notify_all()
        if not claimed.done():
            give_up = partial(claimed.set, Failure(JOINING))
            timer = self._timers.call_after(timeout_s, give_up)
            claimed.add_done_callback(lambda _: timer.cancel())
        return claimed

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit as the group's member, which ``claim`` has made of the service."""
        commit = _Commit(offsets)
        with self._changed:
            member = self._member
            sent = member is not None and self.standing is Standing.HELD and not self._renew
            if member is not None and sent:
                self._number += 1
                self._commits[self._number] = commit
                member.commit(self._number, offsets)
            number = self._number
        if sent:
            timer = self._timers.call_after(timeout_s, partial(self._expire, number, commit))
            commit.answer.add_done_callback(lambda _: timer.cancel())
        else:
            commit.fail(Failure(NOT_A_MEMBER))
        return commit.answer

    def read(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Take note of what the group has committed, read after a ``claim``."""
        with self._changed:
            for partition, value in offsets.items():
                self._ours.setdefault(partition, set() if value is None else {value.offset})

    def release(self, *, close: bool = False) -> None:
        """Leave the group; for good if ``close``."""
        with self._changed:
            self._wanted = False
            self._closed |= close
            self._changed.notify_all()
            if self._member is not None:
                self._member.wake()

    def join(self, timeout_s: float) -> None:
        """Wait until it has left, ``timeout_s`` at most, then answer what is still open."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        with self._changed:
            claims, self._claims = self._claims, []
            commits = list(self._commits.values())
        for claim in claims:
            claim.set(Failure(CLOSED))
        for commit in commits:
            commit.fail(Failure(error_info(_DESTROYED)))

    # -- the group's thread

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="kafka-fence", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._claims.pop().set(_not_sent(error))
            else:
                self._thread = thread

    def _run(self) -> None:
        over = False
        while not over:
            try:
                failure = self._take()
                self._answer(failure)
                leave = not self._wanted if failure else self._hold()
            except (RuntimeError, ValueError) as error:  # no thread is left, a setting is refused
                failure, leave = _not_sent(error), False
                self._answer(failure)
            self._drop(leave=leave)
            if leave and not failure and not self._wanted:  # given up: there is nothing to compare
                self._member_id, self._ours = "", {}
            over = self._rest(failed=failure is not None)

    def _answer(self, failure: Failure | None) -> None:
        with self._changed:
            if failure is None:
                self.standing = Standing.HELD
            claims, self._claims = self._claims, []
        for claim in claims:
            claim.set(failure)

    def _take(self) -> Failure | None:
        """Become the group's member."""
        members = self._kafka.members(self.name, REQUEST_S).get()
        if isinstance(members, Failure):
            return _refused(members)
        strangers = [each for each in members if each.instance_id != INSTANCE]
        if strangers:
            return Failure(error_info(_UNKNOWN_MEMBER_ID), live_members(self.name, strangers))
        others = [each for each in members if not self._is_ours(each)]
        if others and self._member_id:
            return self._fence("is owned by another service now")
        failure = self._join(others)
        if failure is None and self._ours:
            failure = self._compare()
        return failure

    def _is_ours(self, member: LiveMember) -> bool:
        lost_answer = self._unanswered and member.client_id == self._client_id
        return lost_answer or member.member_id == self._member_id

    def _join(self, others: Sequence[LiveMember]) -> Failure | None:
        member = self._open_member(self.name)
        with self._changed:
            self._member = member
        member.subscribe(self._topics)
        unknown = set(self._topics)
        self._unanswered = True
        for _ in range(JOIN_POLLS):
            event = member.next_event(1.0)
            if isinstance(event, Assigned):
                self._member_id, self._unanswered = member.id, False
                log.debug("group_held", group=self.name, member=self._member_id)
                for each in others:
                    log.info("group_taken_over", group=self.name, client=each.client_id)
                return None
            if isinstance(event, Refused) and event.code == _UNKNOWN_TOPIC:
                unknown -= {topic for topic in unknown if f" {topic}: " in event.text}
                if unknown:
                    continue
            if isinstance(event, Refused) and event.code > 0:
                self._unanswered = False
                if event.code != _FENCED_INSTANCE_ID:
                    return _refused(failure_of_code(event.code, event.text))
                self._member_id = member.id  # a newer service was quicker
                break
            if not self._wanted:
                break
        return Failure(JOINING)

    def _compare(self) -> Failure | None:
        """Fence the service if somebody changed the group while it was no member."""
        found = self._kafka.fetch(self.name, None, REQUEST_S).get()
        for failure in (found.group_failure, *found.failures.values()):
            if failure is not None:
                return _refused(failure)
        for partition, value in found.offsets.items():
            ours = self._ours.get(partition)
            if ours is not None and value is not None and value.offset not in ours:
                self._drop(leave=True)
                return self._fence("was changed by somebody else while this service was cut off")
        return None

    def _hold(self) -> bool:
        """Keep the membership until it ends; True if the member has to leave."""
        member, over, leave = self._member, False, False
        while member is not None:
            with self._changed:
                if not over and not self._wanted:
                    over = leave = True
                if over or self._renew:
                    self.standing = Standing.OUT
                if self._renew or (over and not self._commits):  # what is open is answered first
                    break
            event = member.next_event(_POLL_S)
            if isinstance(event, Committed):
                code = self._committed(event)
                over |= bool(code)
                leave |= code == _REBALANCE_IN_PROGRESS
            elif isinstance(event, Revoked):
                over, leave = True, leave or not event.lost
            elif isinstance(event, Refused):
                over |= event.code in _ENDED
        return leave

    def _committed(self, event: Committed) -> int:
        """Answer a commit; the code that says that the membership has ended, if there is one."""
        asked, codes = self._commits.get(event.number), event.codes
        if asked is not None:
            codes = self._told_apart(asked, codes)
        with self._changed:
            commit = self._commits.pop(event.number, None)
            if commit is None:  # answered at its deadline
                return 0
            failures: dict[TopicPartition, Failure] = {}
            for partition, value in commit.offsets.items():
                code = codes.get(partition, NOT_NAMED)
                if not code:
                    self._ours[partition] = {value.offset}
                    continue
                failures[partition] = failure_of_code(code)
                if failures[partition].info.verdict is Verdict.UNKNOWN:
                    self._ours.setdefault(partition, set()).add(value.offset)
                    # So that it cannot land any more; the broker has answered this code itself.
                    self._renew |= code != _UNKNOWN_SERVER_ERROR
            ended = next((code for code in codes.values() if code in _ENDED), 0)
            claim: Future[Failure | None] = Future()
            if ended:
                self._claims.append(claim)
        if ended:  # whether another service has the group is known when this one asks for it again
            claim.add_done_callback(lambda done: commit.fail(done.get() or Failure(NOT_A_MEMBER)))
        else:
            commit.answer.set(CommitResult(failures))
        return ended

    def _told_apart(
        self, commit: _Commit, codes: Mapping[tuple[str, int], int]
    ) -> Mapping[tuple[str, int], int]:
        """The codes of single partitions: librdkafka gives all the code of the last that failed.

        Nobody else can commit to the group, so those that Kafka has were committed.
        """
        code = next(iter(codes.values()), 0)
        if len(codes) == 1 or not code or error_info(code).scope is not Scope.PARTITION:
            return codes
        found = self._kafka.fetch(self.name, list(commit.offsets), REQUEST_S).get()
        told = dict(codes)
        for partition, value in commit.offsets.items():
            there = found.offsets.get(partition)
            unread = found.failures.get(partition)
            if unread is not None and unread.info.verdict is Verdict.UNKNOWN:
                told[partition] = _TIMED_OUT
            elif there is not None and there[:2] == value[:2]:  # offset and metadata
                told[partition] = 0
        return told

    def _expire(self, number: int, commit: _Commit) -> None:
        """Answer a commit at its deadline; its membership ends, so that it cannot land later."""
        with self._changed:
            sent = self._commits.pop(number, None) is not None
            if sent:
                self._doubt(commit)
                self._renew = True
                if self._member is not None:
                    self._member.wake()
        commit.fail(Failure(error_info(_TIMED_OUT) if sent else NOT_A_MEMBER))

    def _doubt(self, commit: _Commit) -> None:
        for partition, value in commit.offsets.items():
            self._ours.setdefault(partition, set()).add(value.offset)

    def _drop(self, *, leave: bool) -> None:
        with self._changed:
            if self.standing is Standing.HELD:
                self.standing = Standing.OUT
            member, self._member = self._member, None
            self._renew = False
            commits, self._commits = self._commits, {}
            for commit in commits.values():
                self._doubt(commit)
        for commit in commits.values():
            commit.fail(Failure(error_info(_TIMED_OUT), "the membership ended meanwhile"))
        if member is None:
            return
        if leave:
            member.leave()
        member.end()

    def _rest(self, *, failed: bool) -> bool:
        """Wait before the next try; True if there is none."""
        with self._changed:
            if failed:
                self._changed.wait_for(lambda: self._claims or not self._wanted, RETRY_S)
            over = not self._wanted or self.standing is Standing.FENCED
            claims: list[Future[Failure | None]] = []
            if over:
                self._thread = None
                claims, self._claims = self._claims, []
        fenced = self.standing is Standing.FENCED
        for claim in claims:
            claim.set(self._refusal if fenced else Failure(JOINING))
        return over

    def _fence(self, what: str) -> Failure:
        why = (
            f"group {one_line(self.name)} {what}; this service commits nothing of it any more; "
            "run one service for a group: stop this one, or, where this is the right one, stop "
            "the other and restart this one"
        )
        log.error("group_fenced", group=self.name, reason=why)
        with self._changed:
            self.standing = Standing.FENCED
            self._refusal = Failure(error_info(_FENCED_INSTANCE_ID), why)
        return self._refusal


def _refused(failure: Failure) -> Failure:
    """``failure`` of what came before a commit: whatever it leaves open, nothing was committed."""
    return failure._replace(info=failure.info._replace(verdict=Verdict.REFUSED))


def _not_sent(error: Exception) -> Failure:
    return Failure(NOT_SENT, f"nothing was sent: {one_line(str(error), 300)}")
