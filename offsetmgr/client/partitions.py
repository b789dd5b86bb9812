"""The partitions of a client, and what of them has to be sent; pure, no clock, no I/O.

Only the newest offset of a partition is held, until its manager is stopped, so that it can be sent
again to a restarted service.  Each offset has a version, rising over all partitions; what the
service has taken, refused and committed is a version too.

A signal handler may interrupt a method anywhere and call others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import (
    CoordinatorError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
    ServiceError,
)
from offsetmgr.mailboxes import Mailbox
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

BATCH_LIMIT: Final = 1_000

FORMER_LIMIT: Final = 100_000
"""Stopped managers whose topic ids are remembered."""

FORMER_ID: Final = "a former one"
"""Stands for the id of a topic that was recreated since."""

ERROR_LIMIT: Final = 64
"""Unread errors a manager keeps; older ones are dropped and counted."""


class Item(NamedTuple):
    key: ManagerKey
    version: int
    """Of the value, or of the manager where there is none."""
    value: OffsetAndMetadata | None
    """None if only a manager is asked for."""
    rewind: bool = False


class Batch(NamedTuple):
    """One request's partitions, all of one group."""

    group: str
    items: tuple[Item, ...]
    registration: int
    """The answer counts for no other."""
    instance: str | None
    """The process of the service that may take it; None for any."""
    topic_ids: Mapping[str, str] = MappingProxyType({})
    """The ids of the topics that the offsets were read from, where they are known."""

    @property
    def submits(self) -> bool:
        """True if it carries offsets; otherwise it asks for managers."""
        return self.items[0].value is not None


class Mailboxes:
    """The mailboxes of one manager, and its end."""

    def __init__(self, key: ManagerKey) -> None:
        self.committed = Mailbox[OffsetAndMetadata](key, 1)
        self.errors = Mailbox[OffsetManagerError](key, ERROR_LIMIT)
        self.result: StopResult | None = None
        """The stop's; None while the manager lives."""
        self._newest: OffsetAndMetadata | None = None
        self._last_error = ""

    def tell_committed(self, value: OffsetAndMetadata) -> None:
        if value != self._newest:  # else the stream of events has reconnected
            self._newest = value
            self.committed.put(value)

    def tell_error(self, error: OffsetManagerError) -> None:
        self._last_error = str(error)
        self.errors.put(error)

    def stop(self, result: StopResult) -> None:
        self.result = result
        # Its event may come after the answer to the stop, or never.
        error = result.error
        is_known = str(error) == self._last_error
        if error is not None and not isinstance(error, OffsetTimeoutError) and not is_known:
            self.tell_error(error)
        self.committed.close()
        self.errors.close()


