"""The one thread of a client that sends: what is new, heartbeats, all of it after a restart."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from offsetmgr.client import wire
from offsetmgr.client.deadline import LONGEST_WAIT_S, Deadline
from offsetmgr.client.partitions import Batch
from offsetmgr.client.session import BusyError, FullError
from offsetmgr.client.transport import Unreachable
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    from offsetmgr.client.core import Core
    from offsetmgr.types import ManagerKey

REQUEST_TIMEOUT_S: Final = 10.0

PENDING_STOP_S: Final = 0.5
"""How long what else there is to send waits for the answer to a stop that nobody waits for."""
PENDING_STOP_PAUSE_S: Final = 1.0
"""Least time between two looks whether it is done."""

_BAD_REQUESTS: Final = frozenset({400, 403, wire.TOO_LARGE})
"""What is wrong lies in the request: sending the same again is pointless."""

_NOT_FOUND: Final = 404
_OTHER_INSTANCE: Final = 412

STOP_LIMIT: Final = 1_000
"""Managers that one request stops."""


class PendingStop(NamedTuple):
    """Managers to be stopped, for which nobody blocking."""

    group: str
    keys: list[ManagerKey]
    version: int


Beat = Literal["beat"]
Turn: TypeAlias = Batch | PendingStop | Beat

log = logging.getLogger("offsetmgr.client")


class Sender:
    """At most one request is in flight, and none while the service is known to be away."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._stopped_last = False
        """A stop that nobody waits for was sent, and all else has not had its turn since."""

    def run(self) -> None:
        """Send until the client is closed or fenced."""
        while (turn := self._next_turn()) is not None:
            try:
                if isinstance(turn, Batch):
                    self._send(turn)
                elif isinstance(turn, PendingStop):
                    self._stop(turn)
                else:
                    self._beat()
            except Exception as error:  # noqa: BLE001 -- the client's only thread must outlive it
                self._core.failure_log.unforeseen(error, time.monotonic())
                self._failed()
            with self._core.lock:
                self._core.changed.notify_all()

    def _next_turn(self) -> Turn | None:
        """Wait for something to do; None when there will be nothing more."""
        core = self._core
        with core.lock:
            while core.fenced is None and not core.ended.is_set():
                now = time.monotonic()
                if self._is_over(now):
                    core.end(Deadline(0))
                    return None
                turn = self._decide(now)
                if not isinstance(turn, float):
                    return turn
                core.idle = not core.partitions.unsent and now >= core.times.resume_at
                core.wake.wait(min(max(turn - now, 0.0), LONGEST_WAIT_S))
                core.idle = False
        return None

    def _is_over(self, now: float) -> bool:
        core = self._core
        if core.end_at is None:
            return False
        waiting = core.partitions.unsent or core.partitions.over_quota
        return now >= core.end_at or not waiting

    def _decide(self, now: float) -> Turn | float:
        """What to do at `now`, or until when to wait."""
        core, times, partitions = self._core, self._core.times, self._core.partitions
        if now < times.resume_at:
            return self._until(times.resume_at)
        if not core.met or now >= times.beat_at:
            return "beat"
        was_stopped, self._stopped_last = self._stopped_last, False
        if was_stopped and (batch := self._take(now)):
            return batch
        if partitions.pending_stops and now >= core.stop_times.resume_at:
            self._stopped_last = True
            return PendingStop(
                *partitions.pending_stops.take(STOP_LIMIT), partitions.next_version()
            )
        is_early = partitions.unsent < partitions.limit and now < times.send_at
        batch = None if is_early else self._take(now)
        return batch or self._until(times.send_at if is_early else self._next_at())

    def _take(self, now: float) -> Batch | None:
        core = self._core
        return core.partitions.take(now, over_quota=now >= core.quota_times.resume_at)

    def _next_at(self) -> float:
        """When there may be something to do though nobody submits anything."""
        core, partitions = self._core, self._core.partitions
        times = [core.times.beat_at]
        if (retry_at := partitions.retry_at()) is not None:
            times.append(retry_at)
        if partitions.over_quota:
            times.append(core.quota_times.resume_at)
        if partitions.pending_stops:
            times.append(core.stop_times.resume_at)
        return min(times)

    def _until(self, at: float) -> float:
        end_at = self._core.end_at
        return at if end_at is None else min(at, end_at)

    def _beat(self) -> None:
        """Renew the lease, and learn how long it is and which event was the newest before ours."""
        core = self._core
        try:
            data = core.post(wire.HEARTBEAT, b"{}", Deadline(REQUEST_TIMEOUT_S))
            with wire.reading("a heartbeat"):
                lease_s, event_id = _lease_s(data["lease_s"]), int(data["last_event_id"])
        except OffsetManagerError as error:
            self._troubled(error)
            return
        with core.lock:
            core.times.lease(lease_s)
            core.first_event_id = core.first_event_id or str(event_id)
            core.met = True
            core.changed.notify_all()
        core.succeeded()

    def _stop(self, stop: PendingStop) -> None:
        """Have the service stop what nobody holds; it is given more time than the answer."""
        core = self._core
        partitions = [key.topic_partition for key in stop.keys]
        body = wire.stop_body(stop.group, partitions, REQUEST_TIMEOUT_S, stop.version)
        deadline = Deadline(PENDING_STOP_S)
        try:
            core.post(wire.STOP, body, deadline)
        except OffsetManagerError as error:
            if isinstance(error, ServiceError) and error.status in _BAD_REQUESTS:
                log.warning("partitions of group %s could not be given back: %s", stop.group, error)
                return
            with core.lock:
                core.partitions.add_pending_stops(stop.keys)
                if deadline.over:  # it commits first, or is away: what else is sent will tell
                    core.stop_times.failed(time.monotonic(), PENDING_STOP_PAUSE_S)
            if not deadline.over:
                self._troubled(error)
        else:
            core.succeeded()
            with core.lock:
                core.stop_times.succeeded()

    def _send(self, batch: Batch) -> None:
        core = self._core
        path = wire.OFFSETS if batch.submits else wire.MANAGERS
        body = wire.batch_body(batch)
        core.times.sent(time.monotonic())
        try:
            data = core.post_batch(path, body, Deadline(REQUEST_TIMEOUT_S), batch)
            with wire.reading("submitted offsets"):
                refused = wire.refused_of(data, batch)
        except Unreachable as error:
            with core.lock:
                (core.partitions.give_back if error.sent else core.partitions.withdraw)(batch)
            self._troubled(error)
        except OffsetManagerError as error:
            if isinstance(error, ServiceError) and error.status in _BAD_REQUESTS:
                self._reject(batch, error)
            else:
                over_quota = isinstance(error, FullError) and core.exceed(batch, error)
                self._give_back(batch)
                if not over_quota:  # else all others go on
                    self._troubled(error)
        else:
            with core.lock:
                news = core.partitions.accept(batch, refused, time.monotonic())
                if not core.partitions.is_full:
                    core.quota_times.succeeded()
            core.succeeded()
            for key, refusal in news:
                core.deliver(key, refusal)

    def _reject(self, batch: Batch, error: ServiceError) -> None:
        if error.status == wire.TOO_LARGE and len(batch.items) > 1:
            self._give_back(batch)  # each of them may be fine: smaller requests will tell
            return
        with self._core.lock:
            news = self._core.partitions.reject(batch, error, wire.bad_index(error))
        for key, each in news:
            self._core.deliver(key, each)

    def _give_back(self, batch: Batch) -> None:
        with self._core.lock:
            self._core.partitions.give_back(batch)

    def _troubled(self, error: OffsetManagerError) -> None:
        """An answer of which nothing can be made: pause, and try again."""
        if isinstance(error, ClientFencedError):
            return  # the loop sees it
        if isinstance(error, ServiceError) and error.status == _NOT_FOUND:
            with self._core.lock:
                self._core.partitions.renew()
        if not (isinstance(error, ServiceError) and error.status == _OTHER_INSTANCE):
            self._core.lost(error)
        self._failed(error.retry_after_s if isinstance(error, BusyError) else 0.0)

    def _failed(self, at_least_s: float = 0.0) -> None:
        with self._core.lock:
            self._core.times.failed(time.monotonic(), at_least_s)


def _lease_s(value: object) -> float:
    """Raise ValueError where `value` is no length of time: then no heartbeat would ever be due."""
    lease_s = float(value) if isinstance(value, (int, float)) else math.nan
    if not 0 <= lease_s < math.inf:
        raise ValueError(f"lease_s is {value!r}")
    return lease_s
