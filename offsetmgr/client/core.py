"""The shared state of one client, and its two threads: the sender and the reader of events."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from contextlib import closing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from offsetmgr.backoff import Backoff
from offsetmgr.client import wire
from offsetmgr.client.calls import Calls
from offsetmgr.client.offsets import FIRST_PAUSE_S
from offsetmgr.client.partitions import (
    BATCH_LIMIT,
    Batch,
    ClientPartition,
    Mailboxes,
    Partitions,
    take_group,
)
from offsetmgr.client.transport import Session, Unreachable
from offsetmgr.codes import TOPIC_RECREATED
from offsetmgr.deadlines import LONGEST_WAIT_S, Deadline, Latch
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    ServiceError,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.client.failure_log import FailureLog
    from offsetmgr.client.offsets import QueryReport, Refusals, Values
    from offsetmgr.client.transport import ServiceAddress
    from offsetmgr.types import FlushResult

QUERIES: Final = 50
"""Streaming queries that are reported; the service takes no more of a client."""

LONGEST_PAUSE_S: Final = 2.0
DEFAULT_LEASE_S: Final = 30.0
MIN_LEASE_S: Final = 0.3
"""A shorter lease is not kept: heartbeats would be all that the client does."""

SEND_INTERVAL_S: Final = 0.02
"""Pause between two requests, unless a full one waits: a tight loop costs 50 requests a second."""

REQUEST_TIMEOUT_S: Final = 10.0

ASIDE_S: Final = 1.0
"""Seconds that offsets wait for the answer to a report, or to a stop that nobody waits for."""

LOOK_S: Final = 1.0
JOIN_S: Final = 1.0
"""Longest wait for a thread that has nothing left to do."""

IDS_S: Final = 0.1
"""Pause before the ids of topics are asked for that an answer did not name yet; it doubles with
each try, up to ``MOST_IDS_S``."""
MOST_IDS_S: Final = 2.0

RETRY_S: Final = 5.0
"""Pause before what had no answer or was refused, but may be taken yet, is asked again: managers,
stops, and reports of queries."""

REPORT_INTERVAL_S: Final = 1.0

ID_DIGITS: Final = 19
"""The service's numbers of events are of 64 bits."""

REFUSED_STREAMS: Final = 3
"""After so many event streams in a row were refused, the log says that no errors are reported."""

READ_TIMEOUT_S: Final = 30.0
"""The service sends something every 10 s: after three of them in silence it is gone."""

_BAD_REQUESTS: Final = frozenset({400, 403, 413})
"""The request itself is wrong, too large, or not allowed: sending the same again is pointless."""

_OTHER_INSTANCE: Final = HTTPStatus.PRECONDITION_FAILED

_DROPPED: Final = "%d errors were dropped: more came at once than the service keeps"
_UNHEARD: Final = "the service at %s sends no events, so errors() and watchers get none: %s"
_UNREPORTED: Final = "the service at %s does not show this client's queries: %s"

log = SafeLogger("offsetmgr.client")

T = TypeVar("T")


def new_backoff() -> Backoff:
    return Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, random.Random())  # noqa: S311 -- jitter


