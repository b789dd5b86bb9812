"""The Factory: spawns one OffsetManager actor per group/topic/partition, and stops them.

``Factory`` is the thread-safe side that users hold; ``FactoryActor`` is the parent of all managers
and committers.  Names are taken and given back under one lock, so that a second spawn is refused
at once; submits go into buffers; everything else is messages.
"""

from __future__ import annotations

import logging
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Any, Final

from actors import ActorSystem
from offsetmgr.config import CommitSettings
from offsetmgr.errors import InvalidValueError, ManagerExistsError, ManagerStoppedError
from offsetmgr.manager.factory_actor import INBOX_LIMIT, FactoryActor, ManagerRegistry, Start
from offsetmgr.manager.group_committer import Expedite, Group
from offsetmgr.manager.handle import ManagerHandle
from offsetmgr.manager.observer import NO_OBSERVER
from offsetmgr.manager.offset_manager import Abandon, Stop
from offsetmgr.manager.partition_state import PartitionState, Waiter
from offsetmgr.manager.submits import Submission
from offsetmgr.types import (
    MAX_OFFSET,
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_flag,
    check_group,
    check_key,
    check_list,
    check_mapping,
    check_offset_and_metadata,
    check_partition,
    check_timeout,
    check_topic,
    check_topic_partition,
    check_topic_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self

    from actors import Future
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.submits import SubmitBuffer
    from offsetmgr.types import StopResult

STOP_GRACE_S: Final = 1.0
"""Time for the actors' own end after all managers have answered."""

log = logging.getLogger("offsetmgr.manager")


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
                raise InvalidValueError(field, value, f"is no {kind}", f"give a {kind}")
        self._settings = settings if settings is not None else CommitSettings()
        self._owns_system = system is None
        self._system = ActorSystem(name="offsetmgr") if system is None else system
        self._observer = observer
        self._registry = ManagerRegistry()
        self._stopped = False
        self._ref = self._system.spawn(
            FactoryActor,
            coordinator,
            self._settings,
            rng if rng is not None else Random(),  # noqa: S311 -- jitter, no secret
            observer,
            self._registry,
            name="factory",
            inbox_limit=INBOX_LIMIT,
        )

    # Managers.

    def spawn(
        self, group: str, topic: str, partition: int, owner: str = "this process"
    ) -> ManagerHandle:
        """Start the manager of a partition in a group; returns at once.

        Its initial offset is fetched in the background, with those of all managers of the group
        that are spawned meanwhile.  Raises ManagerExistsError, InvalidValueError, and
        ManagerStoppedError once the factory is stopped.
        """
        where = TopicPartition(check_topic(topic), check_partition(partition))
        made = self.spawn_many(group, [where], owner=owner)[where]
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
        fresh: dict[TopicPartition, PartitionState] = {}
        with self._registry.lock:
            if self._stopped:
                raise ManagerStoppedError("the factory is stopped; nothing can be spawned any more")
            held = self._registry.groups.get(group)
            if held is None:
                held = self._registry.groups[group] = Group(group, self._settings)
            for where in wanted:
                existing = held.states.get(where)
                if existing is not None:
                    made[where] = ManagerExistsError(str(existing.key), existing.owner)
                    continue
                limit = self._settings.error_limit
                state = PartitionState(held.submits, where, owner, limit, self._observer)
                held.states[where] = fresh[where] = state
                made[where] = ManagerHandle(state, self._stop_one)
            if not self._ref.try_tell(Start(group, fresh)):
                for where in fresh:
                    del held.states[where]
                raise ManagerStoppedError(
                    "the actor system of the factory is stopped; nothing can be spawned any more"
                )
        return made

    def get(self, key: ManagerKey) -> ManagerHandle | None:
        """Return the live manager of ``key``, if there is one.  Raises InvalidValueError."""
        state = self._registry.find(check_key(key))
        return None if state is None else ManagerHandle(state, self._stop_one)

    def managers(self, group: str | None = None) -> list[ManagerHandle]:
        """Return all live managers (of ``group``), as of now.  Raises InvalidValueError."""
        states = self._registry.states(group if group is None else check_group(group))
        return [ManagerHandle(state, self._stop_one) for state in states]

    # Submits.

    def submit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata | Submission]
        | Mapping[tuple[str, int], int | OffsetAndMetadata | Submission],
        *,
        rewind: bool = False,
    ) -> dict[TopicPartition, OffsetManagerError]:
        """Make ``offsets`` (the next ones to read, by topic and partition) the newest to commit.

        With ``rewind``, lower offsets are what the caller wants; a ``Submission`` says so for
        itself alone.  It never blocks.  Returns the refused ones with the reason:
        OffsetRegressionError, or ManagerStoppedError where there is no live manager.

        Raises InvalidValueError, with nothing submitted.
        """
        check_group(group)
        check_flag(rewind, "rewind")
        states = self._registry.states_of(group)
        refused: dict[TopicPartition, OffsetManagerError] = {}
        entries: list[tuple[SubmitBuffer, Any]] = []
        for where, value in check_mapping(offsets).items():
            checked: Any = value
            if type(value) is not int or not 0 <= value <= MAX_OFFSET:
                checked = _checked(where, value, rewind=rewind)
            state = states.get(where)  # type: ignore[call-overload]  # whatever is not there is checked
            if state is not None:
                entries.append((state.submits, checked))
                continue
            partition = check_topic_partition(where)
            text = f"{ManagerKey(group, *partition)} has no manager; spawn it first"
            refused[partition] = ManagerStoppedError(text)
        if entries:
            refused.update(entries[0][0].group.submit(entries, rewind=rewind))
        return refused

    # Flush and stop.

    def flush(
        self, keys: Iterable[ManagerKey], timeout: float = 10.0
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Commit what is newest now, without waiting for the interval; answers by the deadline.

        Keys without a live manager are left out of the answer.  Raises InvalidValueError.
        """
        check_timeout(timeout)
        states = self._find(keys)
        waiter = self._waiter(states, timeout, stopping=False)
        self._expedite(states, waiter)
        return waiter.future

    def stop_managers(
        self, keys: Iterable[ManagerKey], timeout: float = 10.0
    ) -> Future[dict[ManagerKey, StopResult]]:
        """Commit what is newest, then stop; what is not committed by the deadline is answered so.

        Keys without a live manager are left out of the answer.  Raises InvalidValueError.
        """
        check_timeout(timeout)
        return self._stop_states(self._find(keys), timeout)

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
            self._ref.stop(block=False)
        return results

    def begin_stop(self, timeout: float = 10.0) -> Future[dict[ManagerKey, StopResult]]:
        """Take nothing more and stop all managers, without blocking; answers by the deadline.

        The factory itself ends with its system, or with ``stop``.  Raises InvalidValueError.
        """
        check_timeout(timeout)
        with self._registry.lock:
            self._stopped = True
        return self._stop_states(self._registry.states(), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; what could not be committed is logged."""
        left = [each for each in self.stop().values() if each.uncommitted is not None]
        if left:
            text = "the factory was stopped with %d offsets uncommitted: %s"
            log.warning(text, len(left), left[0].error)

    def _find(self, keys: object) -> list[PartitionState]:
        """Return the live managers of ``keys``, each once."""
        found: dict[PartitionState, None] = {}
        for key in check_list(keys, "keys", "[handle.key]"):
            # Checked only where nothing is found, as checking takes longer than finding.
            state = self._registry.find(key) or self._registry.find(check_key(key))
            if state is not None:
                found[state] = None
        return list(found)

    def _stop_one(self, state: PartitionState, timeout: float) -> StopResult:
        """Stop a manager that may be gone already."""
        future = self._stop_states([state], check_timeout(timeout))
        return self._system.wait(future, timeout + STOP_GRACE_S)[state.key]

    def _stop_states(
        self, states: Sequence[PartitionState], timeout: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        waiter = self._waiter(states, timeout, stopping=True)
        for state in states:
            state.submits.close()
            # Here each instance of its actor finds it, also one that starts later.
            state.add_stop(waiter)
        self._expedite(states)
        for state in states:
            told = state.ref is not None and state.ref.try_tell(Stop())
            # The result is there before the actor's end, behind which no message is handled.
            if state.result is not None:
                waiter.answer([(state, state.result)])
            elif not told:
                self._start_again(state, waiter)
        return waiter.future

    def _start_again(self, state: PartitionState, waiter: Waiter) -> None:
        """Its actor is not started yet, or its parent is just being started again."""
        if not self._ref.try_tell(Start(state.key.group, {state.submits.partition: state})):
            waiter.answer([(state, state.result_after(None))])

    def _waiter(
        self, states: Sequence[PartitionState], timeout: float, *, stopping: bool
    ) -> Waiter:
        waiter = Waiter(states, self._system.clock.now() + timeout, timeout)

        def expire() -> None:
            for state in waiter.expire():
                if stopping and state.ref is not None:
                    state.ref.try_tell(Abandon())

        timer = self._system.timers.call_after(timeout, expire)
        waiter.future.add_done_callback(lambda _: timer.cancel())
        return waiter

    def _expedite(self, states: Iterable[PartitionState], flush: Waiter | None = None) -> None:
        for submits, members in groupby(states, lambda state: state.submits.group):
            message = Expedite(list(members), flush)
            # The parent tells a committer that is not started yet.
            if not submits.tell(message) and not self._ref.try_tell(message):
                message.give_up()


def _checked(where: object, value: object, *, rewind: bool) -> Submission:
    partition, given = check_topic_partition(where), value
    if isinstance(given, Submission):
        rewind = check_flag(given.rewind, f"rewind of {partition}") or rewind
        given = OffsetAndMetadata(*given[:3])
    return Submission(*check_offset_and_metadata(given, partition), rewind)
