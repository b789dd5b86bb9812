"""The Factory: spawns one OffsetManager actor per group/topic/partition, and stops them.

``Factory`` is the thread-safe side that users hold.  Names are taken and given back under one lock,
so that a second spawn is refused at once; submits go into the managers' records; flushes and stops
are one message for each group.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from random import Random
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pykka

from actors import ActorSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.logs import TopicLooks
from offsetmgr.errors import (
    InvalidValueError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetCommitError,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.manager.events import Expired, FlushAsked
from offsetmgr.manager.group_committer import GroupCommitter, Steps
from offsetmgr.manager.handle import ManagerHandle
from offsetmgr.manager.observer import NO_OBSERVER
from offsetmgr.manager.offset_manager import Group, OffsetManager, Submission, Waiter
from offsetmgr.manager.timing import Timing
from offsetmgr.types import (
    MAX_OFFSET,
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_existing_group,
    check_flag,
    check_group,
    check_key,
    check_list,
    check_mapping,
    check_offset_and_metadata,
    check_timeout,
    check_topic_partition,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self

    from actors import Future, PooledActor
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.observer import Observer
    from offsetmgr.types import StopResult

INBOX_LIMIT: Final = 1_000_000
"""Messages that may wait for a committer: one for each flush or stop of a caller."""

STOP_GRACE_S: Final = 1.0
"""Time for the actors' own end after all managers have answered."""

_GROUP: Final = attrgetter("group")

log = SafeLogger("offsetmgr.manager")


