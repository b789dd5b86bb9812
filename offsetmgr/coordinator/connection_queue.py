"""The requests of one Kafka client: some under way, a bounded queue before them, deadlines.

What was handed to librdkafka can no longer be told to be unsent, so no more is handed over than
what keeps the groups of one slow broker from those of the others.

Deadlines are kept here and never by librdkafka: a request about a group that times out *in* it
while the coordinator is away aborts the process as soon as the coordinator is back
(https://github.com/confluentinc/librdkafka/issues/4605).  So librdkafka gets more time than a
request can need, and a client that sits on one for too long is replaced before it runs out.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from actors import Future
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.clients import MOVED_WAIT_S, STUCK_S
from offsetmgr.coordinator.explain import CLOSED, NOT_SENT, one_line
from offsetmgr.errors import error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors import Clock, TimerHandle, Timers
    from offsetmgr.coordinator.clients import ReplaceableClient

WINDOW: Final = 256
"""Requests under way at a time.  One broker is busy with two; but groups of a broker that hangs
would keep those of the others waiting.  With many more a broker that is merely slow would be busy
with requests whose deadline passes before it has come to them."""

LIMIT: Final = 1_024
"""Requests that librdkafka may hold, answered at their deadline or not."""

QUEUE_LIMIT: Final = 4_096
"""Requests that may wait to be handed over."""

LEAST_SEND_S: Final = 0.02
"""With less time left a request is not sent any more."""

LIBRDKAFKA_S: Final = 120.0
"""Added to our deadline for librdkafka's own time-out, which must never fire.  It is well over
twice STUCK_S: a client is closed at most that long after its last request was handed over."""

_DESTROYED: Final = error_info(-197)

_C = TypeVar("_C")
_R = TypeVar("_R")


class QueuedRequest(Generic[_R]):
    """One request to Kafka."""

    def __init__(
        self,
        group: str,
        deadline_s: float,
        send: Callable[[Any, QueuedRequest[_R]], None],
        failed: Callable[[Failure], _R],
    ) -> None:
        """``send`` hands it to a client; ``failed`` is its answer if all of it failed."""
        self.group = group
        self.deadline_s = deadline_s
        self.send = send
        self.failed = failed
        self.future: Future[_R] = Future()
        self.client: Any = None
        self.sent_s = 0.0
        self.timer: TimerHandle | None = None


_Requests = dict[QueuedRequest[Any], None]
"""In order; any may leave early."""


class ConnectionQueue(Generic[_C]):
    """Takes requests from any thread and answers each by its deadline."""

    def __init__(
        self,
        client: ReplaceableClient[_C],
        timers: Timers,
        clock: Clock,
        timed_out: Callable[[], Failure],
        limit: int = LIMIT,
    ) -> None:
        """``timed_out`` says why a request was not answered; ``limit`` as ``LIMIT``."""
        self._client = client
        self._timers = timers
        self._clock = clock
        self._timed_out = timed_out
        self._limit = limit
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: _Requests = {}
        self._paused: dict[str, _Requests] = {}
        """By group: those that wait for its coordinator to be looked up anew."""
        self._sent: _Requests = {}
        self._late: _Requests = {}
        """Answered at their deadline; librdkafka still has them."""
        self._closed = False

    def submit(self, request: QueuedRequest[_R]) -> Future[_R]:
        """Send ``request`` when its turn comes."""
        refusal = None
        with self._lock:
            queue = self._paused.get(request.group, self._waiting)
            if self._closed:
                refusal = Failure(CLOSED)
            elif len(queue) >= QUEUE_LIMIT:
                refusal = Failure(NOT_SENT, "too many requests are waiting for Kafka")
            else:
                queue[request] = None
                left_s = max(request.deadline_s - self._clock.now(), 0.0)
                request.timer = self._timers.call_after(left_s, partial(self._expire, request))
        if refusal is not None:
            request.future.set(request.failed(refusal))
        self._pump()
        return request.future

    def finish(self, request: QueuedRequest[_R], answer: _R) -> None:
        """Answer ``request``, which was sent, unless its deadline did."""
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
        """Take no more; what was taken goes on."""
        with self._lock:
            self._closed = True

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until all is answered, at most ``timeout_s``."""
        with self._idle:
            self._idle.wait_for(lambda: not (self._sent or any(self._unsent())), timeout_s)

    def abandon(self) -> None:
        """Take no more, and answer all that is left as refused if it was not sent."""
        with self._lock:
            self._closed = True
            # Taken out at once: what is told that it was not sent must not be sent any more.
            unsent = [request for queue in self._unsent() for request in queue]
            for queue in self._unsent():
                queue.clear()
            sent = [*self._sent, *self._late]
        for request in unsent:
            request.future.set(request.failed(Failure(CLOSED)))
        for request in sent:
            self.finish(request, request.failed(Failure(_DESTROYED)))

    def _unsent(self) -> Iterator[_Requests]:
        yield self._waiting
        yield from self._paused.values()

    def _pump(self) -> None:
        while (request := self._next()) is not None:
            self._send(request)

    def _next(self) -> QueuedRequest[Any] | None:
        """Return the request whose turn it is, which counts as sent from now on."""
        with self._lock:
            if not self._waiting:
                return None
            open_count = len(self._sent) + len(self._late)
            if len(self._sent) >= WINDOW or open_count >= self._limit:
                return None
            now_s = self._clock.now()
            for request in self._waiting:
                if request.deadline_s - now_s >= LEAST_SEND_S:
                    del self._waiting[request]
                    self._sent[request] = None
                    request.sent_s = now_s
                    return request
            return None

    def _send(self, request: QueuedRequest[Any]) -> None:
        try:
            client = self._client.get()
            with self._lock:
                if request not in self._sent:
                    self._late.pop(request, None)  # answered while its client was made
                    return
                request.client = client
            request.send(client, request)
        except Exception as error:  # noqa: BLE001 -- whatever it was, it was not sent
            why = f"the Kafka client did not take the request: {one_line(str(error), 300)}"
            with self._lock:
                self._forget(request)
            request.future.set(request.failed(Failure(NOT_SENT, why)))

    def _forget(self, request: QueuedRequest[Any]) -> None:
        """Take a sent request out of its place; with the lock held."""
        self._sent.pop(request, None)
        self._late.pop(request, None)
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
            left_s = max(request.sent_s + STUCK_S - self._clock.now(), 0.0)
            self._timers.call_after(left_s, partial(self._give_up, request))
            self._pump()
        elif unsent is not None:
            request.future.set(request.failed(Failure(NOT_SENT)))

    def _give_up(self, request: QueuedRequest[Any]) -> None:
        """Drop what librdkafka has held for too long, and by and by its client."""
        with self._lock:
            held = request in self._late
            self._forget(request)
        if held and request.client is not None:
            self._client.retire(request.client)
        self._pump()

    def _resume(self, group: str) -> None:
        with self._lock:
            self._waiting.update(self._paused.pop(group, {}))
        self._pump()
