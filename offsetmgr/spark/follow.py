"""Follows the checkpoints of queries that do not commit: reads them, and commits what they finish.

``follow_state`` decides when a checkpoint is read, ``group_state`` what its group commits, by the
committer of ``commit_offsets``.  Here are the threads: one that keeps the times, and one for each
look, so that a bucket that does not answer delays no other.
"""

from __future__ import annotations

import heapq
import itertools
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import wait
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from offsetmgr.config import masked_url
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError, listed
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.committer import Committer, Subscription
from offsetmgr.spark.follow_settings import expand
from offsetmgr.spark.follow_state import FollowedCheckpoint
from offsetmgr.spark.logs import usable_logs
from offsetmgr.spark.progress import Run, finished_batch, lowest
from offsetmgr.text import error_text, visible
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.checkpoint import Batch
    from offsetmgr.spark.follow_settings import Follow
    from offsetmgr.spark.follow_state import Seen
    from offsetmgr.spark.progress import Positions
    from offsetmgr.types import TopicPartition

_log = SafeLogger("offsetmgr.follow")

MOST_LOOKS: Final = 64
"""Looks at checkpoints of one Follow at once; those of a dead mount may never return."""

LONGEST_PAUSE_S: Final = 5.0
"""Longest pause before threads that could not be started are tried again."""

LOGS_S: Final = 5.0
"""Longest wait for the logs of a query's topics, once for each start of it."""

_NUMBER: Final = re.compile(r"\d+")

UNANSWERED_S: Final = 30.0
"""A look that takes longer is a problem of its checkpoint."""


class FollowedQuery(NamedTuple):
    """A followed checkpoint as of its last look; or a Follow, if nothing matches it."""

    follow: str
    """The name of the Follow."""
    name: str
    """The text for ``{name}``; empty for a Follow itself."""
    location: str
    groups: tuple[str, ...] = ()
    query_id: str | None = None
    batch_id: int | None = None
    batch_at_s: float | None = None
    """When Spark planned the batch, in seconds since 1970."""
    records: int | None = None
    """Read since the batch that was seen before; None after the first."""
    offsets: Mapping[str, Positions] = {}
    """The next offsets to read after the last batch, by group."""
    looked_at_s: float | None = None
    """The last look, in seconds since 1970."""
    is_running: bool = False
    """A batch was finished within ``keep_alive_s``."""
    problem: str | None = None


