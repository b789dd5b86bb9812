"""The committer of a client's streaming queries, and its subscriptions.

All calls of ``commit_offsets`` with one client share one committer, so that a group is never ahead
of any of its queries.  Its thread submits what queries report, so that Spark's listener bus never
waits; when it has nothing to submit, it stops the managers of ended queries.

Spark reports no batch without new data, so a run that resumes from its checkpoint after the driver
was killed before the last report may never report anything; and a listener bus that is full drops
reports, also of the end of a run.  So a run is asked when it ends, and every few seconds while it
is silent.  A continuous query, which never reports, is asked every second.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.client.offsets import QueryReport, by_group
from offsetmgr.codes import TOPIC_RECREATED
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    ClientFencedError,
    OffsetManagerError,
    OffsetRegressionError,
    error_info,
    listed,
    shown,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.group_state import Decision, GroupState
from offsetmgr.spark.logs import MISSING
from offsetmgr.spark.progress import lowest
from offsetmgr.text import encodable, error_text, shell_word
from offsetmgr.types import FlushResult, ManagerKey, OffsetAndMetadata, Uncommitted
from offsetmgr.workers import Question, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.group_state import Groups
    from offsetmgr.spark.progress import Run, Snapshot
    from offsetmgr.types import TopicPartition

_log = SafeLogger("offsetmgr.spark")

LOOK_UP_S: Final = 1.0
"""Longest wait for what a group had committed before a query's run, which is only logged."""

UNANSWERED_S: Final = 30.0
"""A query that does not say for so long how far it is, is named in the log."""

SKIP_S: Final = 30.0
"""After a wait in vain, the time in which no other group is asked."""

FLUSH_S: Final = 1.0
"""Longest wait for the last commits of all groups; offsets of running queries come after it."""

STOP_S: Final = 2.0
"""Longest wait for the service to stop managers that hold nothing uncommitted, of all groups."""

RETRY_S: Final = 2.0
"""Pause before managers that could not be stopped are tried again."""

TICK_S: Final = 1.0
"""Pause between two looks at the checkpoint of a continuous query."""

LOOK_AROUND_S: Final = 5.0
"""Pause between two looks for queries that are silent, and for those of other sessions."""

_SHOWN_CHARS: Final = 255
_SHOWN_GROUPS: Final = 10
_ERROR_CHARS: Final = 4_000

_MAX_REMEMBERED: Final = 1_000
"""Warnings that were logged, and partitions of ended runs."""

_RECREATED: Final = error_info(TOPIC_RECREATED).name

_Task: TypeAlias = "Callable[[], object]"


class CommitCounts(NamedTuple):
    """Counts of the offsets that queries reported, by outcome."""

    submitted: int = 0
    """Offsets handed to the client."""
    rewinds: int = 0
    """Of those, the rewinds: a query started anew at a lower offset, or reads another log."""
    lower: int = 0
    """Offsets not handed over, because a higher one was reported or committed before."""
    not_taken: int = 0
    """Offsets that the client did not take, such as after its close."""
    refused: int = 0
    """Commits that Kafka refused or did not answer: one for each time and partition.  Their
    offsets are kept and tried again."""
    unreadable: int = 0
    """Offsets, figures and whole reports of Spark that could not be read."""


@dataclass
class WatchedRun:
    """A run that is asked how far it is while it is silent, and when it ends."""

    ask: Callable[[], Snapshot | None]
    """Returns how far it is; None if it cannot say yet."""
    reports_nothing: bool
    """As of a continuous query."""
    since_s: float = field(default_factory=time.monotonic)
    is_silent: bool = True
    """It has reported nothing since the last look."""
    last: Snapshot | None = None
    """Its last report or answer."""
    question: Question[Snapshot | None] | None = None
    """The last one, while it is not answered."""
    then: _Task | None = None
    """The end of the run, which comes behind the last answer."""

    def is_news(self, answer: Snapshot) -> bool:
        last = self.last
        # A report may have overtaken it.
        return last is None or (answer.batch_id >= last.batch_id and answer.sources != last.sources)


