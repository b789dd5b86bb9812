"""Follows the checkpoints of queries that do not commit: reads them, and commits what they finish.

``Looks`` decides when a checkpoint is read, ``group_state`` what its group commits, by the
committer of ``commit_offsets``.  Each Follow has threads of its own, so that a bucket that does not
answer delays no other.

Spark numbers its batches, so the next one is asked for by its name, which is cheap everywhere.  A
list is asked for at the first look, and where names are not enough: a query that tracks its
progress asynchronously skips numbers, and Spark removes the oldest hundred.  Whether that is so is
found out by lists, a minute after the last batch and then ever less often; once a gap was found,
the checkpoint is listed at each look.
"""

from __future__ import annotations

import heapq
import itertools
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 -- a type of a setting
from concurrent.futures import wait
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from offsetmgr.backoff import Backoff
from offsetmgr.config import is_number
from offsetmgr.deadlines import LONGEST_WAIT_S, Deadline
from offsetmgr.errors import InvalidValueError, OffsetCommitError, OffsetManagerError, listed
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.committer import Committer, Subscription
from offsetmgr.spark.files import check_location
from offsetmgr.spark.group_state import Groups
from offsetmgr.spark.logs import usable_logs
from offsetmgr.spark.progress import Run, finished_batch, lowest
from offsetmgr.text import error_text, masked_url, visible
from offsetmgr.types import ManagerKey
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.checkpoint import Batch
    from offsetmgr.spark.progress import Positions
    from offsetmgr.types import TopicPartition

_log = SafeLogger("offsetmgr.follow")

MOST_LOOKS: Final = 64
"""Looks at checkpoints of one Follow at once; those of a dead mount may never return."""

LOGS_S: Final = 30.0
"""Longest wait for the logs of a query's topics, once for each start of it."""

FLUSH_S: Final = 1.0
"""Longest wait for the outcome of a commit that has failed before."""

UNANSWERED_S: Final = 30.0
"""A look that takes longer is a problem of its checkpoint."""

LEAST_INTERVAL_S: Final = 0.1

QUIET_INTERVALS: Final = 6
"""A query without a batch for ``keep_alive_s`` is looked at this many times less often."""

MOST_NAMES: Final = 10
"""Batches that are asked for by name in one look; if all are there, a list finds the newest."""

LATE_INTERVALS: Final = 3
"""After a longer pause between two looks a list is asked for."""

LEAST_LIST_S: Final = 60.0
"""Pause after a batch before a list looks for a gap; then the pauses double."""

LIST_S: Final = 600.0
"""Longest pause between the lists that look for a gap."""

LONGEST_FAILURE_S: Final = 60.0
"""Longest pause after failures in a row."""

_NAME: Final = "{name}"
_ANY: Final = "([^/]*)"
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class Follow:
    """Checkpoints to follow, and the groups that mirror them.  Times are seconds."""

    checkpoint: str
    """A path or URL of a checkpointLocation; each ``*`` stands for any part of one name."""
    group: str = ""
    """The group of all topics; ``{name}`` is what the ``*`` matched (several joined by ``-``), or
    without one the last name of the path."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Instead of ``group``: topic → group.  Topics that are not named are not committed."""
    interval_s: float = 10.0
    keep_alive_s: float = 3_600.0
    """A query without a finished batch for so long counts as stopped, and its offsets are not
    renewed any more."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError."""
        check_location(self.checkpoint)
        if "**" in self.checkpoint:
            fix = "give each level a * of its own, as in s3://lake/*/checkpoints/*"
            raise InvalidValueError("checkpoint", self.checkpoint, "has a **", fix)
        self.groups_of("name")
        for name, least in (("interval_s", LEAST_INTERVAL_S), ("keep_alive_s", 1)):
            value = getattr(self, name)
            if not is_number(value, (int, float)) or not least <= value <= 366 * 86_400:
                fix = f"give seconds, from {least} to a year"
                raise InvalidValueError(name, value, "is not possible", fix)

    def groups_of(self, name: str) -> Groups:
        """Return the groups of the checkpoint of this name.  Raises InvalidValueError."""
        group = self.group.replace(_NAME, name)
        groups = {topic: str(each).replace(_NAME, name) for topic, each in self.groups.items()}
        return Groups.of(group or None, groups or None)


