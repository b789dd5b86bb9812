"""What a client holds for the service, and what of it has to be sent; pure, no clock, no I/O.

Only the newest offset of a partition is held, until a newer one replaces it or its manager is
stopped: a service that was killed between taking an offset and committing it is given it again.
Each offset has a version, rising over all partitions; what the service has taken, refused and
committed is a version too, so nothing is compared by value.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.client.ready import Ready
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, OffsetRegressionError
from offsetmgr.types import MAX_OFFSET, ManagerKey, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

BATCH_LIMIT: Final = 1_000
"""Entries of one request at most."""

PARK_S: Final = 5.0
"""Pause before a partition is tried again that somebody else holds: their lease may lapse."""

_ABOVE_ALL: Final = MAX_OFFSET + 1


class Item(NamedTuple):
    """One partition of a batch."""

    key: ManagerKey
    version: int
    value: OffsetAndMetadata | None
    """None where only a manager is asked for."""
    rewind: bool = False


class Batch(NamedTuple):
    """A request to be sent, and sent again as it is while nobody knows whether it arrived."""

    group: str
    items: tuple[Item, ...]
    submits: bool
    """Whether it carries offsets; otherwise it asks for managers."""
    sequence: int
    epoch: int
    """The outbox's epoch when it was made; the answer to an older one means nothing."""
    instance: str | None
    """The service process that was heard last then; None where none was."""


class Held:
    """What is known of one partition."""

    __slots__ = (
        "asked", "committed", "committed_version", "doubted", "error", "newest", "parked", "peak",
        "refused", "registered", "rewind", "rewind_version", "rewound_from", "sent", "since",
        "stopping", "version",
    )  # fmt: skip

    def __init__(self, since: int) -> None:
        self.since = since
        """Requests up to this sequence speak of an earlier manager of the partition."""
        self.newest: OffsetAndMetadata | None = None
        self.version = 0
        self.sent = 0
        """Newest version that the service, as it lives now, has taken."""
        self.refused = 0
        """Newest version that it refused for good."""
        self.registered = False
        self.asked = False
        """A request for it is under way: the service may have the manager."""
        self.parked = False
        """Held by another client: tried again at a slow pace, and told once."""
        self.stopping = False
        self.error: OffsetManagerError | None = None
        """Why the newest was refused; None where it was not."""
        self.committed: OffsetAndMetadata | None = None
        self.committed_version = 0
        self.doubted = False
        """Kafka may not have the newest, though the service took it: the same is no repetition."""
        self.rewind = False
        """The next request has to say that it may go back."""
        self.rewind_version = 0
        self.rewound_from = -1
        """The highest offset that may be committed while the newest lies below it on purpose:
        a service that forgot the rewind has to be told again.  -1: there is none."""
        self.peak = -1
        """The highest offset seen for this partition; -1: none yet."""

    @property
    def settled_version(self) -> int:
        """Everything up to this version needs no request of its own."""
        return self.version if self.parked else max(self.sent, self.refused)


