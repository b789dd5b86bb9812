"""The one thread of a client that sends: what is new, heartbeats, all of it after a restart."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from offsetmgr.client import wire
from offsetmgr.client.offsets import LONGEST_WAIT_S, Deadline
from offsetmgr.client.partitions import Batch
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    import random

    from offsetmgr.client.core import Core

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
DEFAULT_LEASE_S: Final = 30.0
MIN_LEASE_S: Final = 0.3
"""A shorter lease is not kept: heartbeats would be all that the client does."""

SEND_INTERVAL_S: Final = 0.02
"""Pause between two requests, unless a full one waits: a tight loop costs 50 requests a second."""

REQUEST_TIMEOUT_S: Final = 10.0

STOP_S: Final = 0.5
"""Seconds that other requests wait for the answer to such a stop; the service may take longer."""

RETRY_S: Final = 5.0
"""Pause before managers that were refused are asked for again, and stops without an answer."""

REPORT_INTERVAL_S: Final = 1.0
"""Pause between two reports of streaming queries."""

REPORT_TIMEOUT_S: Final = 1.0
"""Longest that offsets wait for the answer to a report."""

STOP_LIMIT: Final = 1_000
"""Managers that one request stops."""

_BAD_REQUESTS: Final = frozenset({400, 403, 413})
"""The request itself is wrong, too large, or not allowed: sending the same again is pointless."""

_NOT_FOUND: Final = 404
_OTHER_INSTANCE: Final = 412


Turn: TypeAlias = Batch | Literal["beat", "stop", "report"]


class SendTimes:
    """Back-off, heartbeats and the pause between requests, on the clock of `now`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.failures = 0
        """In a row."""
        self.heard_at: float | None = None
        """The service answered last, which renewed the lease."""
        self.lease_s = DEFAULT_LEASE_S
        self.resume_at = 0.0
        """Nothing is sent before."""
        self.send_at = 0.0
        """The next offsets are sent then, where they are few and nobody waits for them."""

    @property
    def beat_at(self) -> float:
        """The next heartbeat is due."""
        return 0.0 if self.heard_at is None else self.heard_at + self.lease_s / 3

    def lapsed(self, now: float) -> bool:
        """True if the lease ran out since the service was heard last."""
        return self.heard_at is not None and now - self.heard_at > self.lease_s

    def failed(self, now: float) -> None:
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.failures, 10))
        self.failures += 1
        self.resume_at = now + longest_s * self._rng.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """A request was answered as it should be, which alone ends the back-off."""
        self.failures = 0
        self.resume_at = 0.0

    def expedite(self) -> None:
        """Somebody waits: try at once."""
        self.resume_at = 0.0
        self.send_at = 0.0