def expand(
    pattern: str,
    requests: Counter[str],
    unreadable: dict[str, OSError],
    below: str = "",
    stars: tuple[str, ...] = (),
) -> Iterator[tuple[str, str]]:
    """Yield the locations that ``pattern`` matches, each with its name for ``{name}``.

    A location without ``*`` matches itself, even if nothing is there.  Names that begin with a dot
    or an underscore are omitted, as Spark omits them.  ``requests`` counts the lists.  Folders that
    cannot be listed are omitted, and ``unreadable`` gets their errors.  The pattern continues
    ``below``, a path whose ``stars`` have matched.  Raises InvalidValueError.
    """
    before, star, rest = pattern.rstrip("/").partition("*")
    path = below + before
    folder, slash, start = path.rpartition("/")
    if not star:
        yield path, "-".join(stars) if stars else start
        return
    end = rest.partition("/")[0]
    fits = re.compile(re.escape(start) + _ANY + _ANY.join(map(re.escape, end.split("*"))))
    root = folder or slash or "."
    try:
        names = Checkpoint(root, requests=requests).names("")
    except OSError as error:
        unreadable[root] = error
        return
    for name in sorted(names):
        match = fits.fullmatch(name)
        if match is not None and name[0] not in "._":
            found, matched = f"{folder}{slash}{name}", (*stars, *match.groups())
            yield from expand(rest.removeprefix(end), requests, unreadable, found, matched)


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
        self.failed: dict[ManagerKey, OffsetCommitError] = {}
        """Partitions whose commits have failed, with the last error; of some it may be over."""
        self.first_run = 0
        """The highest run of a removed checkpoint; one that appears in its place goes on there."""
        self.closed = False
        self._unwatch = client.watch_errors(self._failed)
        self.searches = [_Search(self, name, each) for name, each in follows.items()]

    def start(self) -> None:
        for search in self.searches:
            search.start()

    def close(self) -> None:
        """Follow no more; the managers are left to whoever closes the client."""
        self.closed = True
        for search in self.searches:
            search.wake()
        self._unwatch()
        for each in self._followed():
            each.drop()

    def once(self, timeout: float) -> bool:
        """Start, and wait until each checkpoint was looked at; False if ``timeout`` s are over."""
        deadline = Deadline(timeout)
        self.start()
        if not all(each.looked.wait(deadline.left_s) for each in self.searches):
            return False
        if not all(each.looked.wait(deadline.left_s) for each in self._followed()):
            return False
        return bool(wait([self.committer.do(lambda: True)], deadline.left_s).done)

    def queries(self) -> list[FollowedQuery]:
        """Return what is known of each checkpoint, and of each Follow with a problem."""
        for search in self.searches:
            search.add_thread()  # one that could not be started
        searches = [each.view() for each in self.searches if each.trouble()]
        return searches + [each.view() for each in self._followed()]

    def _failed(self, key: ManagerKey | None, error: OffsetManagerError) -> None:
        if key is not None and isinstance(error, OffsetCommitError):
            self.failed[key] = error

    def _followed(self) -> list[_Followed]:
        return [each for search in self.searches for each in list(search.found.values())]


class Seen(NamedTuple):
    """A checkpoint as of one look."""

    query_id: str = ""
    batch: Batch | None = None
    """The newest finished batch; None if there is none yet."""

    @property
    def batch_id(self) -> int:
        return -1 if self.batch is None else self.batch.batch_id