class Outbox:
    """The partitions of one client.  Not safe between threads by itself."""

    def __init__(self) -> None:
        self._held: dict[ManagerKey, Held] = {}
        self._to_submit = Ready()
        self._to_register = Ready()
        self._parked: dict[ManagerKey, float] = {}
        self._version = 0
        self._sequence = -1
        self.limit = BATCH_LIMIT
        """Entries of one request: fewer, once one was too large."""
        self.epoch = 0
        self.instance: str | None = None
        """The service process that was heard last."""

    def __contains__(self, key: ManagerKey) -> bool:
        return key in self._held

    def get(self, key: ManagerKey) -> Held | None:
        """What is known of `key`; to be read only."""
        return self._held.get(key)

    @property
    def unsent(self) -> int:
        """How many partitions wait for a request."""
        return len(self._to_submit) + len(self._to_register)

    def keys(
        self, group: str | None = None, partitions: Collection[TopicPartition] | None = None
    ) -> list[ManagerKey]:
        """What is held of `group` and `partitions`; None stands for all."""
        if group is not None and partitions is not None:
            keys = [ManagerKey(group, *each) for each in partitions]
            return [key for key in keys if key in self._held]
        return [key for key in self._held if group is None or key.group == group]

    def add(self, key: ManagerKey) -> Held:
        """Hold `key` from now on; its manager will be asked for."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Held(self._sequence)
            self._to_register.add(key)
        return held

    def remove(self, keys: Iterable[ManagerKey]) -> None:
        """Forget `keys`."""
        for key in keys:
            self._held.pop(key, None)
            self._parked.pop(key, None)
            self._to_submit.discard(key)
            self._to_register.discard(key)

    # What is to be sent

    def submit(
        self, key: ManagerKey, value: OffsetAndMetadata, *, rewind: bool = False
    ) -> OffsetManagerError | None:
        """Make `value` the newest of `key`; or why not.

        OffsetRegressionError: it is lower than the newest, and no rewind.  ManagerStoppedError:
        the manager is being stopped.
        """
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Held(self._sequence)
        elif held.stopping:
            return ManagerStoppedError(f"{key} is being stopped; spawn a new manager after that")
        newest = held.newest
        if newest is not None and not rewind:
            if value.offset < newest.offset:
                return OffsetRegressionError(str(key), value.offset, newest.offset)
            if value == newest and held.refused < held.version and not held.doubted:
                return None
        self._version += 1
        held.version = self._version
        held.newest = value
        held.doubted = False
        if rewind:
            held.rewind = True
            held.rewind_version = self._version
            below = held.peak if held.peak >= 0 else _ABOVE_ALL
            held.rewound_from = max(held.rewound_from, below)
        elif value.offset >= held.rewound_from:
            held.rewound_from = -1
        held.peak = max(held.peak, value.offset)
        if not held.parked:
            self._queue(key, held)
        return None

    def take(self, now: float) -> Batch | None:
        """The next request, if there is one; its partitions are under way from now on."""
        self._unpark(now)
        if self._to_register:
            return self._batch(*self._to_register.take(self.limit), submits=False)
        if self._to_submit:
            return self._batch(*self._to_submit.take(self.limit), submits=True)
        return None

    def take_these(self, keys: Collection[ManagerKey]) -> Batch:
        """A request for the first of `keys`, all submitted and of one group, before all else."""
        taken = list(islice(keys, self.limit))
        for key in taken:
            self._to_submit.discard(key)
            self._to_register.discard(key)
        return self._batch(taken[0].group, taken, submits=True)

    def shrink(self, batch: Batch) -> None:
        """`batch` was too large for the service: those to come are smaller."""
        self.limit = min(self.limit, max(1, len(batch.items) // 2))

    def next_sequence(self) -> int:
        """The sequence of the next request that changes something."""
        self._sequence += 1
        return self._sequence

    def _batch(self, group: str, keys: Iterable[ManagerKey], *, submits: bool) -> Batch:
        items = []
        for key in keys:
            held = self._held[key]
            held.asked = True
            value = held.newest if submits else None
            items.append(Item(key, held.version, value, held.rewind))
        sequence = self.next_sequence()
        return Batch(group, tuple(items), submits, sequence, self.epoch, self.instance)

    def _queue(self, key: ManagerKey, held: Held) -> None:
        """Have `key` sent, where there is anything to send."""
        if held.version > held.settled_version:
            self._to_register.discard(key)
            self._to_submit.add(key)
        elif not held.registered and not held.parked and not held.stopping:
            self._to_register.add(key)

    def parked_until(self) -> float | None:
        """When the next parked partition is to be tried again."""
        return next(iter(self._parked.values()), None)

    def _unpark(self, now: float) -> None:
        # All were parked for equally long, so the first in is the first out.
        while self._parked:
            key, until = next(iter(self._parked.items()))
            if until > now:
                return
            del self._parked[key]
            held = self._held[key]
            held.parked = False
            self._queue(key, held)

    # What the service said

    def accept(
        self, batch: Batch, refused: Mapping[TopicPartition, OffsetManagerError], now: float
    ) -> list[tuple[ManagerKey, OffsetManagerError]]:
        """The service answered `batch`; refusals that its user was not told yet."""
        if batch.epoch != self.epoch:
            return []  # all of it waits already, for the service as it lives now
        news = []
        for item in batch.items:
            held = self._of(batch, item)
            if held is None:
                continue
            held.asked = False
            error = refused.get(item.key.topic_partition)
            if error is None:
                self._accepted(item, held)
            elif self._refused(item, held, error, now):
                news.append((item.key, error))
        return news

    def _of(self, batch: Batch, item: Item) -> Held | None:
        """What `batch` speaks of; None where it was stopped, and maybe spawned anew, since."""
        held = self._held.get(item.key)
        return held if held is not None and batch.sequence > held.since else None

    def withdraw(self, batch: Batch) -> None:
        """`batch` did not reach the service, and is not repeated."""
        for item in batch.items:
            held = self._of(batch, item)
            if held is not None:
                held.asked = False
        self.give_back(batch)

    def give_back(self, batch: Batch) -> None:
        """`batch` is not repeated: what of it is still wanted waits again."""
        for item in batch.items:
            held = self._held.get(item.key)
            if held is not None:
                self._queue(item.key, held)

    def _accepted(self, item: Item, held: Held) -> None:
        held.registered = True
        held.parked = False
        self._parked.pop(item.key, None)
        if item.value is None:
            return
        held.error = None
        held.sent = max(held.sent, item.version)
        if item.version >= held.rewind_version:
            held.rewind = False

    def _refused(self, item: Item, held: Held, error: OffsetManagerError, now: float) -> bool:
        told = held.error is not None and held.error.code == error.code
        held.error = error
        if isinstance(error, OffsetRegressionError):
            held.registered = True
            held.refused = max(held.refused, item.version)
            held.peak = max(held.peak, error.floor)
        else:
            held.registered = False
            self._to_submit.discard(item.key)
            if not held.parked:
                held.parked = True
                self._parked[item.key] = now + PARK_S
        return not told

    def reject(
        self, batch: Batch, error: OffsetManagerError, index: int | None
    ) -> list[tuple[ManagerKey, OffsetManagerError]]:
        """The service calls the request bad, by its entry `index` or (None) as a whole.

        Sending the same again is pointless; the entries beside the bad one are sent without it.
        """
        bad = batch.items if index is None else batch.items[index : index + 1] or batch.items
        news = []
        for item in bad:
            held = self._of(batch, item)
            if held is None:
                continue
            if held.error is None or held.error.code != error.code:
                news.append((item.key, error))
            held.error = error
            held.registered = True  # there is nothing to ask for until something is submitted
            held.refused = max(held.refused, item.version)
        self.give_back(batch)
        return news

    def meet(self, instance: str) -> bool:
        """An answer came from `instance`; whether that is another one than before."""
        if instance == self.instance:
            return False
        if self.instance is not None:
            self.renew()
        self.instance = instance
        return True

    def renew(self) -> None:
        """The service no longer knows this client: everything is sent again."""
        self.epoch += 1
        self._parked.clear()
        for key, held in self._held.items():
            held.asked = False
            self._forgotten(key, held)

    def doubt(self, key: ManagerKey) -> None:
        """Somebody else changed what Kafka has of `key`, or a commit of it was refused for good."""
        held = self._held.get(key)
        if held is not None:
            held.doubted = True

    def released(self, key: ManagerKey) -> None:
        """The service has stopped the manager of `key` by itself: it is asked for again."""
        held = self._held.get(key)
        if held is not None and held.registered and not held.stopping:
            self._forgotten(key, held)

    def lost(self, keys: Iterable[ManagerKey]) -> None:
        """The service has no managers for `keys`, though they were asked for: they are again."""
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                self._forgotten(key, held)

    def _forgotten(self, key: ManagerKey, held: Held) -> None:
        held.sent = 0
        if isinstance(held.error, OffsetRegressionError):
            # The higher offset that stood against it may have been lost with the service.
            held.refused = 0
        held.registered = held.parked = False
        held.rewind = held.rewind or held.rewound_from >= 0
        self._queue(key, held)

    def committed(self, key: ManagerKey, value: OffsetAndMetadata, version: int = 0) -> bool:
        """The coordinator has `value`, and with it all versions up to `version`.

        Without a version (an event), the newest is meant if it looks the same; not after a
        rewind, when an event may still tell of the time before.  False where the answer to a
        newer request has overtaken this one.
        """
        held = self._held.get(key)
        if held is None:
            return True
        if 0 < version < held.committed_version:
            return False
        if not version and value == held.newest and held.rewound_from < 0:
            version = held.version
        if version or held.committed_version < held.version or not held.version:
            held.committed = value
        held.committed_version = max(held.committed_version, version)
        held.peak = max(held.peak, value.offset)
        if version and version >= held.rewind_version:
            held.rewound_from = -1
        return True

    def passed_over(
        self, key: ManagerKey, value: OffsetAndMetadata, version: int
    ) -> OffsetRegressionError | None:
        """Set where Kafka has `value`, for which the service has dropped ours up to `version`."""
        held = self._held.get(key)
        if held is None or held.newest is None or held.rewind_version > version:
            return None
        if value.offset <= held.newest.offset:
            return None
        return OffsetRegressionError(str(key), held.newest.offset, value.offset)

    def stop(self, keys: Iterable[ManagerKey]) -> list[ManagerKey]:
        """Take no more offsets for `keys`; those of them that were not being stopped before."""
        stopped = []
        for key in keys:
            held = self._held.get(key)
            if held is not None and not held.stopping:
                held.stopping = True
                self._to_register.discard(key)
                stopped.append(key)
        return stopped

    def unstop(self, keys: Iterable[ManagerKey]) -> None:
        """`keys` are not being stopped any more; the service may have stopped some of them."""
        for key in keys:
            held = self._held.get(key)
            if held is not None:
                held.stopping = False
                if not held.parked:
                    self._forgotten(key, held)
