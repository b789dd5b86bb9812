"""The one thread of a client that sends: what is new, heartbeats, all of it after a restart."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from offsetmgr.client import wire
from offsetmgr.client.deadline import LONGEST_WAIT_S, Deadline
from offsetmgr.client.left import LeftStop
from offsetmgr.client.outbox import Batch
from offsetmgr.client.session import BusyError, FullError
from offsetmgr.client.transport import Unreachable
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    from offsetmgr.client.core import Core

REQUEST_TIMEOUT_S: Final = 10.0

LEFT_STOP_S: Final = 0.5
"""How long what else there is to send waits for the answer to a stop that nobody waits for."""
LEFT_PAUSE_S: Final = 1.0
"""Least time between two looks whether it is done."""

_BAD_REQUESTS: Final = frozenset({400, 403, wire.TOO_LARGE})
"""What is wrong lies in the request: sending the same again is pointless."""

_NOT_FOUND: Final = 404
_OTHER_INSTANCE: Final = 412

Beat = Literal["beat"]
Turn: TypeAlias = Batch | LeftStop | Beat

log = logging.getLogger("offsetmgr.client")


class Sender:
    """At most one request is in flight, and none while the service is known to be away."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._flight: Batch | None = None
        """Sent without an answer: it may have had its effect, so it is repeated as it was."""
        self._uncertain = -1
        """Its sequence."""
        self._left_last = False
        """A stop that nobody waits for was sent, and all else has not had its turn since."""

    def run(self) -> None:
        """Send until the client is closed or fenced."""
        while (turn := self._next_turn()) is not None:
            try:
                if isinstance(turn, Batch):
                    self._send(turn)
                elif isinstance(turn, LeftStop):
                    self._stop(turn)
                else:
                    self._beat()
            except Exception:
                # The thread is the client's only one: it must outlive what nobody thought of.
                log.exception("a request to the offset service failed in an unforeseen way")
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
                core.idle = not core.outbox.unsent and now >= core.pace.resume_at
                core.wake.wait(min(max(turn - now, 0.0), LONGEST_WAIT_S))
                core.idle = False
        return None

    def _is_over(self, now: float) -> bool:
        core = self._core
        if core.end_at is None:
            return False
        waiting = core.outbox.unsent or core.outbox.crowded or self._flight is not None
        return now >= core.end_at or not waiting

    def _decide(self, now: float) -> Turn | float:
        """What to do at `now`, or until when to wait."""
        core, pace, outbox = self._core, self._core.pace, self._core.outbox
        if now < pace.resume_at:
            return self._until(pace.resume_at)
        flight, self._flight = self._flight, None
        if flight is not None and self._is_valid(flight):
            return flight
        if flight is not None:
            outbox.give_back(flight)
        if not core.met or now >= pace.beat_at:
            return "beat"
        was_left, self._left_last = self._left_last, False
        if was_left and (batch := self._take(now)):
            return batch
        if now >= core.left_pace.resume_at and (left := outbox.left.stop(outbox.next_sequence)):
            self._left_last = True
            return left
        is_early = outbox.unsent < outbox.limit and now < pace.send_at
        batch = None if is_early else self._take(now)
        return batch or self._until(pace.send_at if is_early else self._next_at())

    def _take(self, now: float) -> Batch | None:
        core = self._core
        return core.outbox.take(now, crowded=now >= core.room_pace.resume_at)

    def _next_at(self) -> float:
        """When there may be something to do though nobody submits anything."""
        core, outbox = self._core, self._core.outbox
        times = [core.pace.beat_at]
        if (parked_until := outbox.parked_until()) is not None:
            times.append(parked_until)
        if outbox.crowded:
            times.append(core.room_pace.resume_at)
        if outbox.left:
            times.append(core.left_pace.resume_at)
        return min(times)

    def _until(self, at: float) -> float:
        end_at = self._core.end_at
        return at if end_at is None else min(at, end_at)

    def _is_valid(self, flight: Batch) -> bool:
        """Whether it can be repeated: the service is the same, and no manager was stopped since."""
        outbox = self._core.outbox
        return flight.epoch == outbox.epoch and all(item.key in outbox for item in flight.items)

    def _beat(self) -> None:
        """Renew the lease, and learn how long it is and which event was the newest before ours."""
        core = self._core
        try:
            data = core.post(wire.HEARTBEAT, b"{}", Deadline(REQUEST_TIMEOUT_S))
            with wire.reading("the answer to a heartbeat"):
                lease_s, event_id = float(data["lease_s"]), int(data["last_event_id"])
        except OffsetManagerError as error:
            self._troubled(error)
            return
        with core.lock:
            core.pace.lease(lease_s)
            core.first_event_id = core.first_event_id or str(event_id)
            core.met = True
            core.changed.notify_all()

    def _stop(self, left: LeftStop) -> None:
        """Have the service stop what it was left with; it is given more time than the answer."""
        core = self._core
        body = wire.settle_body(left.group, left.partitions, REQUEST_TIMEOUT_S)
        deadline = Deadline(LEFT_STOP_S)
        try:
            core.post(wire.STOP, body, deadline, left.sequence)
        except OffsetManagerError as error:
            if not isinstance(error, ServiceError) or error.status not in _BAD_REQUESTS:
                if deadline.over:  # it commits first, or is away: what else is sent will tell
                    with core.lock:
                        core.left_pace.failed(time.monotonic(), LEFT_PAUSE_S)
                else:
                    self._troubled(error)
                return
            log.warning("managers of group %s could not be given back: %s", left.group, error)
        with core.lock:
            core.left_pace.heard(time.monotonic())
            core.outbox.left.answered(left)

    def _send(self, batch: Batch) -> None:
        core = self._core
        path = wire.OFFSETS if batch.submits else wire.MANAGERS
        body = wire.batch_body(batch)
        core.pace.sent(time.monotonic())
        try:
            data = core.post_batch(path, body, Deadline(REQUEST_TIMEOUT_S), batch)
            with wire.reading("the answer to offsets"):
                refused = wire.refused_of(data, batch)
        except Unreachable as error:
            if error.sent or batch.sequence == self._uncertain:
                self._flight, self._uncertain = batch, batch.sequence
            else:
                with core.lock:
                    core.outbox.withdraw(batch)
            self._troubled(error)
        except OffsetManagerError as error:
            if isinstance(error, ServiceError) and error.status in _BAD_REQUESTS:
                self._reject(batch, error)
            else:
                crowded = isinstance(error, FullError) and core.crowd(batch, error)
                self._give_back(batch)
                if not crowded:  # else all others go on
                    self._troubled(error)
        else:
            with core.lock:
                news = core.outbox.accept(batch, refused, time.monotonic())
                if not core.outbox.is_full:
                    core.room_pace.heard(time.monotonic())
            for key, refusal in news:
                core.deliver(key, refusal)

    def _reject(self, batch: Batch, error: ServiceError) -> None:
        if error.status == wire.TOO_LARGE and len(batch.items) > 1:
            self._give_back(batch)  # each of them may be fine: smaller requests will tell
            return
        with self._core.lock:
            news = self._core.outbox.reject(batch, error, wire.bad_index(error))
        for key, each in news:
            self._core.deliver(key, each)

    def _give_back(self, batch: Batch) -> None:
        with self._core.lock:
            self._core.outbox.give_back(batch)

    def _troubled(self, error: OffsetManagerError) -> None:
        """An answer of which nothing can be made: pause, and try again."""
        if isinstance(error, ClientFencedError):
            return  # the loop sees it
        if isinstance(error, ServiceError) and error.status == _NOT_FOUND:
            with self._core.lock:
                self._core.outbox.renew()
        if not (isinstance(error, ServiceError) and error.status == _OTHER_INSTANCE):
            self._core.lost(error)
        self._failed(error.retry_after_s if isinstance(error, BusyError) else 0.0)

    def _failed(self, at_least_s: float = 0.0) -> None:
        with self._core.lock:
            self._core.pace.failed(time.monotonic(), at_least_s)