class Looks:
    """Decides when a checkpoint is read, and what for; pure.  Times are seconds of one clock."""

    def __init__(
        self, interval_s: float, keep_alive_s: float, now_s: float, rng: Random, run: int = 0
    ) -> None:
        """``run`` is that of the last checkpoint in this place, which was removed."""
        self.seen = Seen()
        self.due_s = now_s
        """The next look."""
        self.run = run
        """Counts up when the query may go back."""
        self.is_running = False
        """True while the query commits batches."""
        self.is_gapped = False
        self._changed_s = now_s
        self._is_replaced = True
        """Another query, or one whose batches were all removed: no batch of it was seen yet."""
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s
        self._looked_s = now_s
        self._list_s = now_s
        self._rng = rng
        self._backoff = Backoff(interval_s, max(LONGEST_FAILURE_S, interval_s), rng)

    def look(self, checkpoint: Checkpoint, now: Callable[[], float]) -> bool:
        """Return True if there is a batch to commit.  Raises InvalidValueError, OSError."""
        is_late = self._is_late(now())
        # Before the batches: if the checkpoint is replaced meanwhile, its batches are taken for
        # those of the old query, which do not put the group ahead.
        query_id, known = checkpoint.query_id(), self.seen
        is_other = query_id != known.query_id
        if is_other:
            known, self._is_replaced, self.is_gapped = Seen(), True, False
        is_listed = is_other or is_late or self.is_gapped
        newest, most = known.batch_id, known.batch_id + MOST_NAMES
        while not is_listed and newest < most and checkpoint.is_finished(newest + 1):
            newest += 1
        has_next, batch = newest > known.batch_id, known.batch
        is_listed |= newest == most or (not has_next and now() >= self._list_s)
        if has_next and not is_listed:
            batch = checkpoint.batch(newest)
            # In a checkpoint that was replaced meanwhile, it may be a batch that has begun.
            is_listed = not checkpoint.is_finished(newest)
        if is_listed:
            # After batches were removed, a known number may be that of another batch.
            batch = checkpoint.last_finished()
        now_s = now()
        is_late |= self._is_late(now_s)
        self.seen, self._looked_s = Seen(query_id, batch), now_s
        self._backoff.succeeded()
        is_emptied = batch is None and known.batch is not None
        self._is_replaced |= is_emptied
        is_news = batch is not None and batch != known.batch
        goes_on = self.seen.batch_id > known.batch_id
        is_gap = is_listed and is_news and goes_on and not has_next
        self.is_gapped |= is_gap and not (is_other or is_late)
        if is_news:
            if self._is_replaced or not goes_on or not self.is_running:
                self.run += 1
            self.is_running, self._is_replaced, self._changed_s = True, False, now_s
        if is_other or is_emptied:
            self._list_s = now_s  # at the next look that finds nothing by name
        elif is_listed or is_news:
            idle_s = now_s - self._changed_s
            self._list_s = now_s + min(max(idle_s, LEAST_LIST_S), LIST_S)
        self.due_s = now_s + self._pause_s(now_s) * self._rng.uniform(0.9, 1.0)
        return is_news

    def failed(self, now_s: float) -> None:
        """Take in a look that failed; files that come back may be those of a backup."""
        self._list_s = now_s
        self._looked_s, self.due_s = now_s, now_s + self._backoff.failed()

    def ends(self, now_s: float) -> bool:
        """Return True, once, when the query has committed no batch for ``keep_alive_s``."""
        if not self.is_running or now_s - self._changed_s < self._keep_alive_s:
            return False
        self.is_running = False
        return True

    def _is_late(self, now_s: float) -> bool:
        return now_s - self._looked_s > LATE_INTERVALS * self._pause_s(now_s)

    def _pause_s(self, now_s: float) -> float:
        is_quiet = now_s - self._changed_s >= self._keep_alive_s
        return self._interval_s * (QUIET_INTERVALS if is_quiet else 1)


class _Task(ABC):
    """A look that is repeated.  ``look`` and ``failed`` return when the next one is due."""

    def __init__(self, follower: Follower, name: str, follow: Follow, location: str) -> None:
        self.follower = follower
        self.follow_name = name
        self.follow = follow
        # For logs, pages and metrics, which an odd name must not spoil.
        has_login = "://" in location and not location.startswith("file:")
        self.location = visible(masked_url(location) if has_login else location)
        self.begun_s: float | None = None
        """When the look began that is under way."""
        self.due_s = inf
        """When the next look is due."""
        self.looked = threading.Event()
        """Set after the first look."""
        self.problem: str | None = None
        self.is_gone = False

    @abstractmethod
    def look(self) -> float: ...

    def failed(self) -> float:
        return self.follower.now() + self.follow.interval_s

    def report(self, problem: str | None) -> None:
        """Note the state, and log it if its cause is another than before."""
        before, self.problem = self.problem, problem
        # The end of a log may be another one at each look.
        if problem is not None and _NUMBER.sub("", problem) != _NUMBER.sub("", before or ""):
            name = self.follow_name
            _log.warning("checkpoint %s of follow %s: %s", self.location, name, problem)
        elif problem is None and before is not None:
            _log.info("checkpoint %s of follow %s is well again", self.location, self.follow_name)

    def trouble(self) -> str | None:
        """Return the problem, or that the look under way is not answered, or does not begin."""
        begun_s, due_s, now_s = self.begun_s, self.due_s, self.follower.now()
        if begun_s is not None and now_s - begun_s > UNANSWERED_S:
            return f"no answer for {now_s - begun_s:.0f} s"
        if begun_s is None and now_s - due_s > UNANSWERED_S:
            text = f"was due for a look {now_s - due_s:.0f} s ago, but others of its Follow do not"
            return f"{text} answer: follow them by a pattern of their own"
        return self.problem


