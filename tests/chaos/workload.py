"""One life of a client process: submits rising offsets for its own partitions until told to end.

``python -m tests.chaos.workload LIFE``, where the life is JSON.  SIGTERM ends it in order: it has
everything committed, and exits with status 0 where that was answered.
SIGUSR1 makes it fall silent (nothing is submitted, nothing flushed), SIGUSR2 speak again.

The offsets of even partitions only rise, over all lives.  Odd ones are also rewound, and begin each
life with a rewind, as a Spark query does.  The first half of the groups submits and goes on, the
others wait for each commit.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr import OffsetClient
from offsetmgr.errors import OffsetManagerError, OffsetRegressionError
from offsetmgr.types import OffsetAndMetadata
from tests.chaos.history import TELLING, EventLog, Key, Tag, events_of, lives_of, parse_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetmgr import OffsetManagerHandle
    from tests.chaos.history import Action

CLOSE_S: Final = 60.0
"""Time limit of an ordered end."""
INCOMPLETE: Final = 3
"""Exit status where something was left uncommitted."""

_ORDERS: Final = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
_PAUSE_S: Final = 0.01
_LONGEST_STEP: Final = 20
_REWOUND: Final = 50
_LONGEST_SYNC_S: Final = 8.0


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

    def command(self) -> list[str]:
        return ["tests.chaos.workload", json.dumps(self, default=str)]


def reached(life: Life) -> dict[Key, int]:
    """The last offset that earlier lives have submitted, whatever became of it."""
    found: dict[Key, int] = {}
    wanted = {Key(group, number) for group in life.groups for number in life.partitions}
    # The newest life has mostly submitted to all: a late life must not read through hours of logs.
    for path in reversed(lives_of(life.folder, life.name)):
        latest = {
            event.key: event.offset
            for event in events_of(path)
            if event.outcome == "invoke" and event.action not in {*TELLING, "lower"}
        }
        found = latest | found
        if wanted <= found.keys():
            break
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

    def submit(self, action: Action, key: Key, offset: int, timeout_s: float = 0.0) -> None:
        tag = Tag(self.life.name, self.life.number, next(self._numbers))
        where = (self.life.topic, key.partition)
        value = OffsetAndMetadata(offset, str(tag))
        self._log.write("invoke", action, tag, key, offset)
        if action != "lower":
            self.reached[key] = offset
        try:
            self._client.submit(
                key.group,
                {where: value},
                rewind=action == "rewind",
                sync=action == "sync",
                timeout=timeout_s,
            )
        except OffsetRegressionError:
            self._log.write("fail", action, tag, key, offset)
        except OffsetManagerError:
            self._log.write("info", action, tag, key, offset)
        else:
            self._log.write("ok", action, tag, key, offset)

    def listen(self, handles: Sequence[OffsetManagerHandle]) -> None:
        while not self.ending.wait(_PAUSE_S):
            for handle in handles:
                try:
                    committed = handle.committed_offsets().get(timeout=0)
                except TimeoutError:
                    continue
                key = Key(handle.key.group, handle.key.partition)
                tag = parse_tag(committed.metadata)
                self._log.write("ok", "told", tag, key, committed.offset)

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
        handles = [
            self._client.spawn(group, life.topic, number)
            for group in life.groups
            for number in life.partitions
        ]
        threads.append(threading.Thread(target=self.listen, args=(handles,)))
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
            key = Key(manager.group, manager.partition)
            self._log.write("ok", "close", parse_tag(value.metadata), key, value.offset)
        for manager, left in result.uncommitted.items():
            key, value = Key(manager.group, manager.partition), left.offset
            self._log.write("info", "close", parse_tag(value.metadata), key, value.offset)
        return INCOMPLETE if result.uncommitted else 0


def _die(failure: threading.ExceptHookArgs) -> None:
    """A thread that fails must not leave a client that lives on without it."""
    traceback.print_exception(failure.exc_value)
    os._exit(1)


if __name__ == "__main__":
    folder, *fields = json.loads(sys.argv[1])
    sys.exit(Driver(Life(Path(folder), *fields)).run())