class Subscription:
    """A followed checkpoint or one call of ``commit_offsets``: its groups, and its counts.

    Any thread may call its methods, which never wait, ``close`` excepted.
    """

    def __init__(self, committer: Committer, groups: Groups, session: object) -> None:
        """The name of a running query is unique in its ``session``."""
        self.groups = groups
        self.session = session
        self.counts = Counter(dict.fromkeys(CommitCounts._fields, 0))
        self.warn_once = committer.warn_once
        self.runs: dict[Run, WatchedRun] = {}
        self.refusals: dict[str, OffsetManagerError] = {}
        """Groups whose last offsets the client did not take, with the reason."""
        self._committer = committer
        self.is_closed = False
        committer.attach(self)

    def look_around(self) -> None:
        """Look for what is not committed; called now and then on the committer's thread."""

    def is_over(self) -> bool:
        """Return True once its session was stopped: Spark reports no end of its queries then."""
        return False

    def put(self, snapshot: Snapshot) -> Future[bool]:
        return self._do(lambda: self._committer.progress(self, snapshot))

    def end(self, run: Run, error: str | None = None) -> None:
        """Commit the last offsets of a run; ``error`` is why it failed, if Spark says so."""
        self._do(lambda: self._committer.end(self, run, error))

    def release(self, name: str) -> Future[bool]:
        """Remove a query from the minimum of its groups; False if no such query is known."""
        return self._committer.do(lambda: self._committer.release(self, name))

    def is_wanted(self, name: str | None) -> bool:  # noqa: ARG002 -- of listeners
        return True

    def commits(self, name: str | None, topic: str, session: object) -> bool:
        """Return True if it commits ``topic`` of a session's query of this name."""
        is_wanted = self.session is session and self.is_wanted(name)
        return is_wanted and self.groups.group_of(topic) is not None

    def offsets(self, snapshot: Snapshot) -> dict[ManagerKey, int]:
        return {
            ManagerKey(group, *partition): offset
            for group, part in self.groups.parts(snapshot).items()
            for partition, offset in lowest(part.sources).items()
        }

    def close(self, timeout: float) -> None:
        """End the runs that nobody else commits, and wait until all is committed and stopped.

        What is not committed after ``timeout`` seconds is logged, now or as soon as it is
        submitted, and still sent as long as the client lives.
        """
        self.is_closed = True  # no late report of Spark comes behind the end
        self._committer.detach(self, timeout)

    def _do(self, task: _Task) -> Future[bool]:
        return self._committer.do((lambda: False) if self.is_closed else task)


