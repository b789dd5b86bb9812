"""A run in which topics are deleted and recreated, and readers notice late.

Every submitted value belongs to the log that its reader read it from.  No value may be committed to
another log, but in two cases, which are counted: a topic that is recreated between the look at its
id and the commit, and a guess (see ``log_steps.is_of_former_log``) about a reader that still
submits offsets of the former log after the manager has noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from offsetmgr.codes import OFFSET_CHANGED, TOPIC_DELETED, TOPIC_RECREATED
from offsetmgr.coordinator.logs import LOOK_AGE_S
from offsetmgr.errors import OffsetCommitError, OffsetNoticeError
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition
from tests.sim.judge import Judge, Promise, Truth
from tests.sim.referee import LEVEL, order_of
from tests.sim.world import World, _level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.coordinator.memory import SentRequest
    from offsetmgr.errors import OffsetManagerError

TOPIC = "t"
PARTITIONS = 3
_LONGEST_GAP_S = 3.0


@dataclass
class Reader:
    """A program that reads a partition and submits its offsets."""

    log: int = 1
    """The log that it reads, by the number of times that the topic was created."""
    excused: set[int] = field(default_factory=set)
    """Values of the log as it is that may be taken for ones of the former log."""
    guessed: set[int] = field(default_factory=set)
    """Values of the former log that may be taken for ones of the log as it is."""
    raced: set[int] = field(default_factory=set)
    """Values of the former log that were committed while the topic was recreated."""


class LogJudge(Judge):
    """Knows the log of every value."""

    def __init__(self) -> None:
        super().__init__()
        self.log = 1
        """The log as it is."""
        self.changed_s = -1e9
        """When the topic was deleted or created last."""
        self.exists = True
        self.logs: dict[int, int] = {}
        """The log of each value, by its place in the order of submits."""
        self.readers: dict[ManagerKey, Reader] = {}
        self.strays: set[ManagerKey] = set()
        """Partitions with a value of a former log."""
        self.were_stray: set[ManagerKey] = set()
        self._sent_s: dict[str, float] = {}

    def sent(self, request: SentRequest) -> None:
        self._sent_s[request.group] = self.now()
        super().sent(request)

    def is_former(self, value: OffsetAndMetadata | None) -> bool:
        """True if the value was read from a log that is no more."""
        return self.logs.get(order_of(value), self.log) != self.log

    def began_with(self, key: ManagerKey, value: OffsetAndMetadata) -> None:
        self.logs[order_of(value)] = self.log
        super().began_with(key, value)

    def promised(self, *args: Any, **options: Any) -> Promise:
        """After the topic was recreated an answer may be about the former log."""
        promise = super().promised(*args, **options)
        if self.log > 1 or not self.exists:
            promise.must_commit = False
            promise.tampered.update(promise.newest)
        return promise

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        of_this_log = {key: offset for key, offset in offsets.items() if not self.is_former(offset)}
        super().committed(of_this_log)

    def recreated(self, *, exists: bool) -> None:
        """The topic was deleted, and with it what groups had committed; or it was created."""
        self.log += exists
        self.exists, self.changed_s = exists, self.now()
        for promise in self.promises:
            promise.tampered.update(promise.newest)
            promise.must_commit = False
        for key, truth in self.truths.items():
            was, rewinds = truth.submitted, truth.rewinds
            self.truths[key] = Truth(was, rewinds, applied={*truth.applied})
            self.stands(key, None)
            self.strays.discard(key)
            life = self.lives.get(key)
            if life is not None and life.newest is not None:
                life.dropped = life.dropped or self.logs[order_of(life.newest)] != self.log

    def took_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        late = self.is_late(group, offsets)
        for partition, value in offsets.items():
            key = ManagerKey(group, *partition)
            if self._is_start(key, value):
                self.met["log: stray offset replaced"] += 1
                self.truth(key).submitted.add(order_of(value))
                self.truth(key).rewinds.add(order_of(value))
                self.truth(key).value = None
                self.strays.discard(key)
            elif not self.is_former(value):
                self.strays.discard(key)
                if self._in_race(key):
                    self.were_stray.add(key)  # without an id it may be taken for one
            else:
                self._judge_log(key, value, late=late)
        super().took_effect(group, offsets)

    def began_at(
        self,
        key: ManagerKey,
        value: OffsetAndMetadata | None,
        stood: list[OffsetAndMetadata | None],
    ) -> None:
        """It is of the log as it is, unless the topic has just changed or the manager guessed."""
        formers = [
            each
            for each in stood
            if self.is_former(each) or (each is not None and self._is_start(key, each))
        ]
        begins = [None, OffsetAndMetadata(0)] if formers else []
        super().began_at(key, value, [*stood, *begins])
        reader = self.readers[key]
        excused = self._in_race(key) or order_of(value) in reader.guessed | reader.raced
        if self.is_former(value) and not excused:
            self.blame(f"{key}: told {value} as its initial offset, of a former log")

    def _in_race(self, key: ManagerKey) -> bool:
        """True if the topic may have changed after the look before the group's last request."""
        return self.changed_s >= self._sent_s[key.group] - LOOK_AGE_S

    def _is_start(self, key: ManagerKey, value: OffsetAndMetadata) -> bool:
        return value.offset == 0 and not value.metadata and key in self.were_stray

    def _judge_log(self, key: ManagerKey, value: OffsetAndMetadata, *, late: bool) -> None:
        if value == self.truth(key).value:
            # Judged when it was committed first; to a later manager it is somebody else's.
            self.met["log: stray offset kept from expiring"] += 1
            return
        if order_of(value) in self.readers[key].guessed:
            self.met["log: guessed wrong"] += 1
        elif late or self._in_race(key):
            self.met["log: recreated during a commit"] += 1
            self.readers[key].raced |= set() if late else {order_of(value)}
            if not self.lives[key].stopping:
                self.strays.add(key)
        else:
            self.blame(f"{key}: {value} was committed to a log that it was not read from")
        self.were_stray.add(key)
        self.truth(key).deleted = True

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        life, truth = self.lives[key], self.truth(key)
        if isinstance(error, OffsetNoticeError):
            if error.info.code == TOPIC_DELETED:
                self.met["log: told that the topic was deleted"] += 1
                return
            if error.info.code == OFFSET_CHANGED and self.log == 1 and self.exists:
                super().failed(key, error)
            return
        if isinstance(error, OffsetCommitError) and error.info.code == TOPIC_RECREATED:
            self.met["log: refused an offset of the former log"] += 1
            newest = life.newest
            if newest is None or newest.offset != error.offset:
                return
            order = order_of(newest)
            life.dropped = True
            truth.dropped.add(order)
            if self.logs[order] == self.log and order not in self.readers[key].excused:
                self.blame(f"{key}: refused {newest}, read from the log as it is: {error}")
            return
        super().failed(key, error)

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        super().stopped(key, result)
        self.strays.discard(key)  # nobody is left to replace it

    def fell(self, key: ManagerKey, before: OffsetAndMetadata, value: OffsetAndMetadata) -> bool:
        """A new log may begin anywhere."""
        return self.logs.get(order_of(before)) == self.log and super().fell(key, before, value)

    def final(self) -> None:
        if self.strays:
            self.blame(f"offsets of a former log stay committed: {self.strays}")
        super().final()


