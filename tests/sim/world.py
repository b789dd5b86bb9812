"""One simulated run: real factory, managers, committers and timers; a scripted broker; a seed."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final
from unittest import mock

from pykka.messages import ProxyCall

from actors.testing import SimSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, OffsetRegressionError
from offsetmgr.manager import Factory, ManagerHandle, Submission, group_committer
from offsetmgr.manager.plan import CommitPlan
from offsetmgr.manager.step import step
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult
from tests.sim.judge import Judge, Life, SabotageError
from tests.sim.queues import (
    LOOK_EVERY,
    MOST_OVER,
    committers_of,
    look_at_committers,
    look_at_managers,
    look_at_timers,
)
from tests.sim.referee import LEVEL, ViolationError
from tests.sim.weather import REQUEST_TIMEOUT_S, Weather

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Future
    from actors.testing import SimStep
    from offsetmgr.coordinator.memory import Incident, SentRequest
    from offsetmgr.manager.events import Effects, Event
    from offsetmgr.manager.offset_manager import OffsetManager

STEPS: Final = 45
"""Things that happen in one run."""

_INTERVALS_S = (0.5, 0.5, 20.0)
_RECOMMIT_S = (0.0, 7.0)
_VERIFY_S = (2.0, 5.0)
_PAUSES_S = (0.0, 0.0, 0.01, 0.3, 0.6, REQUEST_TIMEOUT_S, 3 * REQUEST_TIMEOUT_S)
_TIMEOUTS_S = (0.0, 0.5, 3.0, 10.0)
_LONG_ENOUGH_S = 3.0


POISON: Final = ProxyCall(attr_path=("no_such_method",), args=(), kwargs={})
"""A message over which any actor crashes."""


def _level(value: OffsetAndMetadata | None) -> int:
    return 10 if value is None else value.offset // LEVEL


def _given(value: OffsetAndMetadata) -> int | Submission:
    """Return ``value`` for a bulk submit: as a plain number, if it is one."""
    return Submission(value.offset, value.metadata) if value.metadata else value.offset


class World:
    """A run: everything in it follows from its seed."""

    judge_type: ClassVar[type[Judge]] = Judge
    coordinator_type: ClassVar[type[MemoryCoordinator]] = MemoryCoordinator

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 -- to be replayed
        self.system = SimSystem(rng.getrandbits(32))
        self.judge = self.judge_type()
        self.weather = Weather(rng, self.judge.met)
        self.coordinator = self.coordinator_type(
            call_after=self.system.timers.call_after,
            latency_s=self.weather.latency_s,
            plan=self._plan,
        )
        self.judge.watch(self.system, self.coordinator)
        self.settings = CommitSettings(
            commit_interval_s=rng.choice(_INTERVALS_S),
            request_timeout_s=REQUEST_TIMEOUT_S,
            retry_backoff_s=0.1,
            retry_backoff_max_s=2.0,
            error_limit=8,
            recommit_interval_s=rng.choice(_RECOMMIT_S),
            verify_interval_s=rng.choice(_VERIFY_S),
        )
        self.factory = Factory(
            self.coordinator,
            self.settings,
            system=self.system,
            observer=self.judge,
            rng=random.Random(rng.getrandbits(32)),  # noqa: S311 -- to be replayed
        )
        groups, partitions = rng.randint(1, 2), rng.randint(1, 3)
        self.keys = [ManagerKey(f"g{g}", "t", p) for g in range(groups) for p in range(partitions)]
        self.handles: dict[ManagerKey, ManagerHandle] = {}
        self.crashes = rng.random() < 0.5
        self._failing_step = ""
        self._failing_answer = False
        self.actions = self._draw_actions()
        self.system.on_step = self._after_step

    @property
    def calm(self) -> bool:
        """True if nothing goes wrong, so that nothing may be left uncommitted."""
        return self.weather.calm and not self.crashes

    def _plan(self, request: SentRequest) -> Incident | None:
        if request.operation in {"topic_ids", "topic_logs"}:
            return self.weather.plan_question()  # about no group
        self.judge.sent(request)
        return self.weather.plan(request)

    def _draw_actions(self) -> list[Callable[[], None]]:
        """Each seed has its own mix, so that rare mixes are met as often as common ones."""
        usual: list[Callable[[], None]] = [
            *[self.submit] * 4,
            *[self.submit_groupwise] * 2,
            self.submit_again,
            self.submit_note,
            self.submit_lower,
            self.rewind,
            self.flush,
            self.flush_impatiently,
            self.stop,
            self.spawn,
        ]
        rare: list[Callable[[], None]] = [self.commit_externally, self.forget]
        crashes = [
            self.crash_manager,
            self.crash_committer,
            self.fail_observer,
            self.fail_step,
            self.fail_answer,
        ]
        mix = self.rng.sample(usual, self.rng.randint(4, len(usual)))
        mix += [self.submit, self.spawn]
        if self.crashes:
            mix += self.rng.sample(crashes, self.rng.randint(1, len(crashes)))
        if self.rng.random() < 0.2:
            mix += self.rng.sample(rare, 1)
        return mix

    # The run.

    def run(self) -> None:
        """Live, then let the faults end and see what is left."""
        wait, mine = threading.Condition.wait, threading.current_thread()

        def never(condition: threading.Condition, timeout: float | None = None) -> bool:
            if timeout != 0 and threading.current_thread() is mine:  # else another test left it
                self.judge.blame("an actor waits, and with it a thread of the pool")
                raise ViolationError("it would wait forever: there is no other thread")
            return wait(condition, timeout)

        with (
            mock.patch.object(threading.Condition, "wait", never),
            mock.patch.object(group_committer, "step", self._step),
            mock.patch.object(CommitPlan, "index", self._index(CommitPlan.index)),
        ):
            self._live()

    def _live(self) -> None:
        for key in self.keys:
            if self.rng.random() < 0.3:
                value = self._value(self.rng.randint(0, 30))
                self.judge.began_with(key, value)
                self.coordinator.broker.commit_externally(key.group, {key.topic_partition: value})
        for _ in range(STEPS):
            action = self.rng.choice(self.actions)
            self.judge.met[f"core: {action.__name__}"] += 1
            action()
            self.pass_time(self.rng.choice(_PAUSES_S))
        self.recover()

    def pass_time(self, pause_s: float) -> None:
        """Let actors work: sometimes only a few steps, so that actions meet half-done work."""
        if pause_s == 0.0:
            self.system.run_steps(self.rng.randint(0, 12))
        else:
            self.system.advance(pause_s)
        self._look_at_queues()
        self.judge.check()

    def _after_step(self, step: SimStep) -> None:
        # Here, and not only when time has passed: after an outage queues are short again.
        if step.step % LOOK_EVERY == 0:
            self._look_at_queues()
        self.judge.after_step(step)

    def recover(self) -> None:
        """Faults end: without any help all is committed but what was refused for good."""
        self.weather.clear()
        self.judge.sabotage = self._failing_answer = False
        self._failing_step = ""
        self.pass_time(60.0)
        for handle in self.factory.managers():
            status = handle.status()
            error = status.last_error
            parked = error is not None and not getattr(error, "retriable", True)
            if status.phase != "ready" or (status.dirty and not parked):
                self.judge.blame(f"{handle.key}: a minute after all faults ended: {status}")
        self._ask(list(self.handles), 10.0, self.factory.flush)
        self.pass_time(11.0)
        self.judge.final()
        self._stop(list(self.handles), 10.0)
        self.pass_time(11.0)
        if self.factory.managers():
            self.judge.blame(f"not stopped at last: {self.factory.managers()}")
        self.judge.final()
        self.factory.stop(1.0)
        self.system.run_until_idle()
        if self.system.actor_count():
            self.judge.blame(f"{self.system.actor_count()} actors outlive their factory")
        self.judge.check()

    # What users do.

    def _value(self, level: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(max(0, level) * LEVEL, str(self.judge.next_order()))

    def _plain(self, level: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(max(0, level) * LEVEL + self.judge.next_order())

    def _some_handle(self) -> ManagerHandle | None:
        return self.rng.choice(list(self.handles.values())) if self.handles else None

    def _newest(self, key: ManagerKey) -> OffsetAndMetadata | None:
        newest = self.judge.lives[key].newest
        if newest is not None:
            return newest
        return self.coordinator.broker.committed(key.group).get(key.topic_partition)

    def spawn(self) -> None:
        """Spawn some managers of one group; those that live are refused."""
        group = self.rng.choice(self.keys).group
        named = [key for key in self.keys if key.group == group and self.rng.random() < 0.7]
        since = {key: len(self.judge.stood[key]) for key in named}
        self.judge.learn_answer(group)  # before a new manager takes the place of a stopped one
        made = self.factory.spawn_many(group, [key.topic_partition for key in named])
        for key in named:
            handle, life = made[key.topic_partition], self.judge.lives.get(key)
            if isinstance(handle, ManagerHandle):
                if life is not None and not life.stopping:
                    self.judge.blame(f"{key}: spawned a second time while the first one lives")
                self.judge.lives[key] = Life(key)
                self.handles[key] = handle
                told = partial(self.judge.told_initial, key, since[key])
                handle.initial.add_done_callback(told)
            elif life is None:
                self.judge.blame(f"{key}: refused, though nobody has it: {handle}")

    def submit(self) -> None:
        """Submit something higher; where nothing is known of the partition, maybe lower."""
        handle = self._some_handle()
        if handle is not None:
            newest = self._newest(handle.key)
            above = self.rng.randint(0 if newest else -3, 5)
            make = self.rng.choice((self._value, self._plain))
            self._offer(handle, make(_level(newest) + above))

    def submit_groupwise(self) -> None:
        """Submit plain offsets of all managers of a group, some rounds in a row; some go back."""
        some = self._some_handle()
        if some is None:
            return
        group = some.key.group
        keys = [key for key in self.handles if key.group == group]
        for _ in range(self.rng.randint(1, 3)):
            lowest = self.rng.choice((0, 0, -2))
            values = {
                key: self._plain(_level(self._newest(key)) + self.rng.randint(lowest, 3))
                for key in keys
            }
            offsets = {key.topic_partition: _given(value) for key, value in values.items()}
            refused = self.factory.submit(group, offsets)
            for key, value in values.items():
                self._judge_offer(key, value, refused.get(key.topic_partition), rewind=False)
            self.system.run_steps(self.rng.randint(0, 2))

    def submit_again(self) -> None:
        """Submit exactly what was submitted last."""
        handle = self._some_handle()
        newest = None if handle is None else self.judge.lives[handle.key].newest
        if handle is not None and newest is not None:
            self._offer(handle, newest)

    def submit_note(self) -> None:
        """Submit the same offset with new metadata."""
        handle = self._some_handle()
        newest = None if handle is None else self.judge.lives[handle.key].newest
        if handle is not None and newest is not None:
            note = str(self.judge.next_order())
            self._offer(handle, newest._replace(metadata=note))

    def submit_lower(self) -> None:
        self._go_back(1, 4, rewind=False)

    def rewind(self) -> None:
        self._go_back(0, 6, rewind=True)

    def _go_back(self, least: int, most: int, *, rewind: bool) -> None:
        """Submit something lower; a rewind is sometimes to exactly what was submitted last."""
        handle = self._some_handle()
        newest = None if handle is None else self._newest(handle.key)
        if handle is None or newest is None:
            return
        mine = self.judge.lives[handle.key].newest
        lower = self._value(_level(newest) - self.rng.randint(least, most))
        again = rewind and mine is not None and self.rng.random() < 0.3
        self._offer(handle, mine if again and mine is not None else lower, rewind=rewind)

    def _offer(
        self, handle: ManagerHandle, value: OffsetAndMetadata, *, rewind: bool = False
    ) -> None:
        error: OffsetManagerError | None = None
        try:
            (handle.rewind if rewind else handle.submit)(value.offset, value.metadata)
        except (ManagerStoppedError, OffsetRegressionError) as refused:
            error = refused
        self._judge_offer(handle.key, value, error, rewind=rewind)

    def _judge_offer(
        self,
        key: ManagerKey,
        value: OffsetAndMetadata,
        error: OffsetManagerError | None,
        *,
        rewind: bool,
    ) -> None:
        life = self.judge.lives[key]
        lower = life.newest is not None and value.offset < life.newest.offset
        if isinstance(error, ManagerStoppedError):
            if not life.stopping:
                self.judge.blame(f"{key}: refused {value} though nobody stopped it")
        elif isinstance(error, OffsetRegressionError):
            if rewind or value.offset >= error.floor:
                self.judge.blame(f"{key}: refused {value}: {error}")
        else:
            excused = life.dropped or rewind or self.judge.truth(key).foreign
            if life.stopping or (lower and not excused):
                self.judge.blame(f"{key}: took {value} after {life}")
            self.judge.submitted(key, value, rewind=rewind)

    def flush(self) -> None:
        keys = [key for key in self.handles if self.rng.random() < 0.7]
        self._ask(keys, self.rng.choice(_TIMEOUTS_S), self.factory.flush)

    def flush_impatiently(self) -> None:
        """Flush again and again with hardly any patience, as a synchronous caller may."""
        for _ in range(MOST_OVER + 10):
            self._ask(list(self.handles), 0.001, self.factory.flush)
            self.system.advance(0.002)

    def stop(self) -> None:
        keys = [key for key in self.handles if self.rng.random() < 0.5]
        self._stop(keys, self.rng.choice(_TIMEOUTS_S))

    def _stop(self, keys: list[ManagerKey], timeout_s: float) -> None:
        def stop(asked: list[ManagerKey], limit_s: float) -> Future[dict[ManagerKey, StopResult]]:
            for key in asked:
                self.judge.lives[key].stopping = True
            return self.factory.stop_managers(asked, limit_s)

        self.judge.cut_short(keys)
        self._ask(keys, timeout_s, stop)

    def _ask(
        self,
        keys: list[ManagerKey],
        timeout_s: float,
        ask: Callable[[list[ManagerKey], float], Future[dict[ManagerKey, StopResult]]],
    ) -> None:
        must_commit = self.calm and timeout_s >= _LONG_ENOUGH_S
        promise = self.judge.promised(keys, timeout_s, must_commit=must_commit)
        ask(keys, timeout_s).add_done_callback(lambda done: self.judge.kept(promise, done))

    # What goes wrong outside of the coordinator.

    def commit_externally(self) -> None:
        key = self.rng.choice(self.keys)
        value = self._value(self.rng.randint(0, 40))
        self.judge.tampered(key, value)
        self.coordinator.broker.commit_externally(key.group, {key.topic_partition: value})

    def forget(self) -> None:
        """The broker loses what is committed, as when it expires."""
        key = self.rng.choice(self.keys)
        self.judge.tampered(key, None)
        self.coordinator.broker.forget(key.group, [key.topic_partition])

    def crash_manager(self) -> None:
        handle = self._some_handle()
        if handle is not None:
            handle._manager.actor_ref.try_tell(POISON)

    def crash_committer(self) -> None:
        for ref in committers_of(self.factory).values():
            ref.try_tell(POISON)

    def fail_observer(self) -> None:
        """The next call of the observer raises."""
        self.judge.sabotage = True

    def fail_step(self) -> None:
        """The next step of a manager raises, before or after it has changed its record."""
        self._failing_step = self.rng.choice(("before", "after"))

    def fail_answer(self) -> None:
        """The committer fails at the next manager that it enters, as of an answer."""
        self._failing_answer = True

    def _index(self, index: Callable[..., None]) -> Callable[..., None]:
        def fail(plan: CommitPlan, manager: OffsetManager) -> None:
            if self._failing_answer:
                self._failing_answer = False
                raise SabotageError("on purpose, among the steps of an answer")
            index(plan, manager)

        return fail

    def _step(self, manager: OffsetManager, event: Event, now: float) -> Effects:
        moment, self._failing_step = self._failing_step, ""
        if moment == "before":
            raise SabotageError("on purpose, before a step")
        effects = step(manager, event, now)
        if moment == "after":
            raise SabotageError("on purpose, after a step")
        return effects

    # What must not grow.

    def _look_at_queues(self) -> None:
        look_at_timers(self.judge, self.system)
        managers = (handle._manager for handle in self.handles.values())
        look_at_managers(self.judge, managers, self.settings.error_limit)
        look_at_committers(self.judge, committers_of(self.factory), len(self.keys))