class _Search(_Task):
    """The search for the checkpoints of one Follow, and the threads that look at them.

    One thread waits for the next look that is due, the others that are free for their turn to.
    """

    def __init__(self, follower: Follower, name: str, follow: Follow) -> None:
        super().__init__(follower, name, follow, follow.checkpoint)
        self.found: dict[str, _Followed] = {}
        self._due: list[tuple[float, int, _Task]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._threads = self._free = 0
        self._worker = Worker(f"offsetmgr-follow {name}", self._run)
        """The next to be started."""

    def start(self) -> None:
        self.schedule(self, self.follower.now())
        self.add_thread()

    def trouble(self) -> str | None:
        error = self._worker.error
        return super().trouble() if error is None else str(error)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def schedule(self, task: _Task, due_s: float) -> None:
        with self._changed:
            task.due_s, task.begun_s = due_s, None
            heapq.heappush(self._due, (due_s, next(self._numbers), task))
            self._changed.notify_all()

    def add_thread(self) -> None:
        """Start a thread unless one is free already, there are enough, or it is over."""
        with self._changed:
            if self._free or self._threads == MOST_LOOKS or self.follower.closed:
                return
            if self._worker.ensure():
                self._threads += 1
                self._free += 1
                self._worker = Worker(self._worker.name, self._run)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            due_s = task.begun_s = self.follower.now()
            try:
                due_s = task.look()
            except BaseException as error:  # noqa: BLE001 -- a bad checkpoint is one bad row
                is_plain = isinstance(error, (OffsetManagerError, OSError))
                text = visible(str(error) if is_plain else error_text(error))
                self.follower.failures[self.follow_name] += 1
                task.report(text if task.location in text else f"failed: {text}")
                due_s = task.failed()
            finally:
                task.looked.set()
                with self._changed:
                    self._free += 1
                self.schedule(task, due_s)

    def _next(self) -> _Task | None:
        """Wait for the next look that is due; None after the end."""
        with self._turn, self._changed:
            while not self.follower.closed:
                pause_s = self._due[0][0] - self.follower.now() if self._due else LONGEST_WAIT_S
                if pause_s <= 0:
                    task = heapq.heappop(self._due)[2]
                    if task.is_gone:
                        continue
                    self._free -= 1
                    self.add_thread()
                    return task
                self._changed.wait(min(pause_s, LONGEST_WAIT_S))
        return None

    def look(self) -> float:
        now_s, follow = self.follower.now(), self.follow
        unreadable: dict[str, OSError] = {}
        locations = dict(expand(follow.checkpoint, self.follower.requests, unreadable))
        for location, name in locations.items():
            known = self.found.get(location)
            if known is None:
                known = self.found[location] = _Followed(self, location, name)
                self.schedule(known, now_s)
            known.listed_s = now_s
        not_listed = tuple(f"{folder}/" for folder in unreadable)
        for location, known in list(self.found.items()):
            # A removed checkpoint counts in the minimum of its group as long as any other.
            if location.startswith(not_listed):
                known.listed_s = now_s
            elif now_s - known.listed_s > follow.keep_alive_s:
                del self.found[location]
                known.forget()
        if unreadable:
            raise OSError(listed(unreadable.values()))
        self.report(None if locations else "nothing matches it")
        return now_s + follow.interval_s

    def view(self) -> FollowedQuery:
        return FollowedQuery(self.follow_name, "", self.location, problem=self.trouble())


class _Followed(_Task):
    """A followed checkpoint; one thread at a time looks at it."""

    def __init__(self, search: _Search, location: str, name: str) -> None:
        follower, follow = search.follower, search.follow
        super().__init__(follower, search.follow_name, follow, location)
        self.listed_s = follower.now()
        self.state = Looks(
            follow.interval_s, follow.keep_alive_s, self.listed_s, follower.rng, follower.first_run
        )
        self._url, self._name = location, name
        self._checkpoint: Checkpoint | None = None
        self._subscription: Subscription | None = None
        self._run: Run | None = None
        self._query_id = ""
        """Of the last batch that was handed over."""
        self._handed_over_s = 0.0
        """Wall-clock time of the last batch; it does not go back, as an earlier one is late."""
        self._foreign: dict[TopicPartition, str] = {}
        self._view = FollowedQuery(search.follow_name, visible(name), self.location)

    def look(self) -> float:
        state, follower = self.state, self.follower
        subscription, checkpoint = self._opened()
        before = state.seen
        is_news = state.look(checkpoint, follower.now)
        failures = self._failures()
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
        self.report(self._problem([*subscription.refusals.copy().values(), *failures]))
        return state.due_s

    def failed(self) -> float:
        self.state.failed(self.follower.now())
        self._view = self._view._replace(looked_at_s=self.follower.wall())
        self._end_if_quiet()
        return self.state.due_s

    def forget(self) -> None:
        """Let the group go on without a checkpoint that was removed."""
        self.is_gone = True
        self.follower.first_run = max(self.follower.first_run, self.state.run)
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
            groups = self.follow.groups_of(self._name)
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
        run, known = Run(self.location, str(self.state.run)), self._foreign
        if offsets and (run != self._run or known):
            _, self._foreign = usable_logs(self.follower.client, offsets, Deadline(LOGS_S))
        is_again = self.state.seen == before
        if is_again and not subscription.refusals and known.keys() == self._foreign.keys():
            return  # as it was: a reset of the group by somebody else meanwhile stays
        offsets = {each: offset for each, offset in offsets.items() if each not in self._foreign}
        self._run = run
        at_s = self._handed_over_s = max(self._handed_over_s, self.follower.wall())
        query_id = self.state.seen.query_id
        # The client shows one query for each; a run begins where a refused offset is tried again.
        run_id = str(uuid5(NAMESPACE_URL, f"{self.follow_name} {self.location}"))
        snapshot = finished_batch(
            *(run, self.location, batch.batch_id, offsets, at_s), id=query_id, run_id=run_id
        )
        read = {group: lowest(part.sources) for group, part in groups.parts(snapshot).items()}
        if self._query_id not in {"", query_id}:
            # The managers know the logs of the query before; its topics may have been recreated.
            for group, partitions in read.items():
                stop = self.follower.client.stop_managers
                stop(timeout=FLUSH_S, group=group, partitions=partitions)
        self._query_id = query_id
        for key in subscription.offsets(snapshot):
            self.follower.failed.pop(key, None)  # what failed before is submitted no more
        if not self.follower.closed and not self.is_gone:
            subscription.put(snapshot)
        view = self._view = self._view._replace(
            batch_id=batch.batch_id, batch_at_s=batch.at_s, offsets=read
        )
        if is_again:
            return
        records: int | None = None
        if before.batch is not None and before.query_id == query_id:
            starts = before.batch.offsets
            records = sum(max(0, at - starts.get(each, 0)) for each, at in batch.offsets.items())
        view = self._view = view._replace(records=records)
        on_batch = self.follower.on_batch
        if on_batch is not None:
            self.follower.committer.do(lambda: on_batch(view))

    def _failures(self) -> list[OffsetManagerError]:
        """Try again what Kafka has refused, as for a missing right; return why it refuses it."""
        follower = self.follower
        keys = {
            ManagerKey(group, *each) for group, read in self._view.offsets.items() for each in read
        }
        failed = {key: error for key in keys if (error := follower.failed.get(key))}
        wanted = {key: error.offset or 0 for key, error in failed.items()}
        committed, left = follower.committer.flush(wanted, Deadline(FLUSH_S))
        for key in committed:
            failed.pop(key)
            follower.failed.pop(key, None)
        # Of a manager that was stopped, as the query is quiet or the offset of no use, the former.
        return [left[key].error if key in left else error for key, error in failed.items()]

    def _problem(self, refused: list[OffsetManagerError]) -> str | None:
        """Return why offsets of the last batch are not committed, or what else is wrong."""
        if self._foreign:
            texts = [f"{partition}: {reason}" for partition, reason in self._foreign.items()]
            return f"not committed: {listed(texts)}"
        if refused:
            return f"not committed: {refused[0]}"
        is_twice = sum(self._url in each.found for each in self.follower.searches) > 1
        return "is followed more than once: by several patterns" if is_twice else None
