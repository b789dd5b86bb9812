"""One life of a client process: submits rising offsets for its own partitions until told to end.

``python -m tests.chaos.workload LIFE``, where the life is JSON.  SIGTERM ends it in order: it has
everything committed, and exits with status 0 where that was answered.
SIGUSR1 makes it fall silent (nothing is submitted, nothing flushed), SIGUSR2 speak again.

The offsets of even partitions only rise, over all lives.  Odd ones are also rewound, and begin each
life with a rewind, as a Spark query does.  The first half of the groups submits and goes on, the
others wait for each commit.

Topics that are recreated have readers of their own.  They read a log, and notice late that it is
gone: until then they repeat their last offset, or go on with records that they have fetched.  Then
they begin in the new log, with a rewind as Spark does, or with a lower offset.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr import OffsetClient, OffsetManagerHandle
from offsetmgr.errors import OffsetManagerError, OffsetRegressionError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.chaos.history import (
    TELLING,
    Action,
    EventLog,
    Key,
    Outcome,
    Tag,
    events_of,
    lives_of,
    tag_of,
)
from tests.chaos.recreation import Book, Log

if TYPE_CHECKING:
    from collections.abc import Sequence


CLOSE_S: Final = 60.0
"""Time limit of an ordered end."""
INCOMPLETE: Final = 3
"""Exit status where something was left uncommitted."""

_ORDERS: Final = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
_PAUSE_S: Final = 0.01
_LONGEST_STEP: Final = 20
_REWOUND: Final = 50
_LONGEST_SYNC_S: Final = 8.0

_FILE_CLOCK_S: Final = 0.1
"""The clock of a file's time may be behind by so much."""

_READ_PAUSE_S: Final = 0.03
_FETCHED: Final = 5
"""Records that a reader may have fetched when its log is deleted."""
_LATE: Final = (0.0, 0.1, 0.4, 1.0)
"""Times after which a reader notices that its log is gone, by ``late_s`` of its life."""


class Life(NamedTuple):
    """A client process and the partitions that it owns."""

    folder: Path
    url: str
    name: str
    number: int
    seed: int
    topic: str
    partitions: Sequence[int]
    groups: Sequence[str]
    recreated: Sequence[str] = ()
    """Topics that are recreated."""
    read: Sequence[int] = ()
    """The partitions of those that it owns, where they exist."""
    late_s: float = 0.0
    """The longest time until it notices that a log is gone."""

    def command(self) -> list[str]:
        # Without what an earlier version of this module would not understand.
        fields = self if self.recreated else self[:-3]
        return ["tests.chaos.workload", json.dumps(fields, default=str)]

    def topic_of(self, key: Key) -> str:
        return key.topic or self.topic


def reached(life: Life) -> dict[Key, int]:
    """The last offset that earlier lives have submitted, whatever became of it.

    A replaced life may have gone on after the end of its successor, and beyond it.
    """
    found: dict[Key, int] = {}
    wanted = {Key(group, number) for group in life.groups for number in life.partitions}
    began_s = inf
    paths = lives_of(life.folder, life.name)
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        # The newest life has mostly submitted to all: a late life must not read through hours of
        # logs.  Those that ended before the lives in `found` began say nothing new.
        if wanted <= found.keys() and path.stat().st_mtime + _FILE_CLOCK_S < began_s:
            break
        latest: dict[Key, int] = {}
        for event in events_of(path):
            began_s = min(began_s, event.at_s)
            if event.outcome == "invoke" and event.action not in {*TELLING, "lower"}:
                latest[event.key] = event.offset
        for key, offset in latest.items():
            rises = not key.partition % 2 and key in found
            found[key] = max(offset, found[key]) if rises else found.get(key, offset)
    return found


class Worker:
    """Submits to some keys, one after the other, in a thread of its own."""

    def __init__(self, driver: Driver, keys: Sequence[Key], *, sync: bool) -> None:
        self._driver = driver
        self._keys = keys
        self._sync = sync
        self._random = random.Random(f"{driver.life.seed} {driver.life.number} {sync}")  # noqa: S311 -- chance, no secret

    def run(self) -> None:
        for key in self._keys:
            first: Action = "rewind" if key.partition % 2 else "submit"
            self._driver.submit(first, key, self._driver.reached.get(key, 0) + 1)
        while not self._driver.ending.wait(self._random.random() * 2 * _PAUSE_S):
            if not self._driver.speaking.is_set():
                continue
            key = self._random.choice(self._keys)
            at, chance = self._driver.reached[key], self._random.random()
            if chance < 0.02 and key.partition % 2:
                self._driver.submit("rewind", key, max(0, at - self._random.randrange(_REWOUND)))
            elif chance < 0.03 and at:
                self._driver.submit("lower", key, at - 1)
            else:
                action: Action = "sync" if self._sync else "submit"
                timeout_s = self._random.random() * _LONGEST_SYNC_S
                step = self._random.randint(1, _LONGEST_STEP)
                self._driver.submit(action, key, at + step, timeout_s)


