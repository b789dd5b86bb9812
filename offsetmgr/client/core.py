"""What the threads of one client share: partitions, mailboxes, the session, and who is told what.

It knows nothing of `OffsetClient`, so that a client nobody holds any more can be collected while
its sender still runs.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.client.backoff import SendTimes
from offsetmgr.client.events import EventReader
from offsetmgr.client.failure_log import FailureLog
from offsetmgr.client.partitions import Partitions
from offsetmgr.client.sender import Sender
from offsetmgr.client.session import Identity, Session
from offsetmgr.client.streams import Mailboxes
from offsetmgr.client.transport import Unreachable
from offsetmgr.client.wire import TOO_LARGE
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.client.address import Address
    from offsetmgr.client.deadline import Deadline
    from offsetmgr.client.partitions import Batch
    from offsetmgr.client.session import FullError
    from offsetmgr.types import FlushResult, ManagerKey, OffsetAndMetadata

ABANDONED_S: Final = 2.0
"""How long the sender of a client that nobody closed goes on to send what it holds."""

log = logging.getLogger("offsetmgr.client")


class Core:
    """The state of a client, safe between threads; its threads start with their first use."""

    def __init__(self, url: str, address: Address, name: str) -> None:
        # Reentrant, because a collector may run `abandon` in a thread that holds it.
        self.lock = threading.RLock()
        self.wake = threading.Condition(self.lock)
        """For the sender."""
        self.changed = threading.Condition(self.lock)
        """For those who wait for what the sender does."""
        self.partitions = Partitions()
        rng = random.Random()  # noqa: S311 -- jitter is no secret
        self.times = SendTimes(rng)
        self.quota_times = SendTimes(rng)
        """For new managers, while the service has no room for any."""
        self.stop_times = SendTimes(rng)
        """For what stops without an answer have left."""
        self.identity = Identity.new(name)
        self.session = Session(url, address, self.identity, self._heard, self._met)
        self.met = False
        """True if the service, as it lives now, has said how long its lease is."""
        self.fenced: ClientFencedError | None = None
        self.first_event_id = ""
        """The service's newest event when it was met first: an event stream begins there."""
        self.link_error: OffsetManagerError | None = None
        """Why the service cannot be spoken to; None while it can."""
        self.closing = False
        self.forked = False
        self.ended = threading.Event()
        """No thread of this client has anything left to do."""
        self.idle = False
        """The sender waits for something to send."""
        self.end_at: float | None = None
        self.failure_log = FailureLog()
        self.watchers: tuple[Callable[[ManagerKey | None, OffsetManagerError], None], ...] = ()
        """Called with each error, and the manager where it is about one; they must not block."""
        self._mails: dict[ManagerKey, Mailboxes] = {}
        self._sender: threading.Thread | None = None
        self._reader: EventReader | None = None
        self._reading: threading.Thread | None = None

    # Managers and what is submitted to them

    def spawn(self, key: ManagerKey) -> Mailboxes:
        """Hold a manager for `key`; ManagerExistsError where this client has handed it out."""
        with self.lock:
            self._check_open()
            if key in self._mails:
                raise ManagerExistsError(str(key), f"this client, {self.identity.name!r}")
            mail = self._mails[key] = Mailboxes(key)
            self.partitions.add(key)
            self._poke()
            return mail

    def claim(self, keys: Iterable[ManagerKey]) -> None:
        """Hold managers for `keys`; ManagerExistsError, and none, where one is held already."""
        with self.lock:
            self._check_open()
            for key in keys:
                if key in self.partitions:
                    raise ManagerExistsError(str(key), f"this client, {self.identity.name!r}")
            for key in keys:
                self.partitions.add(key)
            self._poke()

    def submit(
        self, values: Mapping[ManagerKey, OffsetAndMetadata], *, rewind: bool = False
    ) -> dict[ManagerKey, OffsetManagerError]:
        """Make `values` the newest; return the refused, which hold back none of the others."""
        with self.lock:
            self._check_open()
            self.check_fence()
            refused = {
                key: error
                for key, value in values.items()
                if (error := self.partitions.submit(key, value, rewind=rewind)) is not None
            }
            self._poke()
        return refused

    def forget(self, keys: Collection[ManagerKey], result: FlushResult, *, answered: bool) -> None:
        """The managers of `keys` are stopped, with `result`; the service has `answered` so."""
        with self.lock:
            for key in keys:
                held, mail = self.partitions.get(key), self._mails.pop(key, None)
                if mail is not None:
                    committed = None if held is None else held.committed
                    left = result.uncommitted.get(key)
                    mail.stop(StopResult(committed, *(left or ())))
            (self.partitions.remove if answered else self.partitions.leave)(keys)
            self.failure_log.forget(keys)
            self.wake.notify()
            self.changed.notify_all()

    def unstop(self, keys: Iterable[ManagerKey]) -> None:
        """The stop of `keys` was broken off: they take offsets again, and can be stopped again."""
        with self.lock:
            self.partitions.unstop(keys)
            self.wake.notify()
            self.changed.notify_all()

    def deliver(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Tell the user of `key` what went wrong."""
        is_held = key in self.partitions
        self.failure_log.failed(key, error, time.monotonic(), is_held=is_held)
        self.heed(key, error)
        mail = self._mails.get(key)
        if mail is not None:
            mail.errors.put(error)
        for told in self.watchers:
            told(key, error)

    def heed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """After a notice, or a refusal for good, Kafka may not get what was submitted last."""
        if isinstance(error, CoordinatorError) and not error.retriable:
            with self.lock:
                self.partitions.force_resend(key)

    def lose(self, key: ManagerKey, count: int) -> None:
        """So many errors of `key` could not be told."""
        mail = self._mails.get(key)
        if mail is not None:
            mail.errors.lose(count)

    def committed(
        self, key: ManagerKey, value: OffsetAndMetadata, version: int = 0, *, ours: bool = True
    ) -> None:
        """The coordinator has acknowledged `value`; or has it, where it is not `ours`."""
        with self.lock:
            mail = self._mails.get(key)
            if self.partitions.committed(key, value, version) and mail is not None and ours:
                mail.committed.put(value)  # here, lest a newer one overtakes it
            held = self.partitions.get(key)
            is_newest = held is None or held.newest == value
        self.failure_log.committed(key, value.offset, is_newest=is_newest)

    def released(self, key: ManagerKey) -> None:
        """The service has stopped the manager of `key` by itself."""
        with self.lock:
            self.partitions.released(key)
            self.wake.notify()

    def check_process(self) -> None:
        """Raise ManagerStoppedError in the child of a fork."""
        if self.forked:
            name = self.identity.name
            text = f"client {name} was made in another process; make one in this process"
            raise ManagerStoppedError(text)

    def _check_open(self) -> None:
        self.check_process()
        if self.closing:
            raise ManagerStoppedError(f"client {self.identity.name} is closed; create a new one")

    # Threads

    def _poke(self) -> None:
        if self.idle:
            self.wake.notify()
        elif self._sender is None:
            self._sender = _start(Sender(self).run, f"offsetmgr-{self.identity.name}")

    def expedite(self) -> None:
        """Somebody waits: the sender tries at once, whatever pause it is in."""
        with self.lock:
            self.times.expedite()
            self.quota_times.expedite()
            self.wake.notify()

    def listen(self) -> None:
        """Have events read, from the first call on."""
        self.check_process()
        with self.lock:
            if self._reader is None and not self.closing:
                reader = EventReader(self)
                self._reading = _start(reader.run, f"offsetmgr-events-{self.identity.name}")
                self._reader = None if self._reading is None else reader

    def abandon(self) -> None:
        """Nobody holds the client any more: its threads end soon."""
        with self.lock:
            self.closing = True
            if self._sender is None:
                self._end()
            else:
                self.end_at = time.monotonic() + ABANDONED_S
                self.wake.notify()

    def await_stops(self, deadline: Deadline) -> None:
        """Wait for what other threads stop: it may need the sender, which is about to end."""
        with self.lock:
            wait_s = deadline.within_s(threading.TIMEOUT_MAX)
            self.changed.wait_for(lambda: not self.partitions.keys(), wait_s)

    def end(self, deadline: Deadline) -> None:
        """End the threads, within the deadline, and close all mailboxes."""
        with self.lock:
            self.closing = True
            self.end_at = 0.0
            self._end()
        for thread in (self._sender, self._reading):
            if thread is not None and thread is not threading.current_thread():
                thread.join(deadline.within_s())

    def _end(self) -> None:
        self.ended.set()
        self.wake.notify_all()
        self.changed.notify_all()
        if self._reader is not None:
            self._reader.abort()
        self.session.end()
        for mail in self._mails.values():
            mail.stop(StopResult(None))

    def leave(self) -> None:
        """This is the child of a fork: threads, locks and connections are the parent's."""
        self.lock = threading.RLock()
        self.wake, self.changed = threading.Condition(self.lock), threading.Condition(self.lock)
        self.ended = threading.Event()
        self.ended.set()
        self.closing = self.forked = True
        self.session.close()
        if self._reader is not None:
            self._reader.close()

    # Requests

    def post(self, path: str, body: bytes, deadline: Deadline) -> dict[str, Any]:
        """As `Session.post`; nothing is sent once the client is fenced."""
        return self._watched(lambda: self.session.post(path, body, deadline), deadline)

    def post_batch(
        self, path: str, body: bytes, deadline: Deadline, batch: Batch
    ) -> dict[str, Any]:
        """Hand a batch over, to no other process of the service than it was made for.

        Another one may have been started since, and the one before it have committed newer offsets.
        """
        instance = batch.registration.instance
        try:
            return self._watched(
                lambda: self.session.post(path, body, deadline, instance), deadline
            )
        except ServiceError as error:
            if error.status == TOO_LARGE:
                with self.lock:
                    self.partitions.shrink(batch)
            raise

    def get(self, target: str, deadline: Deadline) -> dict[str, Any]:
        """As `Session.get`; ManagerStoppedError where the client is closed meanwhile."""
        try:
            return self._watched(lambda: self.session.get(target, deadline), deadline)
        except Unreachable:
            if self.ended.is_set():
                self._check_open()
            raise

    def _watched(self, ask: Callable[[], dict[str, Any]], deadline: Deadline) -> dict[str, Any]:
        self.check_process()
        self.check_fence()
        try:
            return ask()
        except ClientFencedError as error:
            self.fence(error)
            raise
        except Unreachable as error:
            if not deadline.over:  # else the caller was in a hurry, which says nothing
                self.lost(error)
            raise

    def exceed(self, batch: Batch, error: FullError) -> bool:
        """The service is at a limit; whether it is one that new managers in `batch` may exceed."""
        now = time.monotonic()
        with self.lock:
            if not self.partitions.exceed(batch, error):
                return False
            self.quota_times.failed(now, error.retry_after_s)
        self.failure_log.failed(batch.items[0].key, error, now)
        return True

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
            self.wake.notify_all()
            self.changed.notify_all()
        log.warning("%s; nothing more is sent", error)
        for told in self.watchers:
            told(None, error)

    def lost(self, error: OffsetManagerError) -> None:
        """The service cannot be spoken to; said once until it can again."""
        with self.lock:
            if self.ended.is_set():  # it was the close that broke it off
                return
            self.link_error = error
            begins = self.failure_log.begins(error, time.monotonic())
        if begins:
            refuses = not isinstance(error, ServiceUnavailableError)
            who = f"the service at {self.session.url} refuses requests: " if refuses else ""
            log.warning("%s%s; offsets are kept until it takes them", who, error)

    def succeeded(self) -> None:
        """The service did what the sender asked for: whatever kept it from that is over."""
        with self.lock:
            self.times.succeeded()
            ends = self._regain()
        if ends:
            self._tell_end()

    def _heard(self, instance: str) -> None:
        with self.lock:
            now = time.monotonic()
            if self.times.lapsed(now):
                self.partitions.renew()  # it has given our managers back meanwhile
                self.met = False
            self.times.heard(now)
            self._met(instance)
            # That it answers somebody does not say that it takes what the sender has.
            ends = isinstance(self.link_error, ServiceUnavailableError) and self._regain()
        if ends:
            self._tell_end()

    def _met(self, instance: str) -> None:
        with self.lock:
            if self.partitions.meet(instance):
                self.met = False
            if not self.met:
                self.wake.notify()
                self.changed.notify_all()

    def _regain(self) -> bool:
        """True if the end of the trouble is to be told."""
        if self.link_error is None:
            return False
        self.link_error = None
        self.wake.notify()
        self.changed.notify_all()
        return self.failure_log.ends()

    def _tell_end(self) -> None:
        log.warning("the service at %s answers again", self.session.url)


def _start(run: Callable[[], None], name: str) -> threading.Thread | None:
    """A daemon thread; None where the process can have no more: the next use tries again."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning(
            "cannot start a thread (%s); offsets are kept, and sent when one can be started", error
        )
        return None
    return thread
