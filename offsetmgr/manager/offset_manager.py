"""The OffsetManager actor, which is the one record of its partition, and the group that it is in.

User threads touch the newest submit alone, under the group's lock.  All else belongs to the group's
strand: ``step.py`` decides, with that lock held, and the committer applies.
"""

from __future__ import annotations

from enum import Enum
from itertools import count
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors import Future, PooledActor, Strand
from offsetmgr.coordinator.logs import recreated
from offsetmgr.errors import (
    ManagerStoppedError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
)
from offsetmgr.mailboxes import Mailbox
from offsetmgr.types import (
    MAX_OFFSET,
    ManagerKey,
    OffsetAndMetadata,
    StopResult,
    TopicPartition,
    new_tuple,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors import ActorRef, ActorSystem
    from offsetmgr.coordinator.base import Failure
    from offsetmgr.manager.timing import Timing

_CLOSED: Final = MAX_OFFSET + 1
"""The floor of a closed manager: every offset is below it."""

IN_DOUBT_LIMIT: Final = 16
"""Limit of the commits in doubt per partition; a read follows each, so there are rarely many."""

LATEST_LANDING_S: Final = 900.0
"""Time in which a commit in doubt may still land: a host may go on sending for a connection that
was given up."""

_next_number: Final = count(1).__next__
"""Numbers rise through the whole process, so that versions of successive managers compare."""


class Version(NamedTuple):
    """A submitted offset and its place in the order of submits."""

    number: int
    """0 for an offset that was committed before the manager started."""
    value: OffsetAndMetadata


class Submission(NamedTuple):
    """One checked offset of a submit of many partitions."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    rewind: bool = False


class Phase(Enum):
    """The relation of a manager to the committed offset of its partition."""

    FETCHING = "fetching"
    """The committed offset is not known; submits are kept, nothing is committed."""
    READY = "ready"
    """Submits are committed."""
    IN_DOUBT = "in doubt"
    """The outcome of the last commit is unknown; the partition is read before the next one."""
    STOPPED = "stopped"
    """The end, but for commits in doubt that are verified once more."""

    __hash__ = object.__hash__  # members are unique, and Enum's own takes a call


class ManagerStatus(NamedTuple):
    """A manager at one moment, for operators."""

    phase: str
    """``fetching``, ``ready``, ``stopping`` or ``stopped``."""
    submitted: OffsetAndMetadata | None
    """Newest submitted offset."""
    committed: OffsetAndMetadata | None
    """Last offset known to be committed."""
    committed_at: float | None
    """Time of the last acknowledged commit, in seconds of the system's clock."""
    dirty: bool
    """True if the newest submitted offset is not known to be committed."""
    last_error: OffsetManagerError | None
    """The last failure; None once a later request succeeded."""
    regressions: int
    """The number of lower offsets that were refused."""


class OffsetManager(PooledActor):
    """Owns the committed offset of one partition in one group."""

    __slots__ = (
        "absent_number", "acknowledged", "acknowledged_at", "closed", "commit_at",
        "commit_failures", "committed", "committed_offsets", "doubted_since", "dropped",
        "error_number", "errors", "external", "floor", "flushes", "force", "former",
        "former_commits", "group", "in_doubt", "initial", "key", "last_error", "log_end", "look_at",
        "looked_number", "missing", "named_topic_id", "number", "outside_log", "owner", "phase",
        "published", "queued", "read_at", "read_failures", "recommit", "recommit_at", "regressions",
        "result", "rewind_number", "settled", "stops", "stray", "suspect", "topic_id",
        "topic_partition", "value", "verify_at",
    )  # fmt: skip

    def __init__(  # noqa: PLR0915 -- a record has as many fields as it has
        self,
        group: Group,
        topic_partition: TopicPartition,
        owner: str,
        error_limit: int,
    ) -> None:
        super().__init__()
        self.key = ManagerKey(group.name, *topic_partition)
        self.topic_partition = topic_partition
        self.owner = owner
        self.group = group

        # The newest submit: guarded by the group's lock.
        self.number = 0
        """Number of the newest version; 0 for none."""
        self.value: int | OffsetAndMetadata = -1
        """The newest offset; an int if it has neither metadata nor a leader epoch."""
        self.settled = 0
        """Number of the newest version that is known to be committed."""
        self.floor = 0
        """Lowest offset taken without a rewind; above all offsets once closed."""
        self.closed = False
        """True if a stop was asked for."""
        self.queued = False
        """True if the committer knows that there may be something to commit, or will when it
        collects."""
        self.rewind_number = 0
        """Number of the newest rewind that is not committed yet; 0 for none."""
        self.force = False
        """True if the next submit counts as new, though it be the same."""
        self.named_topic_id = ""
        """The id of the topic that the submitter of the newest version named, if any."""
        self.dropped: tuple[OffsetAndMetadata, OffsetManagerError] | None = None
        """The last submit, if it will never be committed, and why."""
        self.regressions = 0
        self.suspect = False
        """True if a refusal makes it likely that the topic was recreated."""

        # Callers.
        self.initial: Future[OffsetAndMetadata | None] = Future()
        self.published: OffsetAndMetadata | None = None
        """The last committed offset of its own; guarded by the group's lock."""
        self.committed_offsets: Mailbox[OffsetAndMetadata] | None = None
        """Made for its first reader, as most managers have none; guarded by the group's lock."""
        self.errors: Mailbox[OffsetManagerError] = Mailbox(self.key, error_limit)
        self.stops: tuple[Waiter, ...] = ()
        self.flushes: tuple[tuple[int, Waiter], ...] = ()
        """Flushes under way, each with the number of the version that it waits for."""
        self.result: StopResult | None = None
        """The result of its stop; None while it lives."""

        # What the coordinator has: changed in the group's strand.
        self.phase = Phase.FETCHING
        self.committed: Version | None = None
        """The last committed version, ours or another's; None if nothing is known to stand."""
        self.acknowledged: OffsetAndMetadata | None = None
        """The last committed offset that users were told of."""
        self.acknowledged_at: float | None = None
        self.external = False
        """True if ``committed`` is somebody else's, or was deleted by somebody else."""
        self.in_doubt: tuple[Version, ...] = ()
        """Commits that may still land, oldest first; the last is the unknown one of IN_DOUBT."""
        self.doubted_since = 0.0
        self.last_error: OffsetManagerError | None = None
        self.error_number = 0
        """Number of the version that ``last_error`` speaks of; 0 for a fetch."""

        # The log.
        self.topic_id: str | None = None
        """The topic's id; empty with a Kafka that has none, None if there was no such topic."""
        self.former: int | None = None
        """After the topic was recreated, the last offset of the former log (-1 for none): what is
        submitted next is compared with it and with the end of the new log."""
        self.former_commits: tuple[Version, ...] = ()
        """Of those in doubt, the commits of former logs: one that landed is not of the log."""
        self.absent_number = 0
        """Number of the newest version that was refused because there was no such topic."""
        self.log_end = -1
        self.looked_number = 0
        """Number of the newest version when ``log_end`` was asked for."""
        self.stray = False
        """True if the group has an offset of the former log, to be replaced by the log's start."""
        self.missing = False
        """True if nothing was committed at the last read, where something was before."""
        self.outside_log = -1
        """The last committed offset that was reported as outside of its log."""

        # What is to be done, and when; ``inf`` for never.
        self.commit_at = inf
        self.commit_failures = 0
        """Consecutive refusals; without any, a commit of the group takes it along before its
        time."""
        self.recommit = False
        """True if ``committed`` is to be committed again, not the newest version."""
        self.read_at = inf
        """Time of the read that must precede the next commit."""
        self.read_failures = 0
        self.look_at = inf
        """Time of the look at the log's ends that must precede the next commit."""
        self.verify_at = inf
        """Time to look whether a commit in doubt has landed."""
        self.recommit_at = inf
        """Time to commit an unchanged offset again, lest it expires."""

    @property
    def blocked(self) -> bool:
        """True if something has to be read before the next commit."""
        return self.read_at < inf or self.look_at < inf

    def on_receive(self, message: object) -> None:
        """Refuse: submits need no message, and flushes and stops go to the committer."""
        raise TypeError(f"{self.key} takes no messages, such as {message!r}")

    def on_restart(self, reason: BaseException) -> None:
        """Begin again from the coordinator."""
        del reason
        self.begin_again()

    def begin_again(self) -> None:
        """Read the committed offset before the next commit, as at the start."""
        if self.phase is not Phase.STOPPED:
            self.phase, self.read_at = Phase.FETCHING, inf
            self.group.queue_start([self])
        elif self.commit_at < inf:  # it puts an offset right
            self.read_at, self.commit_at, self.recommit = self.commit_at, inf, False

    # For user threads.

    def submit(self, value: int | OffsetAndMetadata, *, rewind: bool = False) -> None:
        """Make a checked offset the newest.

        Raises OffsetRegressionError for a lower offset that is not a rewind, and
        ManagerStoppedError after ``close``.
        """
        with self.group.lock:
            # Drawn with the lock held, or a later submit could get the lower number.
            number = _next_number()
            offset = value if isinstance(value, int) else value.offset
            if offset < self.floor and (self.closed or not rewind):
                self._refuse(offset)
            self.floor = offset
            self.dropped = None
            if value != self.value or self.force:
                self.value = value
                self.number = number
                self.named_topic_id = ""
                self.force = False
            if (rewind or not self.queued) and self.number > self.settled:
                if rewind:
                    self.rewind_number = self.number
                if not self.queued:
                    # In this order a Ctrl-C does no harm: queued twice is collected once.
                    self.group.queue_submit(self)
                    self.queued = True

    def _refuse(self, offset: int) -> None:
        if self.closed:
            raise ManagerStoppedError(f"{self.key} is stopped; spawn a new manager to submit again")
        self.regressions += 1
        self.look_at_topic()
        raise OffsetRegressionError(str(self.key), offset, self.floor)

    def look_at_topic(self) -> None:
        """Have the partition read soon: a refusal makes it likely that its topic was recreated."""
        self.suspect = True
        if not self.queued:
            self.group.queue_submit(self)
            self.queued = True

    def close(self, *waiters: Waiter) -> None:
        """Refuse submits from now on; ``waiters`` are answered at the end."""
        with self.group.lock:
            self.closed, self.floor = True, _CLOSED
            self.stops = (*self.stops, *waiters)

    def listen(self) -> Mailbox[OffsetAndMetadata]:
        """Return the mailbox of committed offsets."""
        with self.group.lock:
            if self.committed_offsets is None:
                self.committed_offsets = Mailbox(self.key, 1)
                if self.published is not None:
                    self.committed_offsets.put(self.published)
                if self.result is not None:
                    self.committed_offsets.close()
            return self.committed_offsets

    @property
    def dirty(self) -> bool:
        """True if the newest version is not known to be committed."""
        return self.number > self.settled

    def version(self) -> Version | None:
        """Return the newest version, with the lock held."""
        value = self.value
        if isinstance(value, int):
            value = new_tuple(OffsetAndMetadata, (value, "", None))
        return new_tuple(Version, (self.number, value)) if self.number else None

    def status(self) -> ManagerStatus:
        """Return a snapshot."""
        with self.group.lock:
            newest, phase = self.version(), self.phase
        if phase is Phase.IN_DOUBT:
            phase = Phase.READY
        stopping = self.closed and phase is not Phase.STOPPED
        return ManagerStatus(
            "stopping" if stopping else phase.value,
            None if newest is None else newest.value,
            self.acknowledged,
            self.acknowledged_at,
            self.dirty,
            self.last_error,
            self.regressions,
        )

    def result_after(self, waited_s: float | None) -> StopResult:
        """Return what is committed and what is not; after its end, how it ended.

        ``waited_s`` is how long Kafka had to answer; None where no actor is left to commit.
        """
        if self.result is not None:
            return self.result
        with self.group.lock:
            uncommitted = self.version() if self.dirty else None
        if uncommitted is None:
            return self.result_if_clean()
        reason = self._why_uncommitted(uncommitted.value, waited_s)
        return StopResult(self.acknowledged, uncommitted.value, reason)

    def _why_uncommitted(
        self, value: OffsetAndMetadata, waited_s: float | None
    ) -> OffsetManagerError:
        """Return Kafka's last answer, or that there was none."""
        text = f"{self.key}: offset {value.offset} is not committed: "
        if waited_s is None:
            return ManagerStoppedError(f"{text}the actor system was stopped before")
        error = self.last_error
        if error is not None and not isinstance(error, OffsetRegressionError):
            return error
        failure = self.group.last_failure
        if failure is not None:
            return OffsetCommitError(*self.key, value.offset, failure.info, failure.detail)
        return OffsetTimeoutError(f"{text}Kafka has not answered within {waited_s:.3g} s")

    def result_if_clean(self) -> StopResult:
        """Return the result where nothing waits but what was dropped."""
        return StopResult(self.acknowledged, *(self.dropped or ()))

    # For the steps: with the group's lock held, as they change the newest submit too.

    @property
    def awaited(self) -> bool:
        """True if a caller waits for the newest version."""
        return self.closed or bool(self.flushes)

    def due_at(self, now: float) -> float:
        """Return when the newest version is due: an interval from now, or at once if awaited."""
        return now if self.awaited else now + self.group.timing.commit_interval_s

    def establish(self, committed: OffsetAndMetadata | None) -> None:
        """Enter the initial offset, and drop a submit that is lower and not a rewind."""
        if committed is None:
            return
        newest = self.version()
        if newest is None:
            self._set_floor(committed)
        elif newest.value == committed:
            self.settle(newest.number)
        elif newest.value.offset < committed.offset and not self.rewind_number:
            self.regressions += 1
            name = str(self.key)
            error = OffsetRegressionError(name, newest.value.offset, committed.offset)
            self.drop_newest(error)
            self._set_floor(committed)
            self.value = shortest(*committed)

    def drop_newest(self, error: OffsetManagerError) -> None:
        """Enter that the newest version will never be committed."""
        newest = self.version()
        if newest is not None:
            self.settle(newest.number)
            self.dropped = newest.value, error

    def begin_log(self) -> None:
        """Take any offset next, also the one that was submitted last."""
        self.force = True
        if not self.closed:
            self.floor = 0

    def settle(self, number: int) -> bool:
        """Enter that version ``number`` is committed; return True if nothing newer waits."""
        if number > self.settled:  # noqa: PLR1730 -- faster than max
            self.settled = number
        if self.rewind_number <= number:
            self.rewind_number = 0
        self.queued = self.queued and self.number > number
        return self.number <= number

    def follow(self, external: OffsetAndMetadata | None) -> None:
        """Enter an external change (None: deleted): the floor from now on, unless more waits."""
        if external is None:
            self.force = True
        elif self.number <= self.settled:
            self._set_floor(external)
            if self.number:
                self.value = shortest(*external)
        else:
            offset = self.value if isinstance(self.value, int) else self.value.offset
            if offset < external.offset and not self.rewind_number:
                self._set_floor(external)

    def _set_floor(self, committed: OffsetAndMetadata) -> None:
        if not self.closed:
            self.floor = committed.offset

    # What is committed, and what may still land.

    def can_be_read(self) -> None:
        self.phase, self.read_at, self.read_failures = Phase.READY, inf, 0

    def was_read(self) -> None:
        self.read_at, self.read_failures = inf, 0
        if isinstance(self.last_error, OffsetFetchError):
            self.last_error = None

    def doubt(self, version: Version, now: float) -> None:
        """Enter a commit of an unknown outcome that the next read need not wait for."""
        self.enter_doubt(version, now)
        self.await_landing(now)

    def enter_doubt(self, version: Version, now: float) -> None:
        """Enter a commit that has landed, or may land yet, or never."""
        self.in_doubt = (*self.in_doubt[1 - IN_DOUBT_LIMIT :], version)
        self.doubted_since, self.verify_at = now, inf

    def keep_in_doubt(self, versions: tuple[Version, ...]) -> None:
        self.in_doubt = versions
        if not versions:
            self.verify_at = inf

    def await_landing(self, now: float) -> None:
        """Verify commits in doubt once what the coordinator still holds has landed."""
        if self.in_doubt:
            stopped, timing = self.phase is Phase.STOPPED, self.group.timing
            self.doubted_since = now
            self.verify_at = now + (timing.stopped_s if stopped else timing.landing_s)

    def verified(self, now: float, *, again: bool) -> None:
        """Enter that the partition was read; ``again`` is True if more verifications follow."""
        if now >= self.doubted_since + LATEST_LANDING_S or (now >= self.verify_at and not again):
            self.keep_in_doubt(())
        elif now >= self.verify_at:
            self.verify_at = inf

    def set_committed(self, version: Version, now: float) -> None:
        self.committed = version
        if self.phase is not Phase.STOPPED:
            self.recommit_at = now + self.group.timing.recommit_s

    def drop_committed(self) -> None:
        self.committed, self.recommit_at = None, inf

    def recommit_soon(self, now: float) -> None:
        """Commit the offset again a minute from now, unless a newer one is committed by then."""
        if self.committed is not None and self.phase is not Phase.STOPPED:
            self.recommit_at = now + self.group.timing.recommit_soon_s

    def commit_again(self, now: float) -> None:
        """Commit the last version again, unless something newer is to be committed anyway."""
        if self.commit_at == inf:
            self.recommit, self.commit_at = True, now

    def replace_stray(self, now: float) -> None:
        """Commit the start of the new log in the place of an offset of the former one."""
        self.stray, self.look_at = True, now


class WakeUp(NamedTuple):
    """Message to the committer: look whether something is due."""

    timed: bool = False
    """True if the committer's own timer sends it."""


class Group:
    """The live managers of a group, and a queue of those that have something for the committer.

    The committer is woken at once for new managers, and an interval after the first submit; at most
    one wake-up for submits is pending.
    """

    def __init__(self, name: str, system: ActorSystem, timing: Timing) -> None:
        self.name = name
        self.timing = timing
        self.lock = RLock()
        """Guards the submits of all managers; re-entrant, as a signal handler may submit."""
        self.managers: dict[TopicPartition, OffsetManager] = {}
        """The managers that have their names; changed under the factory's lock."""
        self.strand = Strand(system.dispatcher)
        self.committer: ActorRef[Any]
        """Started with the group."""
        self.last_failure: Failure | None = None
        """The reason why the last request failed for the whole group; None if it did not."""
        self._system = system
        self.queue: list[OffsetManager] = []
        """Those with something new for the committer, which empties it."""
        self.since: float | None = None
        """Time of the first submit in the queue."""
        self._wake_up_pending = False

    def queue_submit(self, manager: OffsetManager) -> None:
        """Have ``manager`` collected an interval from now; with the lock held."""
        self.queue.append(manager)
        if self.since is None:
            if not self._wake_up_pending:
                # In this order a Ctrl-C may cost a second wake-up, but never the only one.
                self._system.timers.call_after(self.timing.commit_interval_s, self._wake)
                self._wake_up_pending = True
            self.since = self._system.clock.now()

    def queue_start(self, managers: Iterable[OffsetManager]) -> None:
        """Have new or restarted managers collected at once."""
        with self.lock:
            for manager in managers:
                self.queue_submit(manager)
        self.committer.tell_due(WakeUp())

    def _wake(self) -> None:
        with self.lock:
            self._wake_up_pending = False
        self.committer.tell_due(WakeUp())

    def submit_many(
        self,
        managers: Iterable[OffsetManager | None],
        values: Iterable[int | Submission],
        topic_ids: Mapping[str, str],
        *,
        rewind: bool,
    ) -> dict[TopicPartition, OffsetManagerError]:
        """Submit a checked offset to each of the managers that there are; return the refused ones.

        ``topic_ids`` are those that the submitter names for topics.
        """
        refused: dict[TopicPartition, OffsetManagerError] = {}
        named = ""
        with self.lock:
            number = _next_number()
            for manager, value in zip(managers, values, strict=True):
                if manager is None:
                    continue
                if topic_ids:
                    named = topic_ids.get(manager.key.topic, "")
                try:
                    if named and manager.topic_id and named != manager.topic_id:
                        manager.look_at_topic()  # this manager may be the one that has not noticed
                        failure = recreated(named, manager.topic_id)
                        offset = value if isinstance(value, int) else value.offset
                        raise OffsetCommitError(*manager.key, offset, failure.info, failure.detail)
                    if not isinstance(value, int):
                        manager.submit(shortest(*value[:3]), rewind=value.rewind)
                    elif rewind or value <= manager.floor or number <= manager.number:
                        manager.submit(value, rewind=rewind)
                    else:
                        # What ``submit`` does in the common case, without a call.
                        manager.value = manager.floor = value
                        manager.number = number
                        manager.named_topic_id = named
                        if not manager.queued:
                            manager.dropped, manager.force = None, False
                            self.queue_submit(manager)
                            manager.queued = True
                        continue
                    if named:
                        manager.named_topic_id = named
                except OffsetManagerError as error:
                    refused[manager.topic_partition] = error
        return refused


class Waiter:
    """A flush or stop of many managers; answered when all have answered, or when it expires."""

    def __init__(
        self, managers: Iterable[OffsetManager], deadline_s: float, timeout_s: float
    ) -> None:
        self._lock = RLock()
        # A dictionary as an ordered set: a simulation must replay in the same order.
        self._open = dict.fromkeys(managers)
        self._results: dict[ManagerKey, StopResult] = {}
        self.deadline_s = deadline_s
        """Time at which it expires, on the system's clock."""
        self.timeout_s = timeout_s
        self.future: Future[dict[ManagerKey, StopResult]] = Future()
        if not self._open:
            self.future.set({})

    def answer(self, answers: Iterable[tuple[OffsetManager, StopResult]]) -> None:
        """Enter answers of managers; the first one of each counts."""
        with self._lock:
            if not self._open:
                return
            for manager, result in answers:
                if manager in self._open:
                    del self._open[manager]
                    self._results[manager.key] = result
            complete = not self._open
        if complete:
            self.future.set(self._results)

    def expire(self) -> list[OffsetManager]:
        """Answer for the managers that have not; return them."""
        with self._lock:
            late = list(self._open)
            for manager in late:
                self._results[manager.key] = manager.result_after(self.timeout_s)
            self._open.clear()
        if late:
            self.future.set(self._results)
        return late


def shortest(
    offset: int, metadata: str = "", leader_epoch: int | None = None
) -> int | OffsetAndMetadata:
    """Return the offset alone where there is nothing else: faster to make and to compare."""
    if metadata or leader_epoch is not None:
        return OffsetAndMetadata(offset, metadata, leader_epoch)
    return offset