@dataclass
class _Place:
    """The place of a reader in a log."""

    log: Log
    at: int
    noticed_at: float = inf
    """When it notices that the log is gone, by ``time.monotonic``."""


class Reader:
    """Reads partitions of topics that are recreated, in a thread of its own."""

    def __init__(self, driver: Driver, keys: Sequence[Key], *, sync: bool) -> None:
        self._driver = driver
        self._keys = keys
        self._action: Action = "sync" if sync else "submit"
        self._book = Book(driver.life.folder)
        self._places: dict[Key, _Place] = {}
        self._random = random.Random(f"{driver.life.seed} {driver.life.number} reads {sync}")  # noqa: S311 -- chance, no secret

    def run(self) -> None:
        while not self._driver.ending.wait(self._random.random() * 2 * _READ_PAUSE_S):
            if self._driver.speaking.is_set():
                key = self._random.choice(self._keys)
                self._go_on(key, self._book.newest(key.topic), self._places.get(key))

    def _go_on(self, key: Key, newest: Log, place: _Place | None) -> None:
        is_away = newest.deleted_s < inf
        if place is not None and place.log.number == newest.number and not is_away:
            self._read(key, place)
            return
        if place is not None and place.noticed_at == inf:
            late_s = self._random.choice(_LATE) * self._driver.life.late_s
            place.noticed_at = time.monotonic() + late_s
        if place is not None and time.monotonic() < place.noticed_at:
            self._linger(key, place)
        elif not is_away and key.partition < newest.partitions:
            self._begin(key, newest, is_first=place is None)

    def _begin(self, key: Key, log: Log, *, is_first: bool) -> None:
        """Begin near the start of a log; if it is refused there, try again."""
        if is_first:
            self._driver.spawn(key)
        offset = self._random.randint(0, log.records // 4)
        rewinds = is_first or self._random.random() < 0.6
        outcome = self._driver.submit("rewind" if rewinds else "submit", key, offset, log=log)
        if outcome in {"ok", "info"}:
            self._places[key] = _Place(log, offset)

    def _read(self, key: Key, place: _Place) -> None:
        is_end, chance = place.at == place.log.records, self._random.random()
        if chance < (0.2 if is_end else 0.02):
            back = place.log.records if is_end else _REWOUND
            offset = max(0, place.at - self._random.randint(1, back))
            self._submit("rewind", key, place, offset)
        else:  # at the end it submits the same offset again
            step = self._random.randint(1, _LONGEST_STEP // 2)
            self._submit(self._action, key, place, min(place.at + step, place.log.records))

    def _linger(self, key: Key, place: _Place) -> None:
        """Do what a reader does that does not know that its log is gone."""
        chance = self._random.random()
        if chance < 0.3:
            self._driver.repeat(key)
        elif chance < 0.6:
            self._submit(self._action, key, place, place.at)
        elif chance < 0.8:
            fetched = place.at + self._random.randint(1, _FETCHED)
            self._submit(self._action, key, place, min(fetched, place.log.records))

    def _submit(self, action: Action, key: Key, place: _Place, offset: int) -> None:
        timeout_s = self._random.random() * _LONGEST_SYNC_S
        outcome = self._driver.submit(action, key, offset, timeout_s, log=place.log)
        if outcome in {"ok", "info"}:
            place.at = offset


class Driver:
    """The client of one life, and what its threads share."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.reached = reached(life)
        self.ending = threading.Event()
        self.speaking = threading.Event()
        self.speaking.set()
        self._log = EventLog(life.folder, life.name, life.number)
        self._numbers = itertools.count(1)
        self._client = OffsetClient(life.url, life.name)
        self._handles: list[OffsetManagerHandle] = []
        self._last: dict[Key, OffsetAndMetadata] = {}

    def spawn(self, key: Key) -> None:
        """Spawn a manager whose committed offsets are noted."""
        self._handles.append(self._client.spawn(key.group, self.life.topic_of(key), key.partition))

    def submit(
        self, action: Action, key: Key, offset: int, timeout_s: float = 0.0, log: Log | None = None
    ) -> Outcome:
        """Submit an offset (of ``log``), and return the outcome."""
        number = 0 if log is None else log.number
        tag = Tag(self.life.name, self.life.number, next(self._numbers), number)
        where = (self.life.topic_of(key), key.partition)
        value = OffsetAndMetadata(offset, str(tag))
        self._log.write("invoke", action, tag, key, offset)
        if action != "lower":
            self.reached[key] = offset
        partitions = self._client.core.partitions
        knows_id = bool(partitions._topic_ids.get(where[0]))
        outcome: Outcome = "ok"
        try:
            self._client.submit(
                key.group,
                {where: value},
                rewind=action == "rewind",
                sync=action == "sync",
                timeout=timeout_s,
            )
        except OffsetRegressionError:
            outcome = "fail"
        except OffsetManagerError as error:
            outcome = "former" if error.code == "TOPIC_RECREATED" else "info"
        held = partitions.get(ManagerKey(key.group, *where)) if knows_id else None
        topic_id = "" if held is None else held.topic_id
        self._log.write(outcome, action, tag, key, offset, topic_id if key.topic else "")
        if outcome != "fail":  # else a repetition would be a submit of its own
            self._last[key] = value
        return outcome

    def repeat(self, key: Key) -> None:
        """Submit the last offset of ``key`` once more, with the same metadata."""
        where = (self.life.topic_of(key), key.partition)
        with contextlib.suppress(OffsetManagerError):
            self._client.submit(key.group, {where: self._last[key]})

    def listen(self) -> None:
        while not self.ending.wait(_PAUSE_S):
            for handle in tuple(self._handles):
                try:
                    committed = handle.committed_offsets().get(timeout=0)
                except TimeoutError:
                    continue
                self._note("ok", "told", handle.key, committed)

    def _note(
        self, outcome: Outcome, action: Action, manager: ManagerKey, value: OffsetAndMetadata
    ) -> None:
        """Note what the service says of a submit."""
        tag, topic = tag_of(value.metadata), manager.topic
        if tag is not None:  # else the start of a new log, in the place of a former log's offset
            key = Key(manager.group, manager.partition, topic if tag.log else "")
            self._log.write(outcome, action, tag, key, value.offset)

    def run(self) -> int:
        life = self.life
        # Before there are other threads, which inherit it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ORDERS)
        threading.excepthook = _die
        half = len(life.groups) // 2
        threads = []
        for groups, sync in ((life.groups[:half], False), (life.groups[half:], True)):
            keys = [Key(group, number) for group in groups for number in life.partitions]
            if keys:
                threads.append(threading.Thread(target=Worker(self, keys, sync=sync).run))
            keys = [
                Key(group, number, topic)
                for group in groups
                for topic in life.recreated
                for number in life.read
            ]
            if keys:
                threads.append(threading.Thread(target=Reader(self, keys, sync=sync).run))
        for group in life.groups:
            for number in life.partitions:
                self.spawn(Key(group, number))
        threads.append(threading.Thread(target=self.listen))
        for thread in threads:
            thread.start()
        self._obey()
        for thread in threads:
            thread.join()
        return self._close()

    def _obey(self) -> None:
        while (order := signal.sigwait(_ORDERS)) != signal.SIGTERM:
            if order == signal.SIGUSR1:
                self.speaking.clear()
            else:
                self.speaking.set()
        self.ending.set()

    def _close(self) -> int:
        result = self._client.close(timeout=CLOSE_S)
        for manager, value in result.committed.items():
            self._note("ok", "close", manager, value)
        for manager, left in result.uncommitted.items():
            is_former = left.error.code == "TOPIC_RECREATED"
            self._note("former" if is_former else "info", "close", manager, left.offset)
        steady = [key for key in result.uncommitted if key.topic == self.life.topic]
        return INCOMPLETE if steady else 0


def _die(failure: threading.ExceptHookArgs) -> None:
    """A thread that fails must not leave a client that lives on without it."""
    traceback.print_exception(failure.exc_value)
    os._exit(1)


if __name__ == "__main__":
    folder, *fields = json.loads(sys.argv[1])
    sys.exit(Driver(Life(Path(folder), *fields)).run())
