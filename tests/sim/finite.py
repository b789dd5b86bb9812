"""A run in which logs have ends: they grow, are cut, and are not always what was submitted.

Offsets are submitted in their logs, beyond the end and below the start; each seed has a policy for
those outside.  At last faults end, but the logs stay as they are: what lies outside has to be told
by then.  After that the logs grow over all that was submitted, and it is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from tests.sim.finite_judge import FiniteJudge
from tests.sim.logs import Haze, HazyCoordinator, Topic
from tests.sim.preempted import PreemptedWorld
from tests.sim.world import World, _level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsetmgr.coordinator.memory import Incident, MemoryCoordinator, Request
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import ManagerKey, OffsetAndMetadata
    from tests.sim.judge import Judge

_EVENTS_PART: Final = 0.2
"""How many runs have a topic that is deleted and made anew."""

_BEGIN_LEVEL: Final = 25

_STILL_S: Final = 45.0
"""Enough for a commit, and for a round of looks after it, with the longest interval."""


class FiniteWorld(World):
    """As its parent, with one topic whose logs have ends that can be read, more or less."""

    judge_type: ClassVar[type[Judge]] = FiniteJudge
    coordinator_type: ClassVar[type[MemoryCoordinator]] = HazyCoordinator
    range_policies: ClassVar[Sequence[str]] = ("warn", "refuse", "refuse", "clamp", "clamp")

    judge: FiniteJudge
    coordinator: HazyCoordinator

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        judge, settings = self.judge, self.settings
        judge.policy = settings.on_out_of_range
        judge.looks_again = judge.shares_looks = settings.verify_interval_s > 0
        self.coordinator.haze = Haze(self.rng, self.weather, judge, self.system.timers.call_after)
        partitions = 1 + max(key.partition for key in self.keys)
        self.topic = Topic(self.coordinator.broker, self.rng, judge.met, partitions)
        judge.watch_topic(self.topic)
        self.topic.begin(_BEGIN_LEVEL)
        self._events = not self.topic.whole
        self.actions += self._draw_more_actions()

    def _draw_more_actions(self) -> list[Callable[[], None]]:
        more: list[Callable[[], None]] = [
            self.submit_beyond,
            self.rewind_anywhere,
            self.change_mind,
        ]
        if not self.topic.whole:
            more.append(self.topic.add_partition)
        if self.crashes:
            more.append(self.crash_at_a_look)
        if self.rng.random() < _EVENTS_PART:
            self._events = True
            more.append(self.make_anew)
        return more

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong, so that nothing may be left uncommitted."""
        return super().calm and not self._events

    def _plan(self, request: Request) -> Incident | None:
        if request.operation == "topic_logs":
            return self.coordinator.haze.plan()
        return super()._plan(request)

    def pass_time(self, pause_s: float) -> None:
        """Let actors work, and logs change."""
        self.topic.age()
        super().pass_time(pause_s)

    def _plain(self, level: int) -> OffsetAndMetadata:
        # What was moved to the end of a log is known by its metadata alone.
        return (self._value if self.judge.policy == "clamp" else super()._plain)(level)

    # What users and operators do besides.

    def _near(self, handle: ManagerHandle) -> int:
        """A level on either side of an end of its log."""
        end = self.rng.choice(self.topic.ends(handle.key.partition) or (0,))
        return max(0, end + self.rng.randint(-2, 4))

    def submit_beyond(self) -> None:
        """Submit something that is not in the log yet, and may never be."""
        handle = self._some_handle()
        if handle is not None:
            level = max(self._near(handle), _level(self._newest(handle.key)))
            self._offer(handle, self._value(level))

    def rewind_anywhere(self) -> None:
        """Go to some end of the log, or just outside."""
        handle = self._some_handle()
        if handle is not None:
            self._offer(handle, self._value(self._near(handle)), rewind=True)

    def change_mind(self) -> None:
        """Go back to known ground while the log may still be looked at for what is beyond it."""
        handle = self._some_handle()
        if handle is None:
            return
        before = _level(self._newest(handle.key))
        self._submit_head(handle.key)
        lower = self._value(before - self.rng.randint(0, 2))
        self._offer(self.handles[handle.key], lower, rewind=True)
        self._pass_interval(handle.key)

    def crash_at_a_look(self) -> None:
        """A committer crashes while it looks at a log, and its successor looks at it anew."""
        handle = self._some_handle()
        if handle is None:
            return
        for _ in range(3):
            self._submit_head(handle.key)
            self.crash_committer()

    def _submit_head(self, key: ManagerKey) -> None:
        """Submit what its producer wrote last, just now."""
        head = self.topic.write(key.partition)
        level = _level(self._newest(key)) + self.rng.randint(0, 1)
        self._offer(self.handles[key], self._value(max(level, head)))
        self._pass_interval(key)

    def _pass_interval(self, key: ManagerKey) -> None:
        """Let it be due, or not."""
        if self.rng.random() < 0.5:
            self._ask([key], 0.0, self.factory.flush)
        self.pass_time(self.rng.choice((0.0, 0.1, 0.6)))

    def make_anew(self) -> None:
        """Delete the topic, which takes along what was committed for it; or make it again."""
        if self.topic.deleted:
            self.judge.recreated += 1
            self.topic.begin(_BEGIN_LEVEL)
            return
        for key in self.keys:
            if key.topic_partition in self.coordinator.broker.committed(key.group):
                self.judge.tampered(key, None)
        self.topic.delete()

    # The end.

    def recover(self) -> None:
        """Faults end, then logs grow over all that was submitted."""
        self.weather.clear()
        self.judge.sabotage = False
        if self.topic.deleted:
            self.make_anew()
        while not self.topic.whole:
            self.topic.add_partition()
        self.topic.ages = False
        self.pass_time(_STILL_S)
        # What was refused while it could not be looked at is tried once more.
        self._ask(list(self.handles), 10.0, self.factory.flush)
        self.pass_time(11.0)
        self.judge.all_told(self.handles, notices=not self.crashes)
        self.judge.check()
        self.topic.grow_over_everything()
        super().recover()


class PreemptedFiniteWorld(FiniteWorld, PreemptedWorld):
    """The same, with threads that get into each other's way."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # A flush that is refused takes many steps, in which users would ask for ever more of them.
        self._often = min(self._often, 0.05)
        self._asks += [self.submit_beyond, self.rewind_anywhere, self.topic.age]

    def recover(self) -> None:
        """Users leave it alone at last, before it is looked at what they were told."""
        self._asks.clear()
        super().recover()