class Sender:
    """At most one request is in flight, and none while the service is known to be away."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._retry_at = 0.0
        """Managers that were refused are asked for then."""
        self._stop_at = 0.0
        """Stops that nobody waits for are sent then."""
        self._report_at = 0.0
        """Streaming queries are reported then, if there is news of them."""

    def run(self) -> None:
        """Send until the client is closed or fenced."""
        core = self._core
        while (turn := self._next_turn()) is not None:
            try:
                if isinstance(turn, Batch):
                    self._send(turn)
                elif turn == "stop":
                    self._stop()
                elif turn == "report":
                    self._report()
                else:
                    self._beat()
            except Exception as error:  # noqa: BLE001 -- the client's only thread must outlive it
                core.failure_log.unforeseen(error, time.monotonic())
                self._pause()
            with core.lock:
                core.changed.notify_all()

    def _next_turn(self) -> Turn | None:
        """Wait for something to do; None when there will be nothing more."""
        core = self._core
        with core.lock:
            while core.fenced is None and not core.ended.is_set():
                now = time.monotonic()
                is_done = now >= (core.end_at or 0.0) or not core.partitions.unsent
                if core.end_at is not None and is_done:
                    core.end(Deadline(0))
                    return None
                turn = self._decide(now)
                if not isinstance(turn, float):
                    return turn
                until = turn if core.end_at is None else min(turn, core.end_at)
                core.idle = not core.partitions.unsent and now >= core.times.resume_at
                core.wake.wait(min(max(until - now, 0.0), LONGEST_WAIT_S))
                core.idle = False
        return None

    def _decide(self, now: float) -> Turn | float:
        """Return what to do at `now`, or until when to wait."""
        core, times, partitions = self._core, self._core.times, self._core.partitions
        if now < times.resume_at:
            return times.resume_at
        if not core.met or now >= times.beat_at:
            return "beat"
        if partitions.pending_stops and now >= self._stop_at:
            return "stop"
        if now >= self._retry_at:
            partitions.retry_deferred()
            self._retry_at = now + RETRY_S
        if partitions.unsent < partitions.limit and now < times.send_at:
            return times.send_at
        if core.queries_unsent and now >= self._report_at:
            otherwise: Turn | float = "report"
        else:
            otherwise = min(
                times.beat_at,
                self._report_at if core.queries_unsent else math.inf,
                self._retry_at if partitions.deferred else math.inf,
                self._stop_at if partitions.pending_stops else math.inf,
            )
        return partitions.take() or otherwise

    def _beat(self) -> None:
        """Renew the lease, and learn how long it is and which event was the newest before ours."""
        core = self._core
        try:
            data = core.post(wire.HEARTBEAT, b"{}", Deadline(REQUEST_TIMEOUT_S))
            with wire.reading("a heartbeat"):
                lease_s, event_id = float(data["lease_s"]), int(data["last_event_id"])
        except OffsetManagerError as error:
            self._failed(error)
            return
        with core.lock:
            core.times.lease_s = max(lease_s, MIN_LEASE_S)
            core.first_event_id = core.first_event_id or str(event_id)
            core.met = True
            core.changed.notify_all()
        core.succeeded()

    def _stop(self) -> None:
        """Stop what nobody holds, and waits for, any more."""
        core = self._core
        with core.lock:
            if not core.partitions.pending_stops:
                return  # spawned again meanwhile
            group, keys = core.partitions.pending_stops.take(STOP_LIMIT)
            version = core.partitions.next_version()
        partitions = [key.topic_partition for key in keys]
        body = wire.flush_body(group, partitions, REQUEST_TIMEOUT_S, version=version)
        try:
            core.post(wire.STOP, body, Deadline(STOP_S))
        except OffsetManagerError:
            with core.lock:
                core.partitions.add_pending_stops(keys)
            self._stop_at = time.monotonic() + RETRY_S

    def _report(self) -> None:
        """Report the streaming queries; the next batch of one of them makes up for a failure."""
        core = self._core
        with core.lock:
            body = wire.queries_body(core.queries.values())
            core.queries_unsent = False
        self._report_at = time.monotonic() + REPORT_INTERVAL_S
        with suppress(OffsetManagerError):  # such as of a service that is older than this client
            core.post(wire.QUERIES, body, Deadline(REPORT_TIMEOUT_S))

    def _send(self, batch: Batch) -> None:
        """Hand `batch` over, to no other process of the service than it was made for.

        Another one may have been started since, and the one before it have committed newer offsets.
        """
        core = self._core
        path = wire.OFFSETS if batch.submits else wire.MANAGERS
        core.times.send_at = time.monotonic() + SEND_INTERVAL_S
        body, deadline = wire.batch_body(batch), Deadline(REQUEST_TIMEOUT_S)
        try:
            data = core.post(path, body, deadline, batch.instance)
            with wire.reading("submitted offsets"):
                refused = wire.refused_of(data, batch)
        except OffsetManagerError as error:
            self._refused(batch, error)
            return
        with core.lock:
            news = core.partitions.accept(batch, refused)
        core.succeeded()
        for key, refusal in news:
            core.deliver(key, refusal)

    def _refused(self, batch: Batch, error: OffsetManagerError) -> None:
        core = self._core
        if isinstance(error, ServiceError) and error.status in _BAD_REQUESTS:
            with core.lock:
                news = core.partitions.reject(batch, error)
            for key, refusal in news:
                core.deliver(key, refusal)
            return
        with core.lock:
            core.partitions.give_back(batch)
        self._failed(error)

    def _failed(self, error: OffsetManagerError) -> None:
        """Pause after an answer of which nothing can be made, and try again."""
        status = error.status if isinstance(error, ServiceError) else None
        if isinstance(error, ClientFencedError):
            return  # the loop sees it
        if status == _NOT_FOUND:
            with self._core.lock:
                self._core.partitions.renew()
        if status != _OTHER_INSTANCE:
            self._core.failed(error)
        self._pause()

    def _pause(self) -> None:
        with self._core.lock:
            self._core.times.failed(time.monotonic())
