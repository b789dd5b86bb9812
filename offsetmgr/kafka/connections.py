"""The requests of one Kafka client: their order, their number and their deadlines.

Deadlines are kept here and never by librdkafka: a request about a group that times out *in* it
while the coordinator is unreachable aborts the process once the coordinator answers again
(https://github.com/confluentinc/librdkafka/issues/4605).  So librdkafka gets more time than a
request can need, and an unresponsive client is replaced before that time runs out.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from actors import Future
from offsetmgr.answers import Failure
from offsetmgr.codes import CLOSED, NOT_SENT, error_info
from offsetmgr.kafka.clients import check_thread_room
from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors import Clock, TimerHandle, Timers
    from offsetmgr.deadlines import Deadline

MOVED_WAIT_S: Final = 2.5
"""Pause of a group after NOT_COORDINATOR, in which librdkafka looks up the coordinator again:
``metadata.max.age.ms``, the second between librdkafka's checks of it, and a margin."""

STUCK_S: Final = 12.0
"""librdkafka answers a written request within ``socket.timeout.ms`` (10 s).  One that it holds for
longer waits for an unreachable coordinator, and is never written once its client is dropped."""

WINDOW: Final = 256
"""Requests of a client in flight at a time.  Two keep one broker busy; but the groups of a broker
that hangs must not delay those of others.  With many more, a slow broker would work on requests
whose deadline has passed."""

LIMIT: Final = 1_024
"""Requests that librdkafka may hold, answered at their deadline or not."""

QUEUE_LIMIT: Final = 4_096
"""Requests that may wait to be handed over."""

LEAST_SEND_S: Final = 0.02
"""A request with less time left is not sent: behind a broker that hangs, waiting requests would be
sent at their deadline, and their outcome would be unknown."""

LIBRDKAFKA_S: Final = 120.0
"""Added to our deadline for librdkafka's own time-out, which must never fire.  It is well over
twice STUCK_S: a client is closed at most that long after its last request was handed over."""

_DESTROYED: Final = Failure(error_info(-197))

_C = TypeVar("_C")
_R = TypeVar("_R")


@dataclass(eq=False)
class QueuedRequest(Generic[_R]):
    """One request to Kafka."""

    group: str
    deadline: Deadline
    send: Callable[[Any, QueuedRequest[_R]], object]
    """Hands the request to a client."""
    failed: Callable[[Failure], _R]
    """Returns the answer to a request that failed as a whole."""
    future: Future[_R] = field(default_factory=Future)
    client: Any = None
    stuck_at: float = 0.0
    """The time from which on its client counts as unresponsive; set when it is sent."""
    timer: TimerHandle | None = None


_Requests = dict[QueuedRequest[Any], None]
"""In order; any may leave early."""


