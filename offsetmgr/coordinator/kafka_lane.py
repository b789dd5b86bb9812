"""The way to one client: some requests under way, a bounded queue before them, deadlines.

Kafka serves one request of a connection at a time, so more than a few dozen under way would only
wait inside librdkafka, where what was not sent can no longer be told from what was.

Deadlines are kept here and never by librdkafka: a request about a group that times out *in* it
while the coordinator is away aborts the process as soon as the coordinator is back
(https://github.com/confluentinc/librdkafka/issues/4605).  So librdkafka gets more time than a
request can need, and a client that sits on one for too long is replaced before it runs out.
"""

from __future__ import annotations

import threading
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from actors import Future
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.explain import CLOSED, NOT_SENT, QUEUE_FULL, one_line
from offsetmgr.coordinator.kafka_client import MOVED_WAIT_S
from offsetmgr.errors import error_info

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Clock, TimerHandle, Timers
    from offsetmgr.coordinator.kafka_client import ClientSlot, PooledClient, Troubles

WINDOW: Final = 32
"""Requests of one lane handed to librdkafka at a time.  One broker is busy with two; but what hands
over the next waits for the interpreter while a thousand groups are being planned, and with eight
librdkafka runs dry meanwhile: commits of all took a tenth longer so, and no less with 64."""

OVERDUE_S: Final = 0.25
"""A request that is under way for longer is set aside and makes room for the next one: groups of a
broker that hangs would keep those of the others waiting for as long as their deadlines are away."""

ASIDE_LIMIT: Final = 256
"""Requests of one lane that may be set aside.  With many more a broker that is merely slow would be
busy with those that nobody waits for any more."""

SILENT_GROUPS: Final = 4_096
"""Groups of one lane that are known to be silent, as their last request was never answered: they
queue apart, until one is.  Whose last request is longest ago is forgotten."""

LATE_LIMIT: Final = 1_024
"""Requests of one lane that librdkafka may hold although they are overdue or given up; at the limit
nothing more is handed over, and at half of it nothing more of silent groups."""

LEAST_SEND_S: Final = 0.02
"""With less time left a request is not sent any more."""

LOOK_S: Final = 0.005
"""Between two looks at the deadlines of a lane; so much later than it should be an answer may be,
where many deadlines are close together."""

STUCK_S: Final = 12.0
"""librdkafka answers what it has written within ``socket.timeout.ms`` (10 s).  What it holds for
longer waits for a coordinator that cannot be reached, and is never written once it is dropped."""

LIBRDKAFKA_S: Final = 120.0
"""What librdkafka is given beyond the deadline, so that it never runs out: well over twice
STUCK_S, as a client ends no later than that after its last request was handed over."""

QUEUE_LIMIT: Final = 4_096
"""Requests of one lane that may wait to be handed over."""

_DESTROYED: Final = error_info(-197)

_C = TypeVar("_C")
_R = TypeVar("_R")
_T = TypeVar("_T")


class GivenUpError(Exception):
    """The request is answered, and its client not its any more: nothing is left to do."""


class Job(Generic[_R]):
    """One request on its way."""

    def __init__(
        self,
        lane: Lane[Any],
        group: str,
        deadline_s: float,
        send: Callable[[Any, Job[_R]], None],
        spoil: Callable[[Failure], _R],
    ) -> None:
        """``send`` hands it to a client of the lane; ``spoil`` answers where all of it failed."""
        self.lane = lane
        self.group = group
        self.deadline_s = deadline_s
        self.send = send
        self.spoil = spoil
        self.future: Future[_R] = Future()
        self.known: _R | None = None
        """The answer so far, while only a detail of it is being looked up."""
        self.client: PooledClient[Any] | None = None
        self.sent_s = 0.0

    def finish(self, answer: _R) -> None:
        """Answer it; its turn is over."""
        self.lane.finish(self, answer)

    def librdkafka_timeout_s(self) -> float:
        """The time to give librdkafka: past the deadline, which is kept by the lane."""
        return max(self.deadline_s - self.lane.clock.now(), 0.0) + LIBRDKAFKA_S


class _Queue:
    """Who waits for whom; dictionaries as ordered sets, which any may leave early."""

    def __init__(self) -> None:
        self.waiting: dict[Job[Any], None] = {}
        self.sent: dict[Job[Any], None] = {}

    def next(self, now_s: float) -> Job[Any] | None:
        """Who is to be sent, if it is anybody's turn; its place is among the sent then."""
        if len(self.sent) < WINDOW:
            for job in self.waiting:
                if job.deadline_s - now_s >= LEAST_SEND_S:
                    del self.waiting[job]
                    self.sent[job] = None
                    return job
        return None