@dataclass(slots=True, eq=False)
class ClientPartition:
    """One partition of the client; version 0 stands for none."""

    since: int
    """Version of the manager: what has a lower one is about an earlier manager."""
    mail: Mailboxes | None = None
    """The handle reads them; None without one."""
    newest: OffsetAndMetadata | None = None
    version: int = 0
    sent: int = 0
    """Newest version that the service, as it lives now, has taken."""
    refused: int = 0
    """Newest version that it refused for good."""
    rewind_version: int = 0
    """Of the last rewind.  Offsets are sent as rewinds until it is taken, and after a restart of
    the service until it is committed."""
    committed: OffsetAndMetadata | None = None
    committed_version: int = 0
    error: OffsetManagerError | None = None
    registered: bool = False
    deferred: bool = False
    """Another client has the manager, or the service has no room for it: asked again later."""
    stopper: object | None = None
    """The call that stops it: the last one that wants to.  No other asks for it, or forgets it."""
    topic_id: str = ""
    """The id that the topic of the newest had when it was submitted; empty if it is not known."""
    is_former: bool = False
    """The topic was recreated since: lower offsets are of the new one."""
    must_resend: bool = False
    """Kafka may not have the newest, though the service took it: the same is not a repetition."""

    @property
    def stopping(self) -> bool:
        return self.stopper is not None

    @property
    def settled_version(self) -> int:
        """Everything up to this version needs no request of its own."""
        return self.version if self.deferred else max(self.sent, self.refused)

    @property
    def is_unsent(self) -> bool:
        return self.version > self.settled_version

    @property
    def rewinds(self) -> bool:
        """True if the newest is sent as a rewind."""
        return self.rewind_version > max(self.sent, self.committed_version)

    @property
    def needs_manager(self) -> bool:
        """True if the manager is to be asked for by itself, as there is no offset to send."""
        asked = self.registered or self.deferred or self.stopping
        return not (asked or self.is_unsent)

    def renumber(self, since: int, version: int) -> None:
        """Take higher versions, so that a stop that the service has done does not hold it back."""
        self.since = since
        if self.version == 0:
            return
        if self.committed_version < self.rewind_version == self.version:
            self.rewind_version = version
        if self.refused == self.version:
            self.refused = version
        self.version = version

    def submit(
        self, value: OffsetAndMetadata, version: int, topic_id: str, *, rewind: bool
    ) -> None:
        # In this order a signal handler may have it sent at any point: the last line makes it new.
        self.newest = value
        self.topic_id = topic_id
        self.must_resend = self.is_former = False
        if rewind:
            self.rewind_version = version
        self.version = version

    def recreated(self, error: CoordinatorError) -> None:
        """Note that the topic was recreated: the offset of ``error`` will never be committed."""
        self.is_former = True
        if self.newest is not None and self.newest.offset == error.offset:
            self.error, self.refused = error, self.version
            self.committed, self.committed_version = None, 0
            self.topic_id = self.topic_id or FORMER_ID

    def commit(self, value: OffsetAndMetadata, version: int) -> None:
        """Note that Kafka has `value`, and with it all versions up to `version`."""
        if version >= self.committed_version:
            self.committed, self.committed_version = value, version

    def commit_seen(self, value: OffsetAndMetadata) -> None:
        """Note an event, which has no version, if it is about the newest.

        It is if it looks the same and no rewind is under way.
        """
        if value == self.newest and self.rewind_version <= self.committed_version:
            self.commit(value, self.version)

    def superseded_by(
        self, key: ManagerKey, value: OffsetAndMetadata, version: int
    ) -> OffsetRegressionError | None:
        """Return an error where Kafka has `value`, a higher one than ours of up to `version`."""
        if not version or self.newest is None or self.rewind_version > version:
            return None
        if value.offset <= self.newest.offset:
            return None
        return OffsetRegressionError(str(key), self.newest.offset, value.offset)


def take_group(queue: dict[ManagerKey, None], limit: int) -> list[ManagerKey]:
    """Remove up to `limit` partitions from `queue`, of the group that is first."""
    group = next(iter(queue)).group
    taken = list(islice((key for key in queue if key.group == group), limit))
    for key in taken:
        del queue[key]
    return taken