class ConnectionQueue(Generic[_C]):
    """A client and its requests: any thread adds them, and each is answered by its deadline.

    A request in librdkafka may or may not be sent, so only a limited number is handed over: enough
    that the groups of one slow broker do not delay those of others.

    The client is opened at its first use, and replaced if it is unresponsive.  The old one is
    closed once all its requests are finished or given up, in a thread of its own: librdkafka aborts
    the process if a client ends in one of librdkafka's threads.
    """

    def __init__(
        self,
        make: Callable[[], _C],
        end: Callable[[_C], None],
        timers: Timers,
        clock: Clock,
        timed_out: Callable[[], Failure],
        limit: int = LIMIT,
    ) -> None:
        """``make`` opens a client, ``end`` closes one.

        ``timed_out`` returns why a request was not answered; ``limit`` as ``LIMIT``.
        """
        self._make = make
        self._end = end
        self._timers = timers
        self._clock = clock
        self._timed_out = timed_out
        self._limit = limit
        self.current: _C | None = None
        """The client, if it is open."""
        self._making = threading.Lock()
        self._retired: list[_C] = []
        self._ended = False
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: _Requests = {}
        self._paused: dict[str, _Requests] = {}
        """Requests that wait until their group's coordinator is looked up again, by group."""
        self._sent: _Requests = {}
        self._late: _Requests = {}
        """Answered at their deadline, and still in librdkafka."""
        self._closed = False

    def client(self) -> _C:
        """Return the client, opened now if it is not open.

        Raises as ``make``, and RuntimeError if the pool is closed or the machine has no room for
        another client's threads.
        """
        with self._making:
            if self._ended:
                raise RuntimeError("the pool is closed")
            if self.current is None:
                check_thread_room()
                self.current = self._make()
            return self.current

    def submit(self, request: QueuedRequest[_R]) -> Future[_R]:
        """Add ``request``; it is sent in its turn."""
        refusal = None
        with self._lock:
            queue = self._paused.get(request.group, self._waiting)
            if self._closed:
                refusal = Failure(CLOSED)
            elif len(queue) >= QUEUE_LIMIT:
                refusal = Failure(NOT_SENT, "too many requests are waiting for Kafka")
            else:
                queue[request] = None
                expire = partial(self._expire, request)
                request.timer = self._timers.call_after(request.deadline.left_s, expire)
        if refusal is not None:
            request.future.set(request.failed(refusal))
        self._pump()
        return request.future

    def finish(self, request: QueuedRequest[_R], answer: _R) -> None:
        """Answer ``request``, which was sent, unless its deadline has passed."""
        with self._lock:
            self._forget(request)
        if request.timer is not None:
            request.timer.cancel()
        request.future.set(answer)
        self._pump()

    def pause(self, group: str) -> None:
        """Hold requests of ``group`` until librdkafka looks for its coordinator again."""
        with self._lock:
            self._paused.setdefault(group, {})
        self._timers.call_after(MOVED_WAIT_S, partial(self._resume, group))

    def close(self) -> None:
        """Refuse further requests; those under way go on."""
        with self._lock:
            self._closed = True

    def drain(self, timeout_s: float) -> None:
        """Wait until all requests are answered, then answer the others; unsent ones are refused."""
        with self._idle:
            self._idle.wait_for(lambda: not (self._sent or any(self._unsent())), timeout_s)
            # Taken out first: a request that is answered as unsent must not be sent any more.
            unsent = [request for queue in self._unsent() for request in queue]
            for queue in self._unsent():
                queue.clear()
            sent = [*self._sent, *self._late]
        for request in unsent:
            request.future.set(request.failed(Failure(CLOSED)))
        for request in sent:
            self.finish(request, request.failed(_DESTROYED))

    def end_clients(self) -> None:
        """Close all clients with their connections and threads; may take some time."""
        with self._making:
            self._ended = True
            clients = [*self._retired, *([] if self.current is None else [self.current])]
            self._retired, self.current = [], None
        for client in clients:
            self._end(client)

    def _unsent(self) -> Iterator[_Requests]:
        yield self._waiting
        yield from self._paused.values()

    def _pump(self) -> None:
        while (request := self._next()) is not None:
            self._send(request)

    def _next(self) -> QueuedRequest[Any] | None:
        """Return the next request, which counts as sent from now on; None if there is none."""
        with self._lock:
            if len(self._sent) >= min(WINDOW, self._limit - len(self._late)):
                return None
            for request in self._waiting:
                if request.deadline.left_s >= LEAST_SEND_S:
                    del self._waiting[request]
                    self._sent[request] = None
                    request.stuck_at = self._clock.now() + STUCK_S
                    return request
            return None

    def _send(self, request: QueuedRequest[Any]) -> None:
        try:
            client = self.client()
            with self._lock:
                if request not in self._sent:
                    self._late.pop(request, None)  # answered while its client was made
                    return
                request.client = client
            request.send(client, request)
        except Exception as error:  # noqa: BLE001 -- the request was not sent, whatever the error
            why = f"the Kafka client did not take the request: {visible(str(error), 300)}"
            with self._lock:
                self._forget(request)
            request.future.set(request.failed(Failure(NOT_SENT, why)))

    def _forget(self, request: QueuedRequest[Any]) -> None:
        """Remove a sent request; the lock is held."""
        self._sent.pop(request, None)
        self._late.pop(request, None)
        if not self._sent:
            self._idle.notify_all()

    def _expire(self, request: QueuedRequest[Any]) -> None:
        with self._lock:
            sent = request in self._sent
            unsent = next((queue for queue in self._unsent() if request in queue), None)
            if sent:
                self._forget(request)
                self._late[request] = None
            elif unsent is not None:
                del unsent[request]
                self._idle.notify_all()
        if sent:
            request.future.set(request.failed(self._timed_out()))
            left_s = max(0.0, request.stuck_at - self._clock.now())
            self._timers.call_after(left_s, partial(self._give_up, request))
            self._pump()
        elif unsent is not None:
            request.future.set(request.failed(Failure(NOT_SENT)))

    def _give_up(self, request: QueuedRequest[Any]) -> None:
        """Drop a request that is overdue in librdkafka, and replace its client."""
        with self._lock:
            held = request in self._late
            self._forget(request)
        client: _C | None = request.client
        if held and client is not None:
            with self._making:
                if client is self.current:
                    self.current = None
                    self._retired.append(client)
                    ending = threading.Thread(
                        target=self._end_retired, name="kafka-retired", daemon=True
                    )
                    self._timers.call_after(STUCK_S, ending.start)
        self._pump()

    def _end_retired(self) -> None:
        """Close the client that was retired first, in a thread that has its last reference."""
        with self._making:
            client = self._retired.pop(0) if self._retired else None
        if client is not None:
            self._end(client)

    def _resume(self, group: str) -> None:
        with self._lock:
            self._waiting.update(self._paused.pop(group, {}))
        self._pump()