class Lane(Generic[_C]):
    """Takes requests from any thread and answers each by its deadline.

    A request is answered by whoever takes it out of its place, which is decided under the lock, and
    by nobody else: one that is in no place any more was taken out a moment ago, maybe by the answer
    of a broker that has committed it, and nothing is known of it here.
    """

    def __init__(
        self,
        slot: ClientSlot[_C],
        timers: Timers,
        clock: Clock,
        troubles: Troubles,
        aside_limit: int = ASIDE_LIMIT,
    ) -> None:
        """``aside_limit`` of 0 sets nothing aside."""
        self._slot = slot
        self._timers = timers
        self.clock = clock
        self._troubles = troubles
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._aside_limit = aside_limit
        self._queue = _Queue()
        self._aside: dict[Job[Any], None] = {}
        """Overdue, but not given up."""
        self._silent = _Queue()
        self._silent_groups: dict[str, None] = {}
        self._late: dict[Job[Any], None] = {}
        """Answered at their deadline; librdkafka has them still."""
        self._held: dict[Job[Any], None] = {}
        self._moved: dict[str, float] = {}
        self._look: TimerHandle | None = None
        self._look_at_s = inf
        """When the timer for deadlines comes; ``inf`` where none is set."""
        self._closed = False

    def submit(self, job: Job[_R]) -> Future[_R]:
        """Send ``job`` when its turn comes."""
        now_s = self.clock.now()
        hold_s = 0.0
        with self._lock:
            if self._closed:
                refusal = CLOSED
            elif len(self._queue_of(job).waiting) + len(self._held) >= QUEUE_LIMIT:
                refusal = QUEUE_FULL
            else:
                refusal = None
                hold_s = self._moved.get(job.group, now_s) - now_s
                (self._held if hold_s > 0 else self._queue_of(job).waiting)[job] = None
                self._look_by(job.deadline_s, now_s)
        if refusal is not None:
            job.future.set(job.spoil(Failure(refusal)))
        elif hold_s > 0:
            self._timers.call_after(hold_s, partial(self._let_go, job))
        else:
            self._pump()
        return job.future

    def with_client(self, job: Job[_R], use: Callable[[_C], _T]) -> _T:
        """What ``use`` makes of the client that ``job`` was handed to; it must not keep it.

        Raises what ``use`` does, and GivenUpError where the request was given up meanwhile.
        """
        pooled = job.client
        if pooled is None:
            raise GivenUpError
        self._slot.hold(pooled)
        # This may be a thread of librdkafka's, which aborts the process where a client ends in
        # one: no frame of this thread may hold it, or be held, once it is given back.
        try:
            return use(pooled.client)
        except Exception as error:  # noqa: BLE001 -- whatever it is
            raise error.with_traceback(None) from None
        finally:
            self._slot.give_back(pooled)

    def finish(self, job: Job[_R], answer: _R) -> None:
        """Answer ``job``, whose turn is over, unless its deadline did."""
        if self._free(job):
            if self._silent_groups:
                with self._lock:
                    self._silent_groups.pop(job.group, None)
            job.future.set(answer)
        self._pump()

    def coordinator_moved(self, group: str) -> None:
        """Hold requests of ``group`` until librdkafka looks for its coordinator again."""
        with self._lock:
            self._moved[group] = self.clock.now() + MOVED_WAIT_S
        self._timers.call_after(MOVED_WAIT_S, partial(self._forget_move, group))

    def close(self) -> None:
        """Take no more; what was taken goes on."""
        with self._lock:
            self._closed = True

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until all is answered, at most ``timeout_s``."""
        with self._idle:
            self._idle.wait_for(lambda: not any((*self._unsent(), *self._sent())), timeout_s)

    def abandon(self) -> None:
        """Take no more, and answer all that is left: nobody else will."""
        with self._lock:
            self._closed = True
            # Taken out at once: what is to be told that it was not sent must not be any more.
            unsent = [job for place in self._unsent() for job in place]
            for place in self._unsent():
                place.clear()
            sent = [job for place in (*self._sent(), self._late) for job in place]
        for job in unsent:
            job.future.set(job.spoil(Failure(CLOSED)))
        for job in sent:
            self.finish(job, job.spoil(Failure(_DESTROYED)) if job.known is None else job.known)

    def _unsent(self) -> tuple[dict[Job[Any], None], ...]:
        return self._queue.waiting, self._silent.waiting, self._held

    def _sent(self) -> tuple[dict[Job[Any], None], ...]:
        return self._queue.sent, self._aside, self._silent.sent

    def _queue_of(self, job: Job[Any]) -> _Queue:
        return self._silent if job.group in self._silent_groups else self._queue

    def _pump(self) -> None:
        # Looked at without the lock: whoever puts in another one pumps as well.
        while (self._queue.waiting or self._silent.waiting) and (job := self._next()) is not None:
            self._send(job)

    def _next(self) -> Job[Any] | None:
        with self._lock:
            now_s = self.clock.now()
            self._set_overdue_aside(now_s)
            overdue = len(self._aside) + len(self._silent.sent) + len(self._late)
            job = self._queue.next(now_s) if overdue < LATE_LIMIT else None
            if job is None and overdue < LATE_LIMIT // 2:
                job = self._silent.next(now_s)
            if job is not None:
                job.sent_s = now_s
            elif self._queue.waiting and self._is_full() and len(self._aside) < self._aside_limit:
                self._look_by(next(iter(self._queue.sent)).sent_s + OVERDUE_S, now_s)
            return job

    def _is_full(self) -> bool:
        return len(self._queue.sent) >= WINDOW

    def _set_overdue_aside(self, now_s: float) -> None:
        """Let what is overdue take no place of the others; with the lock held."""
        while self._is_full() and len(self._aside) < self._aside_limit:
            job = next(iter(self._queue.sent))
            if now_s - job.sent_s < OVERDUE_S:
                return
            del self._queue.sent[job]
            self._aside[job] = None

    def _was_silent(self, group: str) -> None:
        """Remember that a request of ``group`` was not answered in time; with the lock held."""
        self._silent_groups.pop(group, None)
        self._silent_groups[group] = None
        if len(self._silent_groups) > SILENT_GROUPS:
            del self._silent_groups[next(iter(self._silent_groups))]

    def _send(self, job: Job[_R]) -> None:
        pooled: PooledClient[_C] | None = None
        try:
            # Once for this call, and once for the request.
            pooled = self._slot.acquire(2)
            if self._hand(job, pooled):
                job.send(pooled.client, job)
        except Exception as error:  # noqa: BLE001 -- whatever it was, it was not sent
            why = f"the Kafka client did not take the request: {one_line(str(error), 300)}"
            if self._free(job):
                job.future.set(job.spoil(Failure(NOT_SENT, why)))
        finally:
            if pooled is not None:
                self._slot.give_back(pooled)

    def _hand(self, job: Job[_R], pooled: PooledClient[_C]) -> bool:
        """Give ``job`` its hold of ``pooled``, unless it was answered while that one was made."""
        with self._lock:
            self._late.pop(job, None)
            wanted = any(job in place for place in self._sent())
            if wanted:
                job.client = pooled
        if not wanted:
            self._slot.give_back(pooled)
        return wanted

    def _free(self, job: Job[Any]) -> bool:
        """Take ``job``, which was sent, out of its place; whether it has yet to be answered."""
        with self._lock:
            unanswered = any(job in place for place in self._sent())
            for place in (*self._sent(), self._late):
                place.pop(job, None)
            client, job.client = job.client, None
            self._idle.notify_all()
        if client is not None:
            self._slot.give_back(client)
        return unanswered

    def _look_by(self, at_s: float, now_s: float) -> None:
        """See to deadlines at ``at_s``; with the lock held.

        One timer for all requests, of which hardly one is late: it comes, and is set anew for the
        next deadline of those that are still open.
        """
        if at_s < self._look_at_s:
            if self._look is not None:
                self._look.cancel()
            self._look_at_s = at_s
            self._look = self._timers.call_after(max(at_s - now_s, 0.0), self._see_to_deadlines)

    def _see_to_deadlines(self) -> None:
        now_s = self.clock.now()
        with self._lock:
            self._look, self._look_at_s = None, inf
            opened = [job for place in (*self._unsent(), *self._sent()) for job in place]
            over = [job for job in opened if job.deadline_s <= now_s]
            later = [job.deadline_s for job in opened if job.deadline_s > now_s]
            if later:
                self._look_by(max(min(later), now_s + LOOK_S), now_s)
        for job in over:
            self._expire(job)
        self._pump()

    def _expire(self, job: Job[_R]) -> None:
        """The deadline has come; for one in no place, an answer came before it just now."""
        with self._lock:
            place = next((p for p in (*self._sent(), *self._unsent()) if job in p), None)
            if place is None:
                return
            del place[job]
            sent = any(place is each for each in self._sent())
            if sent:
                self._late[job] = None
                # One that had hardly any time left when its turn came says nothing of its broker.
                if self.clock.now() - job.sent_s >= OVERDUE_S:
                    self._was_silent(job.group)
            self._idle.notify_all()
        if not sent:
            job.future.set(job.spoil(Failure(NOT_SENT)))
            return
        stuck_s = max(job.sent_s + STUCK_S - self.clock.now(), 0.0)
        self._timers.call_after(stuck_s, partial(self._unstick, job))
        known = job.known
        job.future.set(job.spoil(self._troubles.timed_out()) if known is None else known)

    def _unstick(self, job: Job[_R]) -> None:
        """Drop what librdkafka holds for too long, and with it, by and by, its client."""
        with self._lock:
            client = job.client if job in self._late else None
        if client is not None:
            self._slot.retire(client)
            self._free(job)
            self._pump()

    def _let_go(self, job: Job[_R]) -> None:
        with self._lock:
            if job in self._held:
                del self._held[job]
                self._queue_of(job).waiting[job] = None
        self._pump()

    def _forget_move(self, group: str) -> None:
        with self._lock:
            if self._moved.get(group, 0.0) <= self.clock.now():
                self._moved.pop(group, None)