class Partitions:
    """The partitions of one client.  Not safe between threads by itself."""

    def __init__(self) -> None:
        self._held: dict[ManagerKey, ClientPartition] = {}
        self._waiting: dict[ManagerKey, None] = {}
        """Those with something to send, and some that had until they were stopped."""
        self._version = self._last_stop = 0
        self._topic_ids: dict[str, str] = {}
        self._former: dict[ManagerKey, tuple[str, int, bool]] = {}
        """Of those that are held no more: the topic's id and the offset of the newest, and whether
        the topic was recreated since."""
        self._asked: set[str] = set()
        """Topics whose ids were not in the first answer about them."""
        self.limit = BATCH_LIMIT
        """Entries of one request: fewer, once one was too large."""
        self.instance: str | None = None
        """The process of the service; None if none was heard yet."""
        self.registration = 0
        """Rises when that process changes, or the lease has lapsed: then all is sent again."""
        self.pending_stops: dict[ManagerKey, None] = {}
        """Managers that were stopped without an answer; some may be held again."""

    def __contains__(self, key: ManagerKey) -> bool:
        return key in self._held

    def get(self, key: ManagerKey) -> ClientPartition | None:
        """Return what is known of `key`; to be read only."""
        return self._held.get(key)

    def mails(self) -> list[Mailboxes]:
        return [held.mail for held in list(self._held.values()) if held.mail is not None]

    @property
    def unsent(self) -> int:
        return len(self._waiting)

    def may_exist(self, held: ClientPartition) -> bool:
        return self.instance is not None and not held.deferred

    def keys(
        self, group: str | None = None, partitions: Collection[TopicPartition] | None = None
    ) -> list[ManagerKey]:
        """Return what is held of `group` and `partitions`; None stands for all."""
        if group is not None and partitions is not None:
            keys = [ManagerKey(group, *each) for each in partitions]
            return [key for key in keys if key in self._held]
        return [key for key in list(self._held) if group is None or key.group == group]

    def add(self, key: ManagerKey) -> ClientPartition:
        """Hold `key`; its manager will be asked for."""
        held = self._held.get(key)
        if held is None:
            held = ClientPartition(self.next_version())
            self.hold(key, held)
        return held

    def hold(self, key: ManagerKey, held: ClientPartition) -> None:
        """Hold `key`, which is not held yet, as `held`; its manager will be asked for."""
        self._held[key] = held
        self._queue(key, held)

    def remove(self, key: ManagerKey, *, answered: bool) -> None:
        """Forget `key`; unless the service has `answered` its stop, it is asked to stop it."""
        held = self._held.get(key)  # None where a signal handler was quicker
        if held is not None and not answered and self.may_exist(held):
            self.pending_stops[key] = None
        if held is not None and held.newest is not None and held.topic_id:
            if len(self._former) >= FORMER_LIMIT:
                self._former.clear()
            self._former[key] = held.topic_id, held.newest.offset, held.is_former
        self._held.pop(key, None)

    # What is to be sent

    def submit(
        self, key: ManagerKey, value: OffsetAndMetadata, *, rewind: bool = False
    ) -> OffsetManagerError | None:
        """Make `value` the newest of `key`; or return why not."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = ClientPartition(self.next_version())
        elif held.stopping:
            return ManagerStoppedError(f"{key} is being stopped; spawn a new manager after that")
        newest = held.newest
        if newest is not None and not rewind:
            if value.offset < newest.offset and not held.is_former:
                return OffsetRegressionError(str(key), value.offset, newest.offset)
            if value == newest and held.refused < held.version and not held.must_resend:
                return None
        # Before it is new, so that a signal handler in between has it sent, and after it.
        self._waiting[key] = None
        topic_id = self._topic_id_of(key, value, held, rewind=rewind)
        held.submit(value, self.next_version(), topic_id, rewind=rewind)
        self._waiting[key] = None
        if self._held.get(key) is not held:  # a signal handler was quicker
            return ManagerStoppedError(f"{key} was stopped before it took {value.offset}")
        return None

    def _topic_id_of(
        self, key: ManagerKey, value: OffsetAndMetadata, held: ClientPartition, *, rewind: bool
    ) -> str:
        """Return the id of the topic that `value` was read from, empty if it is not known."""
        newest = held.newest
        former_id, last, is_former = self._former.pop(key, ("", -1, False))
        if newest is not None:
            last = newest.offset
        if value.offset < last or (rewind and newest is None):
            # It may be the first of a recreated topic that nobody else has noticed yet, and what
            # follows is of that one, too.
            self._topic_ids.pop(key.topic, None)
            self._asked.discard(key.topic)
            return ""
        if newest is None:
            # Others of the topic may be of its new log already, and after a notice so is this one,
            # unless it repeats its last.
            own_id = "" if is_former and value.offset != last else former_id
        else:
            # A repetition is of the log that it was read from first, whatever the topic is now.
            own_id = held.topic_id if value.offset == last and not rewind else ""
        return own_id or self._topic_ids.get(key.topic, "")

    def take(self) -> Batch | None:
        """Return the next request, if there is one; its partitions are under way from now on."""
        while self._waiting:
            keys = take_group(self._waiting, self.limit)
            found = [(key, self._held[key]) for key in keys if key in self._held]
            items = [Item(key, held.since, None) for key, held in found if held.needs_manager]
            unsent = [(key, held) for key, held in found if held.is_unsent]
            if items:  # managers first
                self._waiting |= dict.fromkeys(key for key, _ in unsent)
                unsent = []
            topic_ids: dict[str, str] = {}
            for key, held in unsent:
                if topic_ids.setdefault(key.topic, held.topic_id) == held.topic_id:
                    items.append(Item(key, held.version, held.newest, held.rewinds))
                else:  # of a topic that was recreated in between: in a request of its own
                    self._waiting[key] = None
            if items:
                named = {topic: topic_id for topic, topic_id in topic_ids.items() if topic_id}
                group, of_now = keys[0].group, (self.registration, self.instance)
                return Batch(group, tuple(items), *of_now, named)
        return None

    def next_version(self) -> int:
        self._version += 1
        return self._version

    def stop_version(self) -> int:
        """Return the version of a stop: higher than what its managers have now."""
        self._last_stop = self.next_version()
        return self._last_stop

    def _queue(self, key: ManagerKey, held: ClientPartition) -> None:
        if held.is_unsent or held.needs_manager:
            self._waiting[key] = None

    def retry_deferred(self) -> None:
        """Ask again for the managers that were refused: they may be free by now."""
        for key, held in list(self._held.items()):
            if held.deferred:
                held.deferred = False
                self._queue(key, held)

    # Answers of the service

    def learn(self, topic_ids: Mapping[str, str]) -> None:
        """Note the ids of topics, also of those whose newest offset was taken under them."""
        if topic_ids.items() <= self._topic_ids.items():
            return
        self._topic_ids.update(topic_ids)
        for key, held in list(self._held.items()):
            topic_id = topic_ids.get(key.topic, "")
            if not held.topic_id and held.sent == held.version:
                held.topic_id = topic_id
            elif held.topic_id and topic_id and topic_id != held.topic_id:
                # A flush asks the service what became of it, which refuses it.
                held.is_former = True
                held.committed, held.committed_version = None, 0

    @property
    def lacks_ids(self) -> bool:
        """True if the id of a topic that was asked for is not known yet."""
        return not self._asked <= self._topic_ids.keys()

    def wants_ids(self, batch: Batch) -> bool:
        """Return True, once for each topic, if the id of one in ``batch`` is not known yet."""
        topics = {item.key.topic for item in batch.items} - self._topic_ids.keys() - self._asked
        self._asked |= topics
        return bool(topics) and batch.submits

    def accept(
        self,
        batch: Batch,
        refused: Mapping[ManagerKey, OffsetManagerError],
        topic_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> list[tuple[ManagerKey, OffsetManagerError]]:
        """Note the answer to `batch`; return the refusals that were not reported yet."""
        if batch.registration != self.registration:
            return []  # all of it waits already, for the service as it lives now
        self.limit = min(BATCH_LIMIT, self.limit + 1)
        news = []
        for item in batch.items:
            held = self._held.get(item.key)
            if held is None or item.version < held.since:
                continue  # stopped, and maybe spawned, since
            error = refused.get(item.key)
            if isinstance(error, ManagerStoppedError) and item.version < self._last_stop:
                # A stop of ours has overtaken it.
                self.lost([item.key], held.stopper)
                continue
            if error is not None:
                if self._refused(item, held, error):
                    news.append((item.key, error))
                continue
            held.registered = True
            if item.value is not None:
                held.error = None
                held.sent = max(held.sent, item.version)
                if not held.topic_id and held.sent == held.version:
                    held.topic_id = topic_ids.get(item.key.topic, "")
        self.learn(topic_ids)
        return news

    def give_back(self, batch: Batch) -> None:
        """`batch` is not repeated: what of it is still wanted waits again."""
        for item in batch.items:
            held = self._held.get(item.key)
            if held is not None:
                self._queue(item.key, held)

    def _refused(self, item: Item, held: ClientPartition, error: OffsetManagerError) -> bool:
        if item.version < held.sent:
            return False  # a newer one was taken before
        is_known = held.error is not None and held.error.code == error.code
        held.error = error
        if isinstance(error, CoordinatorError):
            held.recreated(error)
        if isinstance(error, (OffsetRegressionError, ServiceError, CoordinatorError)):
            held.registered = True  # there is nothing to ask for until something is submitted
            held.refused = max(held.refused, item.version)
        else:
            held.registered, held.deferred = False, True
        return not is_known

    def reject(
        self, batch: Batch, error: OffsetManagerError
    ) -> list[tuple[ManagerKey, OffsetManagerError]]:
        """Note that the request is bad, or too large; return the bad entry once it is found.

        Smaller requests show which entry it is.
        """
        if len(batch.items) > 1:
            self.limit = len(batch.items) // 2
            self.give_back(batch)
            return []
        return self.accept(batch, {batch.items[0].key: error})

    def meet(self, instance: str) -> bool:
        """An answer came from `instance`; return True if that is another one than before."""
        before, self.instance = self.instance, instance
        if before not in {None, instance}:
            self.renew()
            self.pending_stops.clear()  # it has nothing that it was not asked for again
        return instance != before

    def renew(self) -> None:
        """The service no longer knows this client: everything is sent again."""
        self.registration += 1
        self._asked.clear()
        for key, held in list(self._held.items()):
            self._forgotten(key, held)

    def lost(self, keys: Iterable[ManagerKey], stopper: object | None = None) -> list[ManagerKey]:
        """The service has no managers for `keys`; return those that are asked for again.

        If others than its `stopper` did that, a manager would outlive its stop.
        """
        again = []
        for key in keys:
            held = self._held.get(key)
            if held is not None and held.stopper is stopper:
                held.renumber(self.next_version(), self.next_version())
                self._forgotten(key, held)
                again.append(key)
        return again

    def _forgotten(self, key: ManagerKey, held: ClientPartition) -> None:
        held.sent = 0
        if isinstance(held.error, OffsetRegressionError):
            # The higher offset that stood against it may have been lost with the service.
            held.refused = 0
        held.registered = held.deferred = False
        self._queue(key, held)