class RecreatedWorld(World):
    """As its parent, on a topic that changes."""

    judge_type: ClassVar[type[Judge]] = LogJudge
    judge: LogJudge

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.coordinator.broker.create_topic(TOPIC, PARTITIONS)
        for key in self.keys:
            self.judge.readers[key] = Reader()
            self._grow(key, 30 * LEVEL)

    def _draw_actions(self) -> list[Callable[[], None]]:
        others = (self.commit_externally, self.forget)
        mix = [action for action in super()._draw_actions() if action not in others]
        return [*mix, self.recreate, self.recreate_between, self.notice, self.notice, self.repeat]

    def _is_evident(self, key: ManagerKey, value: OffsetAndMetadata) -> bool:
        """True if a manager that has noticed can tell that ``value`` is of the former log."""
        former = self.handles[key]._manager.former
        return former is not None and (value.offset == former or value.offset > self._end(key))

    def _grow(self, key: ManagerKey, end: int) -> None:
        """Let the log have at least so many records, as its reader has read that far.

        A waiting offset of the former log that is no longer beyond the end may be taken for one of
        the log as it is.
        """
        if self.judge.exists and self._end(key) < end:
            self.coordinator.broker.set_log(key.topic_partition, 0, end)
            for other, life in self.judge.lives.items():
                newest = life.newest
                if newest and newest.offset <= end and other.partition == key.partition:
                    self.judge.readers[other].guessed.add(order_of(newest))

    def _end(self, key: ManagerKey) -> int:
        """The end of the log as it is; 0 if there is none."""
        logs = self.coordinator.broker.topic_logs([TOPIC])[TOPIC].partitions
        return logs[key.partition].high_watermark if logs else 0

    def _judge_offer(
        self,
        key: ManagerKey,
        value: OffsetAndMetadata,
        error: OffsetManagerError | None,
        *,
        rewind: bool,
    ) -> None:
        reader, order = self.judge.readers[key], order_of(value)
        log = self.judge.logs.setdefault(order, reader.log)
        manager = self.handles[key]._manager
        noticed = manager.topic_id == str(self.judge.log)
        if manager.topic_id is None or not manager.initial.done() or manager.rewind_number:
            reader.guessed.add(order)
        if log == self.judge.log:
            if not noticed or value.offset == manager.former:
                reader.excused.add(order)
            self._grow(key, value.offset)
        elif noticed and not self._is_evident(key, value):
            reader.guessed.add(order)
        super()._judge_offer(key, value, error, rewind=rewind)
        if error is None and (value.offset == manager.former or log != self.judge.log):
            self.judge.lives[key].dropped = True  # nobody is owed it

    def recreate(self) -> None:
        """Delete the topic, and create it again: at once, or after a while; longer or shorter."""
        broker = self.coordinator.broker
        broker.delete_topic(TOPIC)
        self.judge.recreated(exists=False)
        self.pass_time(self.rng.choice((0.0, 0.05, 0.3, _LONGEST_GAP_S)))
        broker.create_topic(TOPIC, PARTITIONS)
        self.judge.recreated(exists=True)
        for key in self.keys:
            self._grow(key, self.rng.choice((0, 3, 10, 60)) * LEVEL)

    def recreate_between(self) -> None:
        """Stop managers with their commits under way; the next ones are of the recreated topic."""
        self.submit_groupwise()
        self.pass_time(self.rng.choice((0.3, 0.6)))
        self._stop(list(self.handles), 0.0)
        self.recreate()
        self.pass_time(self.rng.choice((0.3, 3.0, 10.0)))
        self.spawn()

    def notice(self) -> None:
        """A reader goes on in the log as it is, from its start, with or without a rewind."""
        handle = self._some_handle()
        if handle is None:
            return
        reader = self.judge.readers[handle.key]
        if reader.log != self.judge.log and self.judge.exists:
            reader.log = self.judge.log
            self._offer(handle, self._value(self.rng.randint(0, 2)), rewind=self.rng.random() < 0.7)

    def repeat(self) -> None:
        """A reader of the former log submits its last offset again, or more of that log."""
        handle = self._some_handle()
        newest = None if handle is None else self.judge.lives[handle.key].newest
        if handle is not None and newest is not None:
            level = _level(newest) + self.rng.randint(0, 2)
            again = level == _level(newest)
            self._offer(handle, newest if again else self._value(level))

    def recover(self) -> None:
        """At last there is a topic, and all readers read it."""
        if not self.judge.exists:
            self.coordinator.broker.create_topic(TOPIC, PARTITIONS)
            self.judge.recreated(exists=True)
        self.pass_time(10.0)
        for handle in self.handles.values():
            self.judge.readers[handle.key].log = self.judge.log
            if not self.judge.lives[handle.key].stopping:
                self._offer(handle, self._value(70 + self.rng.randint(0, 5)), rewind=True)
        super().recover()