class Follower:
    """Follows checkpoints from ``start`` to ``close``; any thread may call its methods."""

    def __init__(
        self,
        follows: Mapping[str, Follow],
        client: Offsets,
        *,
        on_batch: Callable[[FollowedQuery], object] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``on_batch`` is called with each batch that was handed to ``client``."""
        self.client = client
        self.committer = Committer.of(client)
        self.on_batch = on_batch
        self.now, self.wall = time.monotonic, wall
        self.rng = Random()  # noqa: S311 -- jitter
        self.requests: Counter[str] = Counter(read=0, list=0)
        """Requests to file systems: for a file, and for the names in a folder."""
        self.failures: Counter[str] = Counter(dict.fromkeys(follows, 0))
        """Looks that failed, by name of the Follow."""
        self.closed = False
        self.searches = [_Search(self, name, each) for name, each in follows.items()]
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, _Task]] = []
        self._numbers = itertools.count()
        self._waiting: dict[str, SimpleQueue[_Task | None]]
        self._waiting = {name: SimpleQueue() for name in follows}
        self._in_work = Counter(dict.fromkeys(follows, 0))
        """Tasks that wait or are looked at, by name of the Follow."""
        self._readers = Counter(dict.fromkeys(follows, 0))
        """Threads that look at checkpoints, by name of the Follow."""
        self._worker = Worker("offsetmgr-follow", self._run)

    def start(self) -> None:
        for search in self.searches:
            self.schedule(search, self.now())
        self._worker.ensure()

    def close(self) -> None:
        """Follow no more; a look that is under way commits nothing.

        The managers are left to whoever closes the client.
        """
        with self._changed:
            was_closed, self.closed = self.closed, True
            self._changed.notify_all()
            for name in self._readers.elements():
                self._waiting[name].put(None)
        for each in [] if was_closed else self._followed():
            each.drop()

    def once(self, timeout: float) -> bool:
        """Look at each checkpoint once; False if some have not answered in ``timeout`` seconds."""
        deadline = Deadline(timeout)
        for tasks in (lambda: self.searches, self._followed):
            for task in tasks():
                self._begin(task)
            with self._changed:
                if not self._changed.wait_for(self._is_idle, deadline.left_s):
                    return False
        return bool(wait([self.committer.do(lambda: True)], deadline.left_s).done)

    def queries(self) -> list[FollowedQuery]:
        """Return what is known of each checkpoint, and of each Follow with a problem."""
        searches = [each.view() for each in self.searches if each.problem]
        return searches + [each.view() for each in self._followed()]

    def _followed(self) -> list[_Followed]:
        return [each for search in self.searches for each in list(search.found.values())]

    def _is_idle(self) -> bool:
        return not any(self._in_work.values())

    # The thread that keeps the times.

    def _run(self) -> None:
        while not self.closed:
            with self._changed:
                pause_s = self._due[0][0] - self.now() if self._due else LONGEST_PAUSE_S
                if pause_s > 0:
                    self._changed.wait(min(pause_s, LONGEST_PAUSE_S))
                    self._start_readers()
                else:
                    self._begin(heapq.heappop(self._due)[2])

    def schedule(self, task: _Task, due_s: float) -> None:
        with self._changed:
            heapq.heappush(self._due, (due_s, next(self._numbers), task))
            self._changed.notify_all()

    def _begin(self, task: _Task) -> None:
        with self._changed:
            self._in_work[task.follow_name] += 1
            task.begun_s = self.now()
            self._waiting[task.follow_name].put(task)
            self._start_readers()

    def _start_readers(self) -> None:
        for name, wanted in self._in_work.items():
            while self._readers[name] < min(wanted, MOST_LOOKS) and not self.closed:
                if not Worker(f"offsetmgr-follow {name}", partial(self._read, name)).ensure():
                    return
                self._readers[name] += 1

    # The threads of the looks.

    def _read(self, name: str) -> None:
        while (task := self._waiting[name].get()) is not None:
            due_s = self.now()
            try:
                if not self.closed:
                    due_s = task.look()
            except BaseException as error:  # noqa: BLE001 -- a bad checkpoint is one bad row
                is_plain = isinstance(error, (OffsetManagerError, OSError))
                text = visible(str(error) if is_plain else error_text(error))
                due_s = task.failed(text if task.location in text else f"failed: {text}")
            finally:
                task.begun_s = None
                with self._changed:
                    self._in_work[name] -= 1
                    self._changed.notify_all()
                if not task.is_gone:
                    self.schedule(task, due_s)


class _Task(ABC):
    """A look that is repeated.  ``look`` and ``failed`` return when the next one is due."""

    def __init__(self, follower: Follower, follow_name: str, location: str) -> None:
        self.follower = follower
        self.follow_name = follow_name
        # For logs, pages and metrics, which an odd name must not spoil.
        has_login = "://" in location and not location.startswith("file:")
        self.location = visible(masked_url(location) if has_login else location)
        self.begun_s: float | None = None
        """When the look began that is under way."""
        self.problem: str | None = None
        self.is_gone = False

    @abstractmethod
    def look(self) -> float: ...

    @abstractmethod
    def failed(self, problem: str) -> float: ...

    def report(self, problem: str | None) -> None:
        """Note the state, and log it if its cause is another than before."""
        before, self.problem = self.problem, problem
        # The end of a log may be another one at each look.
        if problem is not None and _NUMBER.sub("", problem) != _NUMBER.sub("", before or ""):
            name = self.follow_name
            _log.warning("checkpoint %s of follow %s: %s", self.location, name, problem)
        elif problem is None and before is not None:
            _log.info("checkpoint %s of follow %s is well again", self.location, self.follow_name)

    def report_failure(self, problem: str) -> None:
        self.follower.failures[self.follow_name] += 1
        self.report(problem)

    def trouble(self) -> str | None:
        """Return the problem, or that the look under way is not answered."""
        begun_s = self.begun_s
        late_s = 0.0 if begun_s is None else self.follower.now() - begun_s
        return f"no answer for {late_s:.0f} s" if late_s > UNANSWERED_S else self.problem


class _Search(_Task):
    """The search for the checkpoints of one Follow."""

    def __init__(self, follower: Follower, name: str, follow: Follow) -> None:
        super().__init__(follower, name, follow.checkpoint)
        self.follow = follow
        self.found: dict[str, _Followed] = {}

    def look(self) -> float:
        now_s, follow = self.follower.now(), self.follow
        unreadable: dict[str, OSError] = {}
        locations = dict(expand(follow.checkpoint, self.follower.requests, unreadable))
        if unreadable:
            self.report_failure(visible(f"failed: {listed(unreadable.values())}"))
        else:
            self.report(None if locations else "nothing matches it")
        for location, name in locations.items():
            known = self.found.get(location)
            if known is None:
                known = self.found[location] = _Followed(self, location, name)
                self.follower.schedule(known, now_s)
            known.listed_s = now_s
        not_listed = tuple(f"{folder}/" for folder in unreadable)
        for location, known in list(self.found.items()):
            # A removed checkpoint counts in the minimum of its group as long as any other.
            if location.startswith(not_listed):
                known.listed_s = now_s
            elif now_s - known.listed_s > follow.keep_alive_s:
                del self.found[location]
                known.forget()
        return now_s + follow.interval_s

    def failed(self, problem: str) -> float:
        self.report_failure(problem)
        return self.follower.now() + self.follow.interval_s

    def view(self) -> FollowedQuery:
        return FollowedQuery(self.follow_name, "", self.location, problem=self.trouble())


class _Followed(_Task):
    """A followed checkpoint; one thread at a time looks at it."""

    def __init__(self, search: _Search, location: str, name: str) -> None:
        follower, follow = search.follower, search.follow
        super().__init__(follower, search.follow_name, location)
        self.listed_s = follower.now()
        self.state = FollowedCheckpoint(
            follow.interval_s, follow.keep_alive_s, self.listed_s, follower.rng
        )
        self._follow, self._url, self._name = follow, location, name
        self._checkpoint: Checkpoint | None = None
        self._subscription: Subscription | None = None
        self._run: Run | None = None
        self._foreign: dict[TopicPartition, str] = {}
        self._view = FollowedQuery(search.follow_name, visible(name), self.location)

    def look(self) -> float:
        state, follower = self.state, self.follower
        subscription, checkpoint = self._opened()
        before = state.seen
        is_news = state.look(checkpoint, follower.now)
        is_again = not is_news and bool(subscription.refusals or self._foreign)
        state.run += is_again
        seen, batch = state.seen, state.seen.batch
        view = self._view._replace(looked_at_s=follower.wall(), query_id=seen.query_id)
        if batch is None:  # what was seen before is of another query
            view = view._replace(batch_id=None, batch_at_s=None, records=None, offsets={})
        self._view = view
        if (is_news or is_again) and batch is not None:
            try:
                self._commit(batch, subscription, before)
            except BaseException:
                state.seen = before  # to commit it at the next look
                raise
        else:
            self._end_if_quiet()
        self.report(self._problem(subscription))
        return state.due_s

    def failed(self, problem: str) -> float:
        self.report_failure(problem)
        self.state.failed(self.follower.now())
        self._view = self._view._replace(looked_at_s=self.follower.wall())
        self._end_if_quiet()
        return self.state.due_s

    def forget(self) -> None:
        """Let the group go on without a checkpoint that was removed."""
        self.is_gone = True
        if self._subscription is not None and self._run is not None:
            self._subscription.end(self._run)
            self._subscription.release(self._run.query_id)
        self.drop()

    def drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self.follower.committer.drop(subscription)

    def view(self) -> FollowedQuery:
        return self._view._replace(is_running=self.state.is_running, problem=self.trouble())

    def _opened(self) -> tuple[Subscription, Checkpoint]:
        if self._subscription is None or self._checkpoint is None:
            follower = self.follower
            groups = self._follow.groups_of(self._name)
            self._checkpoint = Checkpoint(self._url, requests=follower.requests)
            self._subscription = Subscription(follower.committer, groups, follower)
            self._view = self._view._replace(groups=tuple(sorted(groups.names())))
        return self._subscription, self._checkpoint

    def _end_if_quiet(self) -> None:
        is_over = self.state.ends(self.follower.now())
        if is_over and self._subscription is not None and self._run is not None:
            self._subscription.end(self._run)

    def _commit(self, batch: Batch, subscription: Subscription, before: Seen) -> None:
        """Hand a batch over, without the offsets of another log than the topic's."""
        groups = subscription.groups
        offsets = {
            partition: offset
            for partition, offset in batch.offsets.items()
            if groups.group_of(partition.topic) is not None
        }
        # Copies of a checkpoint have one id, and may be of queries that are not equally far.
        run = Run(self.location, str(self.state.run))
        if offsets and (run != self._run or self._foreign):
            _, self._foreign = usable_logs(self.follower.client, offsets, Deadline(LOGS_S))
        offsets = {each: offset for each, offset in offsets.items() if each not in self._foreign}
        self._run = run
        at_s, query_id = self.follower.wall(), self.state.seen.query_id
        # The client shows one query for each; a run begins at each look at a refused offset.
        run_id = str(uuid5(NAMESPACE_URL, f"{self.follow_name} {self.location}"))
        snapshot = finished_batch(
            *(run, self.location, batch.batch_id, offsets, at_s), id=query_id, run_id=run_id
        )
        if not self.follower.closed:
            subscription.put(snapshot)
        parts = groups.parts(snapshot)
        view = self._view = self._view._replace(
            batch_id=batch.batch_id,
            batch_at_s=batch.at_s,
            offsets={group: lowest(part.sources) for group, part in parts.items()},
        )
        if batch == before.batch and query_id == before.query_id:
            return  # what was refused before is tried again
        records: int | None = None
        if before.batch is not None and before.query_id == query_id:
            starts = before.batch.offsets
            records = sum(max(0, at - starts.get(each, 0)) for each, at in batch.offsets.items())
        view = self._view = view._replace(records=records)
        on_batch = self.follower.on_batch
        if on_batch is not None:
            self.follower.committer.do(lambda: on_batch(view))

    def _problem(self, subscription: Subscription) -> str | None:
        """Return why offsets of the last batch are not committed, or what else is wrong."""
        if self._foreign:
            texts = [f"{partition}: {reason}" for partition, reason in self._foreign.items()]
            return f"not committed: {listed(texts)}"
        for error in subscription.refusals.copy().values():
            return f"not committed: {error}"
        is_twice = sum(self._url in each.found for each in self.follower.searches) > 1
        return "is followed more than once: by several patterns" if is_twice else None