class Core:
    """The state of a client, safe between threads; its threads start with their first use."""

    def __init__(self, url: str, address: ServiceAddress, name: str, failures: FailureLog) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.wake = threading.Condition(self.lock)
        """For the sender."""
        self.changed = threading.Condition(self.lock)
        """For those who wait for what the sender does."""
        self.partitions = Partitions()
        self.session = Session(url, address, name, self._heard)
        self.first_event_id = ""
        """The service's newest event when it was met first: an event stream begins there."""
        self.fenced: ClientFencedError | None = None
        self.link_error: OffsetManagerError | None = None
        """Why the service cannot be spoken to; None while it can."""
        self.closing = False
        self.ended = Latch()
        """No thread of this client has anything left to do."""
        self.idle = False
        self.queries: dict[str, QueryReport] = {}
        """The newest report of each run of a streaming query, the last one last."""
        self.queries_unsent = False
        self.failure_log = failures
        self.backoff = new_backoff()
        self.heard_at: float | None = None
        """The service answered last, which renewed the lease."""
        self._lease_s = DEFAULT_LEASE_S
        self._resume_at = 0.0
        """Nothing is sent before."""
        self._send_at = 0.0
        """The next offsets are sent then, where they are few and nobody waits for them."""
        self._beat_by = 0.0
        """The next heartbeat is due then, if not sooner; 0 until the lease of the service, as it
        lives now, is known."""
        self._ids_s = IDS_S
        self._sender = Worker(f"offsetmgr-{name}", partial(self._loop, self._run))
        reader = EventReader(self)
        self._reader = Worker(f"offsetmgr-events-{name}", partial(self._loop, reader.run))
        self._is_listened = False
        self._loops: set[int] = set()
        """The threads of this client that are running."""
        self._calls = Calls()
        self._retry_at = 0.0
        """Managers that were refused are asked for then, and stops without an answer."""
        self._report_at = 0.0
        """Streaming queries are reported then, if there is news of them."""

    # Managers and their offsets

    def spawn(self, key: ManagerKey) -> Mailboxes:
        """Hold a manager for `key`; ManagerExistsError if this client has handed it out."""
        with self.lock:
            self.check_open()
            held = self.partitions.add(key)
            if held.mail is not None:
                raise ManagerExistsError(str(key), f"this client, {self.name!r}")
            mail = held.mail = Mailboxes(key)
            self.check_open()  # a signal handler may have closed it meanwhile
            self._poke()
            return mail

    def claim(self, keys: Iterable[ManagerKey], claimed: dict[ManagerKey, ClientPartition]) -> None:
        """Hold managers for all of `keys`, and add them to `claimed`; or ManagerExistsError."""
        with self.lock:
            self.check_open()
            for key in keys:
                if key in self.partitions:
                    raise ManagerExistsError(str(key), f"this client, {self.name!r}")
            for key in keys:  # each is claimed before it is held, for whoever ends it after Ctrl-C
                claimed[key] = ClientPartition(self.partitions.next_version())
                self.partitions.hold(key, claimed[key])
            self.check_open()
            self._poke()

    def submit(self, values: Values, *, rewind: bool = False) -> Refusals:
        """Make `values` the newest; return the refused, which hold back none of the others.

        Raises InterruptedCallError in a signal handler that has interrupted another submit, which
        takes it along.
        """

        def submit() -> Refusals:
            return {
                key: error
                for key, value in values.items()
                if (error := self.partitions.submit(key, value, rewind=rewind)) is not None
            }

        def later() -> None:
            for key, error in self.submit(values, rewind=rewind).items():
                self.deliver(key, error)

        with self.lock:
            self.check_open()
            self.check_fence()
            refused = self._calls.call(submit, later)
            self.check_open()
            self._poke()
        return refused

    def report_query(self, report: QueryReport) -> None:
        """Have the sender show the query to the service, when it has nothing better to do."""
        with self.lock:
            self.queries.pop(report.run_id, None)
            self.queries[report.run_id] = report
            if len(self.queries) > QUERIES:
                del self.queries[next(iter(self.queries))]
            self.queries_unsent = True
            if not self.closing and self.fenced is None:
                self._poke()

    def forget(
        self,
        managers: Mapping[ManagerKey, ClientPartition],
        result: FlushResult,
        unanswered: Collection[ManagerKey],
        stopper: object | None = None,
    ) -> None:
        """End those of `managers` that are `stopper`'s; it does not know that `unanswered` are.

        Once more, where a signal handler has raised in it.
        """
        with self.lock:
            for key, held in managers.items():
                if held.stopper is not stopper or self.partitions.get(key) is not held:
                    continue
                answered, mail = key not in unanswered, held.mail
                if mail is not None:
                    if held.version and held.committed and answered:
                        mail.tell_committed(held.committed)
                    mail.stop(StopResult(held.committed, *(result.uncommitted.get(key) or ())))
                self.partitions.remove(key, answered=answered)
                self.failure_log.forget([key])
            if unanswered:
                self._retry_at = 0.0
            self.notify()

    def deliver(self, key: ManagerKey, error: OffsetManagerError) -> None:
        self.heed(key, error)
        held = self.partitions.get(key)
        if held is None:
            self.failure_log.tell(key, error)
            return
        if held.mail is not None:
            held.mail.tell_error(error)
        self.failure_log.failed(key, error, time.monotonic())

    def heed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """After a notice, or a refusal for good, Kafka may not get what was submitted last."""
        if isinstance(error, CoordinatorError) and not error.retriable:
            held = self.partitions.get(key)
            if held is not None:
                held.must_resend = True
                if error.info.code == TOPIC_RECREATED:
                    held.recreated(error)

    def committed(self, key: ManagerKey, value: OffsetAndMetadata) -> None:
        """An event: Kafka has `value`."""
        with self.lock:
            if held := self.partitions.get(key):
                held.commit_seen(value)
                if held.mail is not None:
                    held.mail.tell_committed(value)
        self.failure_log.committed(key)

    # Threads

    def check_open(self) -> None:
        if self.closing:
            raise ManagerStoppedError(f"client {self.name} is closed; create a new one")

    def notify(self) -> None:
        """Wake the sender, and all that wait for it; the lock is held."""
        self.wake.notify()
        self.changed.notify_all()

    def wait_for(self, is_so: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait, with the lock held, for what the sender or another thread does.

        In steps: a signal handler that comes between a look and the wait wakes nobody.
        """
        while not self.changed.wait_for(is_so, min(deadline.left_s, LOOK_S)):
            if deadline.over:
                return False
        return True

    def _poke(self) -> None:
        if self.idle:
            self.wake.notify()
        else:
            self._start()

    def _start(self) -> None:
        if self.fenced is None and not self.ended.is_set():
            if not self._sender.ensure():
                self.link_error = self._sender.error
            if self._is_listened:
                self._reader.ensure()

    @property
    def is_stuck(self) -> bool:
        """True if nothing can be sent any more, as the interpreter is exiting."""
        return self._sender.is_over

    def expedite(self) -> None:
        """Somebody waits: the sender tries at once, whatever pause it is in."""
        with self.lock:
            self._resume_at = self._send_at = 0.0
            self.partitions.retry_deferred()
            self.wake.notify()
            self._start()

    def lost(self, keys: Iterable[ManagerKey]) -> None:
        """The service has no managers for `keys`: they are asked for again."""
        with self.lock:
            self.partitions.lost(keys)
            self.wake.notify()

    def listen(self) -> None:
        """Have events read, from the first call on."""
        with self.lock:
            self._is_listened = True
            if not self.closing:
                self._reader.ensure()

    def end(self, deadline: Deadline) -> None:
        """End the threads, within the deadline, and close all mailboxes."""
        with self.lock:
            self.ended.set()
            self.notify()
            self.session.end()
            for mail in self.partitions.mails():
                mail.stop(StopResult(None))
            # A join alone would keep the lock from them where a signal handler has interrupted us.
            own = {threading.get_ident()}  # of a watcher that closes its client
            self.wait_for(lambda: self._loops <= own, deadline)
        for worker in (self._sender, self._reader):
            worker.join(deadline.within_s(JOIN_S))

    def _loop(self, run: Callable[[], None]) -> None:
        """Run one of the threads, which the end has to wait for."""
        with self.lock:
            self._loops.add(threading.get_ident())
        try:
            run()
        finally:
            with self.lock:
                self._loops.discard(threading.get_ident())
                self.changed.notify_all()

    # Requests

    def ask(
        self,
        target: str,
        deadline: Deadline,
        read: Callable[[dict[str, Any]], T],
        body: bytes | None = None,
        instance: str | None = None,
    ) -> T:
        """As `Session.ask`; nothing is sent once the client is fenced."""
        self.check_fence()
        try:
            return self.session.ask(target, deadline, read, body, instance)
        except ClientFencedError as error:
            self.fence(error)
            raise
        except Unreachable as error:
            if not deadline.over:  # else the caller was in a hurry, which says nothing
                self.failed(error)
            raise

    def check_fence(self) -> None:
        if self.fenced is not None:
            raise ClientFencedError(str(self.fenced))

    def fence(self, error: ClientFencedError) -> None:
        """Stop all traffic: a newer incarnation owns what this one had."""
        with self.lock:
            if self.fenced is not None:
                return
            self.fenced = error
            for mail in self.partitions.mails():
                mail.tell_error(error)
            self.notify()
        log.warning("%s; nothing more is sent", error)
        self.failure_log.tell(None, error)

    def failed(self, error: OffsetManagerError) -> None:
        """The service cannot be spoken to, or takes nothing."""
        with self.lock:
            if self.ended.is_set():  # it was the close that broke it off
                return
            self.link_error = error
        self.failure_log.unreachable(self.session.url, error, time.monotonic())

    def succeeded(self) -> None:
        """The service did what the sender asked for: whatever kept it from that is over."""
        with self.lock:
            self.backoff.succeeded()
            self._resume_at = 0.0
            self.link_error = None
        self.failure_log.reachable(self.session.url)

    def _heard(self, instance: str) -> None:
        with self.lock:
            now = time.monotonic()
            if self.heard_at is not None and now - self.heard_at > self._lease_s:
                self.partitions.renew()  # it has given our managers back meanwhile
                self._beat_by = 0.0
            self.heard_at = now
            if self.partitions.meet(instance):
                self._beat_by = 0.0
            if not self._beat_by:
                self.queries_unsent = bool(self.queries)
                self.notify()

    # The thread that sends: at most one request is in flight, and none while the service is away.

    def _run(self) -> None:
        try:
            while (turn := self._next_turn()) is not None:
                turn()
                with self.lock:
                    self.changed.notify_all()
        finally:
            self.idle = False

    def _next_turn(self) -> Callable[[], None] | None:
        """Wait for something to do; None when there will be nothing more."""
        with self.lock:
            while self.fenced is None and not self.ended.is_set():
                now = time.monotonic()
                resume_at = self._resume_at
                turn = resume_at if now < resume_at else self._decide(now)
                if not isinstance(turn, float):
                    return turn
                self.idle = not self.partitions.unsent and now >= resume_at
                self.wake.wait(min(max(turn - now, 0.0), LONGEST_WAIT_S))
                self.idle = False
        return None

    def _decide(self, now: float) -> Callable[[], None] | float:
        """Return what to do at `now`, or until when to wait."""
        partitions = self.partitions
        beat_at = self._beat_by
        if self.heard_at is not None:
            beat_at = min(beat_at, self.heard_at + self._lease_s / 3)
        if now >= beat_at:
            return self._beat
        if now >= self._retry_at:
            self._retry_at = now + RETRY_S
            partitions.retry_deferred()
            if partitions.pending_stops:
                return self._stop_unanswered
        if partitions.unsent < partitions.limit and now < self._send_at:
            return self._send_at
        if batch := partitions.take():
            return partial(self._send, batch)
        if self.queries_unsent and now >= self._report_at:
            return self._report
        return min(beat_at, self._retry_at, self._report_at if self.queries_unsent else math.inf)

    def _beat(self) -> None:
        """Renew the lease, and learn how long it is and which event was the newest before ours."""
        deadline = Deadline(REQUEST_TIMEOUT_S)
        try:
            answer = self.ask(wire.HEARTBEAT, deadline, wire.heartbeat_of, b"{}")
        except OffsetManagerError as error:
            self._try_later(error)
            return
        lease_s, event_id, topic_ids = answer
        with self.lock:
            self.partitions.learn(topic_ids)
            self._beat_by = math.inf
            if self.partitions.lacks_ids and self._ids_s < MOST_IDS_S:
                self._ids_s *= 2
                self._beat_by = time.monotonic() + self._ids_s
            self._lease_s = max(lease_s, MIN_LEASE_S)
            self.first_event_id = self.first_event_id or str(event_id)
            self._start()
            self.changed.notify_all()
        self.succeeded()

    def _stop_unanswered(self) -> None:
        """Stop what nobody holds, and waits for, any more: one group at a time."""
        with self.lock:
            keys = take_group(self.partitions.pending_stops, BATCH_LIMIT)
            keys = [key for key in keys if key not in self.partitions]  # else spawned again
            version = self.partitions.stop_version()
            self._retry_at = 0.0
        if not keys:
            return
        partitions = [key.topic_partition for key in keys]
        body = wire.flush_body(keys[0].group, partitions, REQUEST_TIMEOUT_S, version=version)
        try:
            self.ask(wire.STOP, Deadline(ASIDE_S), dict, body)
        except OffsetManagerError:
            with self.lock:
                self.partitions.pending_stops |= dict.fromkeys(keys)
                self._retry_at = time.monotonic() + RETRY_S

    def _report(self) -> None:
        """Report the streaming queries; a service that is older than this client takes none."""
        with self.lock:
            body = wire.queries_body(self.queries.values())
            self.queries_unsent = False
        self._report_at = time.monotonic() + REPORT_INTERVAL_S
        try:
            for refused in self.ask(wire.QUERIES, Deadline(ASIDE_S), wire.refused_of, body):
                self._unreported(refused)
        except OffsetManagerError as error:
            if isinstance(error, ServiceError):  # it says the same of the same report
                if error.status != HTTPStatus.NOT_FOUND:
                    self._unreported(error)
                return
            if not isinstance(error, (Unreachable, ClientFencedError)):
                self._unreported(error)
            with self.lock:
                self.queries_unsent = True
                self._report_at = time.monotonic() + RETRY_S

    def _unreported(self, error: OffsetManagerError) -> None:
        self.failure_log.warn(_UNREPORTED, self.session.url, error, cause=error.code)

    def _send(self, batch: Batch) -> None:
        """Hand `batch` over, to no other process of the service than it was made for.

        Another one may have been started since, and the one before it have committed newer offsets.
        """
        path = wire.OFFSETS if batch.submits else wire.MANAGERS
        self._send_at = time.monotonic() + SEND_INTERVAL_S
        body, deadline = wire.batch_body(batch), Deadline(REQUEST_TIMEOUT_S)
        try:
            read = partial(wire.outcome_of, batch=batch)
            refused, topic_ids = self.ask(path, deadline, read, body, batch.instance)
        except OffsetManagerError as error:
            if not (isinstance(error, ServiceError) and error.status in _BAD_REQUESTS):
                with self.lock:
                    if error.code == wire.MALFORMED:  # for one entry, which holds up no other then
                        self.partitions.limit = max(1, len(batch.items) // 2)
                    self.partitions.give_back(batch)
                self._try_later(error)
                return
            with self.lock:
                news = self.partitions.reject(batch, error)
        except BaseException:  # of a fault here, or in what the answer was read with
            with self.lock:
                self.partitions.give_back(batch)
            raise
        else:
            with self.lock:
                news = self.partitions.accept(batch, refused, topic_ids)
                if self.partitions.wants_ids(batch):
                    self._ids_s = IDS_S
                    self._beat_by = min(self._beat_by, time.monotonic() + IDS_S)
            self.succeeded()
        for key, refusal in news:
            self.deliver(key, refusal)

    def _try_later(self, error: OffsetManagerError) -> None:
        """Pause after an answer of which nothing can be made, and try again."""
        status = error.status if isinstance(error, ServiceError) else None
        if isinstance(error, ClientFencedError):
            return  # the loop sees it
        with self.lock:
            if status == HTTPStatus.NOT_FOUND:
                self.partitions.renew()
            if status == _OTHER_INSTANCE:
                self._beat_by = 0.0
        if status != _OTHER_INSTANCE:
            self.failed(error)
        with self.lock:
            self._resume_at = time.monotonic() + self.backoff.failed()


class EventReader:
    """Reads until the client is closed or fenced; reconnects and goes on where it was."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._backoff = new_backoff()
        self._last_id = ""
        """Rises over restarts of the service too, so that it can be named to any of them."""

    def run(self) -> None:
        core = self._core
        with core.lock:
            # A stream from nowhere misses what fails before it opens.  The sender meets the service
            # before it hands anything over that could fail.
            core.changed.wait_for(
                lambda: core.first_event_id or core.ended.is_set() or core.fenced is not None
            )
            self._last_id = self._last_id or core.first_event_id
        while not core.ended.is_set() and core.fenced is None:
            began_at_s = time.monotonic()
            try:
                self._read()
            except ClientFencedError as error:
                core.fence(error)
                return
            except OffsetManagerError as error:
                log.debug("event stream: %s", error)
                # Else the sender has the same trouble, or will have it, and says so.
                is_refused = not isinstance(error, Unreachable) and core.link_error is None
                if is_refused and self._backoff.failures >= REFUSED_STREAMS:
                    core.failure_log.warn(_UNHEARD, core.session.url, error)
            if time.monotonic() - began_at_s > LONGEST_PAUSE_S:  # it has lasted
                self._backoff.succeeded()
            core.ended.wait(self._backoff.failed())

    def _read(self) -> None:
        core = self._core
        with closing(core.session.stream(wire.EVENTS, self._last_id, READ_TIMEOUT_S)) as events:
            for event in events:
                number = event.get("id", "")
                if number.isascii() and number.isdecimal() and len(number) <= ID_DIGITS:
                    self._last_id = number  # else no service would take it, for good
                try:
                    self._apply(event.get("event", ""), event["data"])
                except ServiceError as error:  # a newer service may send more than we know
                    log.debug("event ignored: %s", error)
                if core.ended.is_set():
                    return

    def _apply(self, event: str, text: str) -> None:
        with wire.reading(f"the event {event!r}"):
            data = json.loads(text)
            if event == "committed":
                self._core.committed(wire.key_of(data), wire.offset_of(data))
            elif event == "failed":
                key = wire.key_of(data)
                self._core.deliver(key, wire.error_of(data["error"], key))
            elif event == "dropped":
                self._core.failure_log.warn(_DROPPED, int(data["count"]))
