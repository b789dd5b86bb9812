"""What the threads of one client share: outbox, mailboxes, the session, and who is told what.

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
from offsetmgr.client.failure_log import FailureLog
from offsetmgr.client.outbox import Outbox
from offsetmgr.client.pace import Pace
from offsetmgr.client.sender import Sender
from offsetmgr.client.session import Identity, Session
from offsetmgr.client.streams import ManagerMail
from offsetmgr.client.transport import Unreachable
from offsetmgr.client.wire import TOO_LARGE
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    ServiceError,
)
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.client.address import Address
    from offsetmgr.client.deadline import Deadline
    from offsetmgr.client.outbox import Batch
    from offsetmgr.client.session import FullError
    from offsetmgr.client.settle import FlushResult
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

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
        self.outbox = Outbox()
        rng = random.Random()  # noqa: S311 -- jitter is no secret
        self.pace = Pace(rng)
        self.room_pace = Pace(rng)
        """For new managers, while the service has no room for any."""
        self.left_pace = Pace(rng)
        """For what stops without an answer have left."""
        self.identity = Identity.new(name)
        self.session = Session(url, address, self.identity, self._heard)
        self.met = False
        """Whether the service, as it lives now, has said how long its lease is."""
        self.fenced: ClientFencedError | None = None
        self.first_event_id = ""
        """The service's newest event when it was met first: an event stream begins there."""
        self.link_error: OffsetManagerError | None = None
        """Why the service cannot be spoken to; None while it can."""
        self.closing = False
        self.ended = threading.Event()
        """No thread of this client has anything left to do."""
        self.idle = False
        """The sender waits for something to send."""
        self.end_at: float | None = None
        self._failure_log = FailureLog()
        self._mails: dict[ManagerKey, ManagerMail] = {}
        self._sender: threading.Thread | None = None
        self._reader: EventReader | None = None
        self._reading: threading.Thread | None = None

    # Managers and what is submitted to them

    def spawn(self, key: ManagerKey) -> ManagerMail:
        """Hold a manager for `key`; ManagerExistsError where this client has handed it out."""
        with self.lock:
            self._check_open()
            if key in self._mails:
                raise ManagerExistsError(str(key), f"this client ({self.identity.name})")
            mail = self._mails[key] = ManagerMail(key)
            self.outbox.add(key)
            self._poke()
            return mail

    def claim(self, keys: Iterable[ManagerKey]) -> None:
        """Hold managers for `keys`; ManagerExistsError, and none, where one is held already."""
        with self.lock:
            self._check_open()
            for key in keys:
                if key in self.outbox:
                    raise ManagerExistsError(str(key), f"this client ({self.identity.name})")
            for key in keys:
                self.outbox.add(key)
            self._poke()

    def adopt(self, key: ManagerKey) -> ManagerMail:
        """The mailboxes of a handle that came here by a fork."""
        with self.lock:
            return self._mails.get(key) or self.spawn(key)

    def submit(
        self, values: Mapping[ManagerKey, OffsetAndMetadata], *, rewind: bool = False
    ) -> None:
        """Make `values` the newest; those after one that is refused are taken all the same."""
        with self.lock:
            self._check_open()
            refused = [
                error
                for key, value in values.items()
                if (error := self.outbox.submit(key, value, rewind=rewind)) is not None
            ]
            self._poke()
        if refused:
            raise refused[0]

    def forget(self, keys: Collection[ManagerKey], result: FlushResult, *, answered: bool) -> None:
        """The managers of `keys` are stopped, with `result`; the service has `answered` so."""
        with self.lock:
            if not answered:
                self.outbox.leave(keys)
                self.wake.notify()
            for key in keys:
                held, mail = self.outbox.get(key), self._mails.pop(key, None)
                if mail is not None:
                    committed = None if held is None else held.committed
                    left = result.uncommitted.get(key)
                    mail.stop(StopResult(committed, *(left or ())))
            self.outbox.remove(keys)
            self.changed.notify_all()

    def unstop(self, keys: Iterable[ManagerKey]) -> None:
        """The stop of `keys` was broken off: they take offsets again, and can be stopped again."""
        with self.lock:
            self.outbox.unstop(keys)
            self.wake.notify()
            self.changed.notify_all()

    def deliver(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Tell the user of `key` what went wrong."""
        self._failure_log.failed(key, error, time.monotonic())
        self.heed(key, error)
        mail = self._mails.get(key)
        if mail is not None:
            mail.errors.put(error)

    def heed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """After a notice, or a refusal for good, Kafka may not get what was submitted last."""
        if isinstance(error, CoordinatorError) and not error.retriable:
            with self.lock:
                self.outbox.doubt(key)

    def lose(self, key: ManagerKey, count: int) -> None:
        """So many errors of `key` could not be told."""
        mail = self._mails.get(key)
        if mail is not None:
            mail.errors.lose(count)

    def committed(self, key: ManagerKey, value: OffsetAndMetadata, version: int = 0) -> None:
        """The coordinator has acknowledged `value`."""
        with self.lock:
            mail = self._mails.get(key)
            if self.outbox.committed(key, value, version) and mail is not None:
                mail.committed.put(value)  # here, lest a newer one overtakes it

    def released(self, key: ManagerKey) -> None:
        """The service has stopped the manager of `key` by itself."""
        with self.lock:
            self.outbox.released(key)
            self.wake.notify()

    def _check_open(self) -> None:
        if self.closing:
            raise ManagerStoppedError(f"client {self.identity.name} is closed; make a new one")

    # Threads

    def _poke(self) -> None:
        if self.idle:
            self.wake.notify()
        elif self._sender is None:
            self._sender = _start(Sender(self).run, f"offsetmgr-{self.identity.name}")

    def hurry(self) -> None:
        """Somebody waits: the sender tries at once, whatever pause it is in."""
        with self.lock:
            self.pace.hurry()
            self.room_pace.hurry()
            self.wake.notify()

    def listen(self) -> None:
        """Have events read, from the first call on."""
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
            self.changed.wait_for(lambda: not self.outbox.keys(), wait_s)

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

    def disown(self) -> None:
        """This is a fork's child: leave the connections to the parent's threads."""
        self.session.close()
        if self._reader is not None:
            self._reader.close()

    # Requests

    def post(
        self, path: str, body: bytes, deadline: Deadline, sequence: int | None = None
    ) -> dict[str, Any]:
        """As `Session.post`; nothing is sent once the client is fenced."""
        return self._watched(lambda: self.session.post(path, body, deadline, sequence), deadline)

    def post_batch(
        self, path: str, body: bytes, deadline: Deadline, batch: Batch
    ) -> dict[str, Any]:
        """Hand a batch over, to no other process of the service than it was made for.

        Another one may have been started since, and the one before it have committed newer offsets.
        """
        try:
            return self._watched(
                lambda: self.session.post(path, body, deadline, batch.sequence, batch.instance),
                deadline,
            )
        except ServiceError as error:
            if error.status == TOO_LARGE:
                with self.lock:
                    self.outbox.shrink(batch)
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

    def crowd(self, batch: Batch, error: FullError) -> bool:
        """The service is at a limit; whether it is one that new managers in `batch` may exceed."""
        now = time.monotonic()
        with self.lock:
            if not self.outbox.crowd(batch, error):
                return False
            self.room_pace.failed(now, error.retry_after_s)
        self._failure_log.failed(batch.items[0].key, error, now)
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

    def lost(self, error: OffsetManagerError) -> None:
        """The service cannot be spoken to; said once until it can again."""
        with self.lock:
            if self.ended.is_set():  # it was the close that broke it off
                return
            first = self.link_error is None
            self.link_error = error
        if first:
            log.warning("%s; offsets are held, and sent when it is back", error)

    def _heard(self, instance: str) -> None:
        with self.lock:
            was_lost, self.link_error = self.link_error, None
            now = time.monotonic()
            if self.pace.lapsed(now):
                self.outbox.renew()  # it has given our managers back meanwhile
                self.met = False
            self.pace.heard(now)
            if self.outbox.meet(instance):
                self.met = False
            if was_lost is not None or not self.met:
                self.wake.notify()
                self.changed.notify_all()
        if was_lost is not None:
            log.info("the service at %s answers again", self.session.url)


def _start(run: Callable[[], None], name: str) -> threading.Thread | None:
    """A daemon thread; None where the process can have no more: the next use tries again."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("no thread could be started (%s); offsets are held until one can", error)
        return None
    return thread
