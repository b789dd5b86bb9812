"""Two threads at one tray, met at the very point where only its lock keeps them apart.

The second thread is started in the middle of what the first one does, which goes on as soon as the
other has either ended or waits for the lock.  So these tests do not depend on luck: without the
lock, or with what is looked at before it is taken, each fails whenever it is run.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.errors import OffsetRegressionError
from tests.unit.core.core import Core, at, tp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offsetmgr.manager import ManagerHandle
    from offsetmgr.manager.tray import Tray
    from offsetmgr.types import TopicPartition

LIMIT_S = 30.0
"""A guard, not a measure."""

KEYS = [tp(0), tp(1)]


class WatchedLock:
    """Tells when somebody has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.met = threading.Event()

    def acquire(self) -> None:
        """Take it, or tell that it has to be waited for."""
        if not self._lock.acquire(blocking=False):
            self.met.set()
            self._lock.acquire()

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Other:
    """A second thread, which does one thing in the middle of another."""

    def __init__(self, lock: WatchedLock, work: Callable[[], object]) -> None:
        self._lock = lock
        self._work = work
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._lock.met.set()

    def interrupt(self) -> None:
        """Start, once; return when it has ended or waits for the lock."""
        if not self._thread.ident:
            self._thread.start()
            assert self._lock.met.wait(LIMIT_S)

    def join(self) -> None:
        """It was started, and has ended."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


class Floors(list[int]):
    """The offsets of the last round; somebody comes while the next one is compared with them."""

    def __init__(self, offsets: list[int], other: Other) -> None:
        super().__init__(offsets)
        self._other = other

    def __iter__(self) -> Iterator[int]:
        for each in super().__iter__():
            yield each
            self._other.interrupt()


class Offset(int):
    """An offset; somebody comes while it is compared with the floor."""

    other: Other

    def __ge__(self, floor: int) -> bool:
        higher = super().__ge__(floor)
        self.other.interrupt()
        return higher


class Interrupted(dict[Any, int]):
    """A round; somebody comes after the last one was looked at, and before the lock is taken."""

    def __init__(self, offsets: dict[TopicPartition, int], act: Callable[[], object]) -> None:
        super().__init__(offsets)
        self._act = act

    def values(self) -> Any:
        """As always, with somebody else first."""
        act, self._act = self._act, lambda: None
        act()
        return super().values()


class Group:
    """Two managers that commit when told, and have taken a round of 10."""

    def __init__(self) -> None:
        self.core = Core(commit_interval_s=3600.0)
        self.core.factory.spawn_many("g", KEYS)
        self.core.advance(1.0)
        self.handles = self.core.factory.managers("g")
        self.tray: Tray = self.handles[0]._desk.slot.tray
        self.lock = WatchedLock()
        self.tray.lock = self.lock  # type: ignore[assignment]
        self.submit(10)

    def submit(self, offset: int) -> bool:
        """A group-wise submit; whether the first partition's offset was taken."""
        refused = self.core.factory.submit("g", dict.fromkeys(KEYS, offset))
        return tp(0) not in refused

    def single(self, offset: int) -> bool:
        """A submit of the first partition alone; whether it was taken."""
        handle: ManagerHandle = self.handles[0]
        with suppress(OffsetRegressionError):
            handle.submit(offset)
            return True
        return False

    def newest(self) -> object:
        """What the first manager holds."""
        return self.handles[0].status().submitted

    def in_the_middle(self, work: Callable[[], object]) -> Other:
        """Let ``work`` come while the next round is compared with the last one."""
        other = Other(self.lock, work)
        last = self.tray.last
        assert last is not None
        last.offsets = Floors(last.offsets, other)
        return other


@pytest.fixture
def group() -> Group:
    """As every test begins."""
    return Group()


def test_a_higher_round_in_the_middle_of_a_round(group: Group) -> None:
    """The lower one, which is compared already, does not go over it."""
    taken: list[bool] = []
    other = group.in_the_middle(lambda: taken.append(group.submit(30)))
    assert group.submit(20)
    other.join()
    assert (taken, group.newest()) == ([True], at(30))


def test_a_lower_offset_in_the_middle_of_a_round(group: Group) -> None:
    """It is refused: taken after the comparison, it would make the round come to nothing."""
    taken: list[bool] = []
    other = group.in_the_middle(lambda: taken.append(group.single(15)))
    assert group.submit(20)
    other.join()
    assert (taken, group.newest()) == ([False], at(20))


def test_a_higher_offset_in_the_middle_of_a_lower_one(group: Group) -> None:
    """As with rounds: what is compared already does not go over it."""
    group.single(11)
    lower, taken = Offset(12), list[bool]()
    lower.other = other = Other(group.lock, lambda: taken.append(group.single(30)))
    group.handles[0]._desk.slot.put(lower, "", None)
    other.join()
    assert (taken, group.newest()) == ([True], at(30))


@pytest.mark.parametrize("offset", [15, 30])
def test_a_single_offset_just_before_a_round_takes_the_lock(group: Group, offset: int) -> None:
    """The round that was looked at is not the last one any more: it is looked at by itself."""
    rounds = Interrupted(dict.fromkeys(KEYS, 20), lambda: group.single(offset))
    refused = group.core.factory.submit("g", rounds)
    assert (tp(0) in refused) == (offset > 20)
    assert group.newest() == at(max(offset, 20))
    group.core.advance(3_601.0)
    assert group.core.commits()[-1] == {0: max(offset, 20), 1: 20}