class Factory:
    """Spawns and stops offset managers; at most one per group/topic/partition."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: CommitSettings | None = None,
        *,
        system: ActorSystem | None = None,
        observer: Observer = NO_OBSERVER,
        rng: Random | None = None,
    ) -> None:
        """Without ``system`` it makes, and on stop ends, one of its own.

        Raises InvalidValueError.
        """
        for field, value, kind, attribute in (
            ("coordinator", coordinator, "KafkaCoordinator", "commit"),
            ("settings", settings, "CommitSettings", "commit_interval_s"),
            ("system", system, "ActorSystem", "spawn"),
            ("observer", observer, "manager.Observer", "committed"),
            ("rng", rng, "random.Random", "random"),
        ):
            given = value is not None or field == "coordinator"
            if given and not hasattr(value, attribute):
                raise InvalidValueError(field, value, f"is not of type {kind}", f"give a {kind}")
        self._settings = settings if settings is not None else CommitSettings()
        self._owns_system = system is None
        self._system = ActorSystem(name="offsetmgr") if system is None else system
        self._coordinator = coordinator
        system, timeout_s = self._system, self._settings.request_timeout_s
        self._looks = TopicLooks(coordinator, system.clock, system.timers, timeout_s)
        self._observer = observer
        rng = rng if rng is not None else Random()  # noqa: S311 -- jitter, no secret
        self._timing = Timing(self._settings, rng)
        # Re-entrant: a signal handler may stop managers in the middle of a spawn.
        self._lock = RLock()
        self._groups: dict[str, Group] = {}
        """Changed with the lock held; a group is kept until its committer is done."""
        self._stopped = False

    # Managers.

    def spawn(
        self, group: str, topic: str, partition: int, owner: str = "this process"
    ) -> ManagerHandle:
        """Start the manager of a partition in a group; returns at once.

        Its initial offset is fetched in the background, with those of all managers of the group
        that are spawned meanwhile.  Raises ManagerExistsError, InvalidValueError, and
        ManagerStoppedError once the factory is stopped.
        """
        (made,) = self.spawn_many(group, [(topic, partition)], owner=owner).values()
        if isinstance(made, ManagerExistsError):
            raise made
        return made

    def spawn_many(
        self, group: str, partitions: Iterable[tuple[str, int]], owner: str = "this process"
    ) -> dict[TopicPartition, ManagerHandle | ManagerExistsError]:
        """Start many at once; a partition that has a manager gets its error, the others start.

        Raises InvalidValueError, with nothing started, and ManagerStoppedError once the factory is
        stopped.
        """
        check_group(group)
        check_group(owner, "owner")
        wanted = check_topic_partitions(partitions)
        made: dict[TopicPartition, ManagerHandle | ManagerExistsError] = {}
        with self._lock:
            if self._stopped:
                raise ManagerStoppedError("the factory is stopped; nothing can be spawned any more")
            held = self._groups.get(group)
            existing = {} if held is None else held.managers
            free: list[TopicPartition] = []
            for where in wanted:
                manager = existing.get(where)
                if manager is None:
                    free.append(where)
                else:
                    made[where] = ManagerExistsError(str(manager.key), manager.owner)
            if free:
                started = self._start(held or self._start_group(group), free, owner)
                made |= {
                    each.topic_partition: ManagerHandle(each, self._stop_one) for each in started
                }
        return made

    def _start_group(self, name: str) -> Group:
        group = Group(name, self._system, self._timing)
        committer = GroupCommitter(
            group,
            self._coordinator,
            self._looks,
            self._observer,
            self._release,
            self._vacate,
        )
        group.committer = committer.actor_ref
        self._run(committer, name, group)
        self._groups[name] = group
        return group

    def _run(self, actor: PooledActor, name: str, group: Group) -> None:
        try:
            self._system.start(actor, name=name, strand=group.strand, inbox_limit=INBOX_LIMIT)
        except pykka.ActorDeadError:
            text = "the actor system of the factory is stopped; nothing can be spawned any more"
            raise ManagerStoppedError(text) from None

    def _start(
        self, group: Group, partitions: Iterable[TopicPartition], owner: str
    ) -> list[OffsetManager]:
        limit = self._settings.error_limit
        managers = [OffsetManager(group, where, owner, limit) for where in partitions]
        for manager in managers:
            self._run(manager, str(manager.key), group)
        group.managers.update({manager.topic_partition: manager for manager in managers})
        group.queue_start(managers)
        if self._stopped:  # by a signal handler, after that was checked
            self._ask(managers, 0.0, stopping=True)
        return managers

    def _release(self, manager: OffsetManager) -> None:
        """Give the name of a manager back."""
        with self._lock:
            if manager.group.managers.get(manager.topic_partition) is manager:
                del manager.group.managers[manager.topic_partition]

    def _vacate(self, group: Group) -> bool:
        """Forget a group whose committer is done, unless managers have come to it."""
        with self._lock:
            if group.managers or self._groups.get(group.name) is not group:
                return False
            del self._groups[group.name]
            # Before anybody can start it again.
            log.guard("the coordinator failed", self._coordinator.release, group.name)
            return True

    def get(self, key: ManagerKey) -> ManagerHandle | None:
        """Return the live manager of ``key``, if there is one.  Raises InvalidValueError."""
        manager = self._find_one(check_key(key))
        return None if manager is None else ManagerHandle(manager, self._stop_one)

    def managers(self, group: str | None = None) -> list[ManagerHandle]:
        """Return all live managers (of ``group``), as of now.  Raises InvalidValueError."""
        managers = self._managers(group if group is None else check_existing_group(group))
        return [ManagerHandle(manager, self._stop_one) for manager in managers]

    # Submits.

    def submit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata | Submission]
        | Mapping[tuple[str, int], int | OffsetAndMetadata | Submission],
        *,
        rewind: bool = False,
        topic_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[TopicPartition, OffsetManagerError]:
        """Make ``offsets`` (the next ones to read, by topic and partition) the newest to commit.

        With ``rewind``, lower offsets are what the caller wants; a ``Submission`` says so for
        itself alone.  ``topic_ids`` names the topics that they were read from, as ``topic_ids()``
        returned them: offsets of a topic that was recreated since are refused.  It never blocks.
        Returns the refused ones with the reason: OffsetRegressionError, OffsetCommitError
        (TOPIC_RECREATED), or ManagerStoppedError where there is no live manager.

        Raises InvalidValueError, with nothing submitted.
        """
        check_group(group)
        check_flag(rewind, "rewind")
        given = dict(check_mapping(offsets))  # which another thread may change meanwhile
        values: list[Any] = list(given.values())
        for value in values:
            if type(value) is not int or not 0 <= value <= MAX_OFFSET:
                values = [_checked(*item, rewind=rewind) for item in given.items()]
                break
        held = self._groups.get(group)
        live: Mapping[Any, OffsetManager] = {} if held is None else held.managers
        managers = list(map(live.get, given))
        refused: dict[TopicPartition, OffsetManagerError] = {}
        if not all(managers):
            for where, manager in zip(given, managers, strict=True):
                if manager is None:
                    partition = check_topic_partition(where)
                    text = f"{ManagerKey(group, *partition)} has no manager; spawn it first"
                    refused[partition] = ManagerStoppedError(text)
        if held is not None:
            refused.update(held.submit_many(managers, values, topic_ids, rewind=rewind))
        for partition, error in refused.items():
            if isinstance(error, OffsetCommitError):  # of a recreated topic, refused for good
                key = ManagerKey(group, *partition)
                log.guard("the observer failed", self._observer.failed, key, error)
        return refused

    def topic_ids(self, partitions: Mapping[str, Iterable[TopicPartition]]) -> dict[str, str]:
        """Return the ids of the topics of ``partitions`` by group, where managers know them.

        If managers of different groups know a topic by different ids, it was just recreated and is
        left out.  So is one with an uncommitted rewind: the topic may have been recreated, and is
        looked at before the commit.
        """
        found: dict[str, str] = {}
        for group, wanted in partitions.items():
            held = self._groups.get(group)
            managers = {} if held is None else held.managers
            for where in wanted:
                manager = managers.get(where)
                if manager is None or not manager.topic_id:
                    continue
                known = "" if manager.rewind_number and manager.dirty else manager.topic_id
                if found.setdefault(where.topic, known) != known:
                    found[where.topic] = ""
        return {topic: topic_id for topic, topic_id in found.items() if topic_id}

    # Flush and stop.

    def flush(
        self, keys: Iterable[ManagerKey], timeout: float = 10.0
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Commit what is newest now, without waiting for the interval; answers by the deadline.

        Keys without a live manager are left out of the answer.  Raises InvalidValueError.
        """
        check_timeout(timeout)
        return self._ask(self._find(keys), timeout)

    def stop_managers(
        self, keys: Iterable[ManagerKey], timeout: float = 10.0
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Commit what is newest, then stop; what is not committed by the deadline is answered so.

        Keys without a live manager are left out of the answer.  Raises InvalidValueError.
        """
        check_timeout(timeout)
        return self._ask(self._find(keys), timeout, stopping=True)

    def stop(self, timeout: float = 10.0) -> dict[ManagerKey, StopResult]:
        """Stop all managers, then the factory; returns by ``timeout`` plus a grace of 1 s.

        Twice is harmless: the second answer is empty.  Not to be called by an actor.  Raises
        InvalidValueError.
        """
        over_s = self._system.clock.now() + check_timeout(timeout) + STOP_GRACE_S
        results = self._system.wait(self.begin_stop(timeout), timeout + STOP_GRACE_S)
        if self._owns_system:
            # What the managers did not need is the actors': thousands take seconds to end.
            self._system.stop(max(0.0, over_s - self._system.clock.now()))
        else:
            with self._lock:
                groups = list(self._groups.values())
            for group in groups:
                group.committer.stop(block=False)
        return results

    def begin_stop(self, timeout: float = 10.0) -> Future[dict[ManagerKey, StopResult]]:
        """Take nothing more and stop all managers, without blocking; answers by the deadline.

        Raises InvalidValueError.
        """
        check_timeout(timeout)
        with self._lock:
            self._stopped = True
            managers = self._managers()
        return self._ask(managers, timeout, stopping=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; what could not be committed is logged."""
        left = [each for each in self.stop().values() if each.uncommitted is not None]
        if left:
            text = "the factory was stopped with %d offsets uncommitted: %s"
            log.warning(text, len(left), left[0].error)

    def _find_one(self, key: Any) -> OffsetManager | None:
        """Return the live manager of ``key``; None also where it is not a key."""
        try:
            group, topic, partition = key
            # A TopicPartition is such a tuple, and takes longer to make.
            return self._groups[group].managers[topic, partition]  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            return None

    def _find(self, keys: object) -> list[OffsetManager]:
        """Return the live managers of ``keys``, each once."""
        found: dict[OffsetManager, None] = {}
        for key in check_list(keys, "keys", "[handle.key]"):
            # Checked only where nothing is found, as checking takes longer than finding.
            manager = self._find_one(key) or self._find_one(check_key(key))
            if manager is not None:
                found[manager] = None
        return list(found)

    def _managers(self, group: str | None = None) -> list[OffsetManager]:
        """Return all live managers (of one group), as of now."""
        with self._lock:
            groups = self._groups if group is None else {group} & self._groups.keys()
            return [each for name in groups for each in self._groups[name].managers.values()]

    def _stop_one(self, manager: OffsetManager, timeout: float) -> StopResult:
        """Stop a manager that may be gone already."""
        future = self._ask([manager], check_timeout(timeout), stopping=True)
        return self._system.wait(future, timeout + STOP_GRACE_S)[manager.key]

    def _ask(
        self, managers: Sequence[OffsetManager], timeout: float, *, stopping: bool = False
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Have what is newest committed, then the managers stopped; answers by the deadline."""
        system = self._system
        waiter = Waiter(managers, system.clock.now() + timeout, timeout)

        def expire() -> None:
            late = waiter.expire()
            for group, members in groupby(late if stopping else (), _GROUP):
                group.committer.try_tell(Steps(tuple(members), Expired()))

        timer = system.timers.call_after(timeout, expire)
        waiter.future.add_done_callback(lambda _: timer.cancel())
        event = FlushAsked(None if stopping else waiter)
        if stopping:
            for manager in managers:
                manager.close(waiter)
        for group, members in groupby(managers, _GROUP):
            steps = Steps(tuple(members), event, urgent=True)
            if not group.committer.try_tell(steps):
                waiter.answer((manager, manager.result_after(None)) for manager in steps.managers)
        return waiter.future


def _checked(where: object, value: object, *, rewind: bool) -> Submission:
    partition, given = check_topic_partition(where), value
    if isinstance(given, Submission):
        rewind = check_flag(given.rewind, f"rewind of {partition}") or rewind
        given = OffsetAndMetadata(*given[:3])
    return Submission(*check_offset_and_metadata(given, partition), rewind)