class Committer:
    """Commits for one client, by the decisions of each group's ``GroupState``."""

    def __init__(self, client: Offsets) -> None:
        self._client = client
        self._groups: defaultdict[str, GroupState] = defaultdict(GroupState)
        self._subscriptions: list[Subscription] = []
        self._warned: set[tuple[str, ...]] = set()
        self._reports: dict[str, tuple[Run, QueryReport]] = {}
        """Of each query that runs, by its id: the run, and its last report to the service."""
        self._unread: dict[ManagerKey, Uncommitted | None] = {}
        """Managers to be stopped, as no running query reads their partitions → the offset that the
        last try could not commit."""
        self._lost: set[ManagerKey] = set()
        """Of those, the managers whose uncommitted offset was logged."""
        self._topic_ids: defaultdict[Run, dict[ManagerKey, str]] = defaultdict(dict)
        """Ids of the topics that ended runs have read."""
        self._retry_at = self._tick_at = self._look_at = self._look_up_at = 0.0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Notified when managers were stopped."""
        self._tasks: SimpleQueue[tuple[Future[bool], _Task]] = SimpleQueue()
        self.worker = Worker("offsetmgr-spark", self._run)

    @classmethod
    def of(cls, client: Offsets) -> Committer:
        with _making:
            if not isinstance(client.committer, cls):
                client.committer = cls(client)
            return client.committer

    def attach(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.append(subscription)
            self.worker.ensure()

    def detach(self, subscription: Subscription, timeout: float) -> None:
        """End its runs, wait until nothing that only it commits is left, and report the rest."""

        def is_over() -> bool:
            return done.done() and not subscription.runs and not self._left(groups)

        with self._lock:
            groups = subscription.groups.names() - self._used(without=subscription)
            done = self.do(lambda: self.end_all(subscription))
            self._changed.wait_for(is_over, timeout)
            self.drop(subscription)
            for run in list(subscription.runs):
                self._name_unanswered(subscription, run)
            self._report({key: self._unread[key] for key in self._left(groups)})

    def drop(self, subscription: Subscription) -> None:
        """Forget a subscription; the thread ends with the last one."""
        with self._lock:
            self._subscriptions = [each for each in self._subscriptions if each is not subscription]
        self.do(lambda: True)

    def _used(self, without: Subscription | None = None) -> set[str]:
        """Return the groups that any subscription commits; those of ``without`` do not count."""
        with self._lock:
            others = [each.groups.names() for each in self._subscriptions if each is not without]
        return set().union(*others)

    def do(self, task: _Task) -> Future[bool]:
        """Have it done by the thread, after all that it was given before."""
        done: Future[bool] = Future()
        with self._lock:
            self._tasks.put((done, task))
            self.worker.ensure()
        return done

    def flush(self, wanted: Mapping[ManagerKey, int], deadline: Deadline) -> FlushResult:
        """Flush managers, where they were stopped ask Kafka; neither has what was not submitted."""
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        groups = by_group(wanted)  # one without an answer leaves the others their time
        for done, (group, partitions) in enumerate(groups.items()):
            left_s = deadline.left_s / (len(groups) - done)
            flushed = self._client.flush(timeout=left_s, group=group, partitions=partitions)
            committed.update(flushed.committed)
            uncommitted.update(flushed.uncommitted)
        left = wanted.keys() - committed.keys() - uncommitted.keys()
        known = self.look_up({key.group for key in left}, deadline)
        for key in left:
            if known.get(key, -1) >= wanted[key]:
                committed[key] = OffsetAndMetadata(known[key])
        return FlushResult(committed, uncommitted)

    def look_up(self, groups: Iterable[str], deadline: Deadline) -> dict[ManagerKey, int]:
        """Return what the groups have committed, without those that are not known in time."""
        found: dict[ManagerKey, int] = {}
        for group in groups:
            try:
                committed = self._client.committed(group, timeout=deadline.left_s)
            except OffsetManagerError as error:
                _log.debug("what %s had committed is not known: %s", group, error)
                self._look_up_at = time.monotonic() + SKIP_S
            else:
                found.update((ManagerKey(group, *p), each.offset) for p, each in committed.items())
        return found

    def topic_ids_of(self, run: Run, keys: Iterable[ManagerKey]) -> dict[ManagerKey, str]:
        # Called by any thread, so that no group may come to be here.
        states = {key: self._groups.get(key.group) for key in keys}
        live = [key for key, state in states.items() if state and state.is_running(run)]
        return self._topic_ids.get(run, {}) | self._client.topic_ids_of(live)

    def warn_once(self, key: tuple[str, ...], message: str) -> None:
        if key not in self._warned:
            if len(self._warned) >= _MAX_REMEMBERED:
                self._warned.clear()
            self._warned.add(key)
            _log.warning("%s", message)

    # The thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._tasks.empty() and not self._subscriptions and not self._unread:
                    self.worker.leave()
                    return
            now_s = time.monotonic()
            if now_s >= self._tick_at:
                self._tick_at = now_s + TICK_S
                self._do_safely(Future(), self._tick)
            pause_s = min(TICK_S, self._retry_at - now_s) if self._unread else TICK_S
            try:
                done, task = self._tasks.get(timeout=max(0.0, pause_s))
            except Empty:
                if pause_s > 0:
                    continue
                done, task = Future(), self._stop_unread
            self._do_safely(done, task)
            with self._lock:
                self._changed.notify_all()

    def _do_safely(self, done: Future[bool], task: _Task) -> None:
        try:
            done.set_result(bool(task()))
        except BaseException:  # noqa: BLE001 -- other queries need the thread
            _log.exception("offsets of a query were not submitted")
            done.set_result(False)

    def progress(self, by: Subscription, snapshot: Snapshot) -> None:
        watched = by.runs.get(snapshot.run)
        if watched is not None:
            watched.is_silent, watched.last = False, snapshot
        if self._last_report(snapshot.run) is None:
            self._end_stopped()  # it may be a query of a stopped session that runs again
        for group, part in by.groups.parts(snapshot).items():
            state = self._groups[group]
            if not any(part.sources) and not state.is_running(snapshot.run):
                continue  # if it runs, its topics were deleted
            committed: dict[TopicPartition, int] = {}
            # Only for the log that a group goes back, so it is omitted when somebody waits.
            is_due = time.monotonic() >= self._look_up_at
            if is_due and not by.is_closed and state.is_new(part):
                found = self.look_up([group], Deadline(LOOK_UP_S))
                committed = {key.topic_partition: offset for key, offset in found.items()}
            decision = state.progress(part, committed, by)
            self._apply(by, group, decision, snapshot.label)
        topics = {partition.topic for source in snapshot.sources for partition in source}
        for topic in topics - {*by.groups.ignored}:
            if not any(
                each.commits(snapshot.name, topic, by.session) for each in self._subscriptions
            ):
                self.warn_once(
                    ("ungrouped", topic, snapshot.label),
                    f"topic {topic} of {snapshot.label} is not committed: groups={{...}} does not "
                    "name it",
                )
        groups = sorted(g for g, state in self._groups.items() if state.is_running(snapshot.run))
        name = None if snapshot.name is None else encodable(snapshot.name)[:_SHOWN_CHARS]
        report = QueryReport(*snapshot.run, "running", name, tuple(groups[:_SHOWN_GROUPS]))
        report = report._replace(
            batch_id=snapshot.batch_id, time=snapshot.timestamp, **snapshot.figures
        )
        self._reports[snapshot.run.query_id] = snapshot.run, report
        self._client.report_query(report)

    def _last_report(self, run: Run) -> QueryReport | None:
        known, report = self._reports.get(run.query_id, (None, None))
        return report if known == run else None

    def end(self, by: Subscription, run: Run, error: str | None) -> None:
        self._ask_last(by, run, partial(self._end, by, run, error))

    def _end(self, by: Subscription, run: Run, error: str | None) -> None:
        if len(self._topic_ids) > _MAX_REMEMBERED:
            self._topic_ids.clear()
        for group in by.groups.names():
            state = self._groups[group]
            if state.is_running(run):
                keys = [ManagerKey(group, *place) for place in state.read_by(run.query_id)]
                self._topic_ids[run].update(self._client.topic_ids_of(keys))
            self._apply(by, group, state.end(run), f"query {run.query_id}")
        report = self._last_report(run)
        if report is not None:
            del self._reports[run.query_id]
            outcome = "failed" if error else "ended"
            shown_error = encodable(error)[:_ERROR_CHARS] if error else None
            self._client.report_query(report._replace(state=outcome, error=shown_error))

    def _end_stopped(self) -> None:
        with self._lock:
            stopped = [each for each in self._subscriptions if each.is_over()]
        for by in stopped:
            by.runs.clear()
            for group in by.groups.names():
                for run, callers in self._groups[group].running().items():
                    if by in callers:
                        self.end(by, run, None)

    def end_all(self, by: Subscription) -> None:
        """End the runs that no other call of ``commit_offsets`` commits."""
        if by.is_over():
            by.runs.clear()
        runs = {*by.runs}.union(*(self._groups[each].running() for each in by.groups.names()))
        for run in runs:
            self._ask_last(by, run, partial(self._leave, by, run))

    def _leave(self, by: Subscription, run: Run) -> None:
        others = self._used(without=by)
        for group in by.groups.names():
            callers = self._groups[group].running().get(run)
            if callers is None:
                continue
            callers.discard(by)
            if callers:
                continue
            decision = self._groups[group].end(run)
            if group not in others:
                decision.held_back = None
            self._apply(by, group, decision, f"query {run.query_id}")

    def release(self, by: Subscription, name: str) -> bool:
        decisions = {group: self._groups[group].release(name) for group in by.groups.names()}
        for group, decision in decisions.items():
            self._apply(by, group, decision or Decision(), f"query {name}")
        return any(decision is not None for decision in decisions.values())

    def ask(self, by: Subscription, run: Run) -> None:
        """Ask a run how far it is; the answer is a task of its own."""
        watched = by.runs[run]
        former = watched.question
        if former is None or watched.then is not None:
            question = watched.question = Question(watched.ask, after=former)
            take = partial(self._take_answer, by, run, watched, question)
            question.answer.add_done_callback(lambda _: self.do(take))
        elif time.monotonic() - former.asked_at_s >= UNANSWERED_S:
            self._name_unanswered(by, run)

    def _ask_last(self, by: Subscription, run: Run, then: _Task) -> None:
        """End a run that has reported, and again behind its last answer, which may be later."""
        watched = by.runs.get(run)
        if watched is None or (watched.last and not watched.reports_nothing):
            then()
        if watched is not None and watched.then is None:
            watched.then = then
            self.ask(by, run)

    def _take_answer(
        self, by: Subscription, run: Run, watched: WatchedRun, question: Question[Snapshot | None]
    ) -> None:
        if by.runs.get(run) is not watched:
            return  # its session was stopped meanwhile
        is_last = question is watched.question
        if is_last:
            watched.question = None
        try:
            snapshot = question.result()
        except Exception as error:  # noqa: BLE001 -- of py4j or of Spark Connect
            # Reports, and a flush, still come if it makes any; its session may be gone as well.
            if watched.reports_nothing and not by.is_over():
                why = error_text(error)
                text = f"query {run.query_id}, which reports nothing, is not committed: {why}"
                by.warn_once(("continuous", run.run_id), text)
            _log.debug("query %s could not be asked how far it is", run.query_id, exc_info=True)
            snapshot = None
        if snapshot is not None and watched.is_news(snapshot):
            self.progress(by, snapshot)
        if is_last and watched.then is not None:
            del by.runs[run]
            watched.then()

    def _name_unanswered(self, by: Subscription, run: Run) -> None:
        text = f"query {run.query_id} is not committed: its checkpoint or Spark does not answer"
        by.warn_once(("unanswered", run.run_id), f"{text} yet; its offsets are sent when it does")

    def _tick(self) -> None:
        now_s = time.monotonic()
        is_due = now_s >= self._look_at
        with self._lock:
            subscriptions = list(self._subscriptions)
        for by in subscriptions:
            for run, watched in list(by.runs.items()):
                is_silent = is_due and watched.is_silent
                watched.is_silent |= is_due
                if watched.then is None and (is_silent or watched.reports_nothing):
                    self.ask(by, run)
        if not is_due:
            return
        self._look_at = now_s + LOOK_AROUND_S
        self._end_stopped()
        for by in subscriptions:
            try:
                by.look_around()
            except Exception as error:  # noqa: BLE001 -- of py4j, again and again once Spark is gone
                text = f"cannot look for queries of other sessions: {error_text(error)}"
                by.warn_once(("look around",), text)

    def _apply(self, by: Subscription, group: str, decision: Decision, label: str) -> None:
        """Submit first: what is logged or counted then keeps no offset from being committed."""
        submitted = self._submit(by, group, decision)
        for partition in decision.unread:
            self._unread[ManagerKey(group, *partition)] = None
            self._retry_at = 0.0
        by.counts.update(
            submitted=submitted,
            rewinds=len(decision.back) + len(decision.other_log),
            lower=len(decision.lower),
            not_taken=len(decision.commits) - submitted,
        )
        self._log(group, decision, label)

    def _submit(self, by: Subscription, group: str, decision: Decision) -> int:
        """Hand the offsets to the client; return how many it took."""
        taken = 0
        for partition in decision.commits:
            key = ManagerKey(group, *partition)
            by.refusals.pop(group, None)
            self._unread.pop(key, None)
            self._lost.discard(key)
        # First those that go back: they may show that the topic was recreated.
        for rewind, offsets in ((True, decision.rewinds), (False, decision.submits)):
            if not offsets:
                continue
            values = {(topic, number): offset for (topic, number), offset in offsets.items()}
            try:
                self._client.submit(group, values, rewind=rewind)
            except OffsetManagerError as error:
                by.refusals[group] = error
                self.warn_once(("submit", group, error.code), f"not committed: {error}")
            else:
                taken += len(offsets)
        return taken

    def _log(self, group: str, decision: Decision, label: str) -> None:
        moves = {
            "takes its group back, because its new run starts further behind": decision.back,
            "goes back within its run, as its topic was recreated or its log cut; the group "
            "follows": decision.other_log,
            "reports lower offsets than before, which are not committed": decision.lower,
        }
        for text, partitions in moves.items():
            places = [
                f"{ManagerKey(group, *partition)} from {before} to {offset}"
                for partition, (offset, before) in partitions.items()
            ]
            if places:
                _log.warning("%s %s: %s", label, text, listed(places))
        for topic in decision.shared:
            self.warn_once(
                ("shared", group, topic),
                f"topic {topic} is read by more than one source for group {group}: the lowest of "
                "their offsets is committed; give each query a group of its own",
            )
        query = decision.held_back
        if query is not None:
            self.warn_once(
                ("held back", group, query),
                f"query {shown(query)} has stopped: until it runs again or is released, group "
                f"{group} goes no further than what it has read, though others have read more",
            )

    def _left(self, groups: set[str]) -> list[ManagerKey]:
        return [key for key in self._unread.copy() if key.group in groups]

    def _stop_unread(self) -> None:
        """Stop the managers that hold nothing which this client may still commit."""
        self._retry_at = time.monotonic() + RETRY_S
        # For all groups together, so that many which nobody answers for delay no others.
        flush, stop = Deadline(FLUSH_S), Deadline(STOP_S)
        groups = by_group(self._unread)
        for done, (group, partitions) in enumerate(groups.items()):
            left_s = flush.left_s / (len(groups) - done)
            flushed = self._client.flush(timeout=left_s, group=group, partitions=partitions)
            keys = [ManagerKey(group, *partition) for partition in partitions]
            self._unread.update({key: flushed.uncommitted.get(key) for key in keys})
            stopped = [key for key in keys if not self._may_commit(self._unread[key])]
            if stopped:
                places = [key.topic_partition for key in stopped]
                self._client.stop_managers(timeout=stop.left_s, group=group, partitions=places)
            lost = stopped if group in self._used() else keys
            self._report({key: self._unread[key] for key in lost})
            for key in stopped:
                del self._unread[key]

    def _may_commit(self, left: Uncommitted | None) -> bool:
        if left is None or self._client.closed:
            return False
        # Somebody else has committed a higher offset, a newer driver has taken our place, or the
        # topic is gone.
        is_refused = isinstance(left.error, (OffsetRegressionError, ClientFencedError))
        return not is_refused and left.error.code not in {_RECREATED, *MISSING}

    def _report(self, unread: Mapping[ManagerKey, Uncommitted | None]) -> None:
        """Log what of ``unread`` is not committed, once, and the command that commits it."""
        texts: dict[str, list[str]] = defaultdict(list)
        with self._lock:
            for key, left in unread.items():
                if left is not None and key not in self._lost:
                    self._lost.add(key)
                    text = f"{key.topic_partition} at {left.offset.offset} ({left.error})"
                    texts[key.group].append(text)
        for group, lost in texts.items():
            _log.warning(
                "not all that was read is committed to group %s: %s; the checkpoint has it: when "
                "this driver has ended, compare the two by offsetmgr spark reconcile --checkpoint "
                "CHECKPOINT --group %s --service %s and add --execute to commit (CHECKPOINT is the "
                "query's checkpointLocation)",
                *(group, listed(lost), shell_word(group), shell_word(self._client.url)),
            )


_making: Final = threading.RLock()
