"""The shared state of one client's threads: partitions, mailboxes, the session.

It knows nothing of `OffsetClient`, so that a client nobody holds any more can be collected while
its sender still runs.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.client.events import EventReader
from offsetmgr.client.handle import Mailboxes
from offsetmgr.client.partitions import Partitions
from offsetmgr.client.sender import Sender, SendTimes
from offsetmgr.client.transport import Session, Unreachable
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    ServiceUnavailableError,
)
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.client.failure_log import FailureLog
    from offsetmgr.client.offsets import Deadline, QueryReport
    from offsetmgr.client.transport import ServiceAddress
    from offsetmgr.types import FlushResult, ManagerKey, OffsetAndMetadata

QUERIES: Final = 50
"""Streaming queries that are reported; the service takes no more of a client."""

ABANDONED_S: Final = 2.0
"""Seconds that the sender of a client dropped without ``close()`` goes on sending."""

log = logging.getLogger("offsetmgr.client")


class Core:
    """The state of a client, safe between threads; its threads start with their first use."""

    def __init__(self, url: str, address: ServiceAddress, name: str, failures: FailureLog) -> None:
        self.name = name
        # Reentrant, because a collector may run `abandon` in a thread that holds it.
        self.lock = threading.RLock()
        self.wake = threading.Condition(self.lock)
        """For the sender."""
        self.changed = threading.Condition(self.lock)
        """For those who wait for what the sender does."""
        self.partitions = Partitions()
        self.times = SendTimes(random.Random())  # noqa: S311 -- jitter is no secret
        self.session = Session(url, address, name, self._heard)
        self.met = False
        """True if the lease of the service, as it lives now, is known."""
        self.first_event_id = ""
        """The service's newest event when it was met first: an event stream begins there."""
        self.fenced: ClientFencedError | None = None
        self.link_error: OffsetManagerError | None = None
        """Why the service cannot be spoken to; None while it can."""
        self.closing = False
        self.ended = threading.Event()
        """No thread of this client has anything left to do."""
        self.idle = False
        """The sender waits for something to send."""
        self.end_at: float | None = None
        self.queries: dict[str, QueryReport] = {}
        """The newest report of each run of a streaming query, the last one last."""
        self.queries_unsent = False
        self.failure_log = failures
        self._mails: dict[ManagerKey, Mailboxes] = {}
        self._sender: threading.Thread | None = None
        self._reader: threading.Thread | None = None

    # Managers and their offsets

    def spawn(self, key: ManagerKey) -> Mailboxes:
        """Hold a manager for `key`; ManagerExistsError if this client has handed it out."""
        with self.lock:
            self.check_open()
            if key in self._mails:
                raise ManagerExistsError(str(key), f"this client, {self.name!r}")
            self._add([key])
            mail = self._mails[key] = Mailboxes(key)
            return mail

    def claim(self, keys: Iterable[ManagerKey]) -> None:
        """Hold managers for all of `keys`, or raise ManagerExistsError."""
        with self.lock:
            self.check_open()
            for key in keys:
                if key in self.partitions:
                    raise ManagerExistsError(str(key), f"this client, {self.name!r}")
            self._add(keys)

    def _add(self, keys: Iterable[ManagerKey]) -> None:
        for key in keys:
            self.partitions.add(key)
        self._poke()

    def submit(
        self, values: Mapping[ManagerKey, OffsetAndMetadata], *, rewind: bool = False
    ) -> dict[ManagerKey, OffsetManagerError]:
        """Make `values` the newest; return the refused, which hold back none of the others."""
        with self.lock:
            self.check_open()
            self.check_fence()
            refused = {
                key: error
                for key, value in values.items()
                if (error := self.partitions.submit(key, value, rewind=rewind)) is not None
            }
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

    def forget(self, keys: Collection[ManagerKey], result: FlushResult, *, answered: bool) -> None:
        """The managers of `keys` are stopped, with `result`; the service has `answered` so."""
        with self.lock:
            for key in keys:
                held, mail = self.partitions.get(key), self._mails.pop(key, None)
                if mail is not None:
                    committed = None if held is None else held.committed
                    mail.stop(StopResult(committed, *(result.uncommitted.get(key) or ())))
            self.partitions.remove(keys, answered=answered)
            self.failure_log.forget(keys)
            self.notify()

    def deliver(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Report `error` to the user of `key`."""
        is_held = key in self.partitions
        self.heed(key, error)
        if mail := self._mails.get(key):
            mail.errors.put(error)
        self.failure_log.failed(key, error, time.monotonic(), is_held=is_held)

    def heed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """After a notice, or a refusal for good, Kafka may not get what was submitted last."""
        if isinstance(error, CoordinatorError) and not error.retriable:
            held = self.partitions.get(key)
            if held is not None:
                held.must_resend = True

    def lose(self, key: ManagerKey, count: int) -> None:
        """Count errors of `key` that the service has dropped."""
        if mail := self._mails.get(key):
            mail.errors.lose(count)

    def committed(
        self, key: ManagerKey, value: OffsetAndMetadata, version: int = 0, *, ours: bool = True
    ) -> None:
        """The coordinator has acknowledged `value`; or has it, where it is not `ours`."""
        with self.lock:
            held, mail = self.partitions.get(key), self._mails.get(key)
            is_news = held is None or held.commit(value, version)
            if is_news and mail is not None and ours:
                mail.tell_committed(value)  # here, lest a newer one overtakes it
        self.failure_log.committed(key)

    # Threads

    def check_open(self) -> None:
        """Raise ManagerStoppedError once the client is closed."""
        if self.closing:
            raise ManagerStoppedError(f"client {self.name} is closed; create a new one")

    def notify(self) -> None:
        """Wake the sender, and all that wait for it; the lock is held."""
        self.wake.notify()
        self.changed.notify_all()

    def _poke(self) -> None:
        if self.idle:
            self.wake.notify()
        elif self._sender is None:
            self._sender = _start(Sender(self).run, f"offsetmgr-{self.name}")

    def expedite(self) -> None:
        """Somebody waits: the sender tries at once, whatever pause it is in."""
        with self.lock:
            self.times.expedite()
            self.partitions.retry_deferred()
            self.wake.notify()

    def listen(self) -> None:
        """Have events read, from the first call on."""
        with self.lock:
            if self._reader is None and not self.closing:
                self._reader = _start(EventReader(self).run, f"offsetmgr-events-{self.name}")

    def abandon(self) -> None:
        """Nobody holds the client any more: its threads end soon."""
        with self.lock:
            self.closing = True
            if self._sender is None:
                self._end()
            else:
                self.end_at = time.monotonic() + ABANDONED_S
                self.wake.notify()

    def end(self, deadline: Deadline) -> None:
        """End the threads, within the deadline, and close all mailboxes.

        First it waits for what other threads stop, as that may need the sender.
        """
        with self.lock:
            self.closing = True
            self.changed.wait_for(
                lambda: not self.partitions.keys(), deadline.within_s(threading.TIMEOUT_MAX)
            )
            self._end()
        for thread in (self._sender, self._reader):
            if thread is not None and thread is not threading.current_thread():
                thread.join(deadline.within_s())

    def _end(self) -> None:
        self.end_at = 0.0
        self.ended.set()
        self.wake.notify_all()
        self.changed.notify_all()
        self.session.end()
        for mail in self._mails.values():
            mail.stop(StopResult(None))

    # Requests

    def post(
        self, path: str, body: bytes, deadline: Deadline, instance: str | None = None
    ) -> dict[str, Any]:
        """As `Session.post`; nothing is sent once the client is fenced."""
        return self._watched(lambda: self.session.post(path, body, deadline, instance), deadline)

    def get(self, target: str, deadline: Deadline) -> dict[str, Any]:
        """As `Session.get`; ManagerStoppedError if the client is closed meanwhile."""
        try:
            return self._watched(lambda: self.session.get(target, deadline), deadline)
        except Unreachable:
            if self.ended.is_set():
                self.check_open()
            raise

    def _watched(self, ask: Callable[[], dict[str, Any]], deadline: Deadline) -> dict[str, Any]:
        self.check_fence()
        try:
            return ask()
        except ClientFencedError as error:
            self.fence(error)
            raise
        except Unreachable as error:
            if not deadline.over:  # else the caller was in a hurry, which says nothing
                self.failed(error)
            raise

    def check_fence(self) -> None:
        """Raise ClientFencedError once a newer incarnation has taken over."""
        if self.fenced is not None:
            raise ClientFencedError(str(self.fenced))

    def fence(self, error: ClientFencedError) -> None:
        """Stop all traffic: a newer incarnation owns what this one had."""
        with self.lock:
            if self.fenced is not None:
                return
            self.fenced = error
            for mail in self._mails.values():
                mail.errors.put(error)
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
            self.times.succeeded()
        self._recovered()

    def _heard(self, instance: str, took: bool) -> None:  # noqa: FBT001
        with self.lock:
            if took:
                now = time.monotonic()
                if self.times.lapsed(now):
                    self.partitions.renew()  # it has given our managers back meanwhile
                    self.met = False
                self.times.heard_at = now
            if self.partitions.meet(instance):
                self.met = False
            if not self.met:
                self.queries_unsent = bool(self.queries)
                self.notify()
        # That it answers somebody does not say that it takes what the sender has.
        if took and isinstance(self.link_error, ServiceUnavailableError):
            self._recovered()

    def _recovered(self) -> None:
        with self.lock:
            if self.link_error is None:
                return
            self.link_error = None
            self.notify()
        self.failure_log.reachable(self.session.url)


def _start(run: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a daemon thread; None if the process can have no more: the next use tries again."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning(
            "cannot start a thread (%s); offsets are kept, and sent when one can be started", error
        )
        return None
    return thread
