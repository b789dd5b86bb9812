"""What a client holds for the service, and what of it has to be sent; pure, no clock, no I/O.

Only the newest offset of a partition is held, until a newer one replaces it or its manager is
stopped: a service that was killed between taking an offset and committing it is given it again.
Each offset has a version, rising over all partitions; what the service has taken, refused and
committed is a version too, so nothing is compared by value.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from offsetmgr.client.held import Batch, Held, Item
from offsetmgr.client.left import Left
from offsetmgr.client.ready import Ready
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, OffsetRegressionError
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["BATCH_LIMIT", "PARK_S", "Batch", "Held", "Item", "Outbox"]

BATCH_LIMIT: Final = 1_000
"""Entries of one request at most."""

PARK_S: Final = 5.0
"""Pause before a partition is tried again that somebody else holds: their lease may lapse."""


class Outbox:
    """The partitions of one client.  Not safe between threads by itself."""

    def __init__(self) -> None:
        self._held: dict[ManagerKey, Held] = {}
        self._to_submit = Ready()
        self._to_register = Ready()
        self._crowded = Ready()
        """Their managers are new, and the service had no room for one when it was asked last."""
        self._no_room: OffsetManagerError | None = None
        """What it said then; None where it has made one since."""
        self._room = BATCH_LIMIT
        """So many of them are asked for at once: the service makes all of a request or none."""
        self._parked: dict[ManagerKey, float] = {}
        self._version = 0
        self._sequence = -1
        self.limit = BATCH_LIMIT
        """Entries of one request: fewer, once one was too large."""
        self.epoch = 0
        self.instance: str | None = None
        """The service process that was heard last."""
        self.left = Left()
        """What a stop without an answer has left with the service."""

    def __contains__(self, key: ManagerKey) -> bool:
        return key in self._held

    def get(self, key: ManagerKey) -> Held | None:
        """What is known of `key`; to be read only."""
        return self._held.get(key)

    @property
    def unsent(self) -> int:
        """How many partitions wait for a request, besides those that there is no room for."""
        return len(self._to_submit) + len(self._to_register)

    @property
    def is_full(self) -> bool:
        """Whether the service had no room for a new manager when it was asked last."""
        return self._no_room is not None

    @property
    def crowded(self) -> int:
        """How many partitions wait until the service has room for their managers."""
        return len(self._crowded)

    def no_room_for(self, held: Held) -> OffsetManagerError | None:
        """Why there is no manager for what is `held`; None where there is, or it may come."""
        return None if held.registered else self._no_room

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
            held = self._begin(key)
            self._queue(key, held)
        return held

    def _begin(self, key: ManagerKey) -> Held:
        self.left.discard(key)
        held = self._held[key] = Held(self._sequence)
        return held

    def remove(self, keys: Iterable[ManagerKey]) -> None:
        """Forget `keys`."""
        for key in keys:
            self._held.pop(key, None)
            self._parked.pop(key, None)
            self._unqueue(key)

    def leave(self, keys: Iterable[ManagerKey]) -> None:
        """`keys` are about to be forgotten, and the service was not heard to have stopped them."""
        for key in keys:
            held = self._held.get(key)
            if held is not None and (held.registered or held.asked):
                self.left.add(key)

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
            held = self._begin(key)
        elif held.stopping:
            return ManagerStoppedError(f"{key} is being stopped; spawn a new manager after that")
        newest = held.newest
        if newest is not None and not rewind:
            if value.offset < newest.offset:
                return OffsetRegressionError(str(key), value.offset, newest.offset)
            if value == newest and held.refused < held.version and not held.doubted:
                return None
        self._version += 1
        held.renew(value, self._version, rewind=rewind)
        if not held.parked:
            self._queue(key, held)
        return None

    def take(self, now: float, *, crowded: bool = True) -> Batch | None:
        """The next request, if there is one; its partitions are under way from now on.

        With `crowded`, the service is asked once more whether it has room for new managers: for
        these alone, whatever offsets wait for them, so that a refusal is about nothing else, and
        for half as many after each refusal, so that what room there is gets used.
        """
        self._unpark(now)
        if crowded and self._crowded:
            return self._batch(*self._crowded.take(min(self.limit, self._room)), submits=False)
        if self._to_register:
            return self._batch(*self._to_register.take(self.limit), submits=False)
        if self._to_submit:
            return self._batch(*self._to_submit.take(self.limit), submits=True)
        return None

    def take_these(self, keys: Collection[ManagerKey]) -> Batch:
        """A request for the first of `keys`, all submitted and of one group, before all else."""
        taken = list(islice(keys, self.limit))
        for key in taken:
            self._unqueue(key)
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
        submits = held.version > held.settled_version
        if not submits and (held.registered or held.parked or held.stopping):
            return
        if self._no_room is not None and not held.registered:
            self._unqueue(key)
            self._crowded.add(key)
        elif submits:
            self._to_register.discard(key)
            self._to_submit.add(key)
        else:
            self._to_register.add(key)

    def _unqueue(self, key: ManagerKey) -> None:
        self._to_submit.discard(key)
        self._to_register.discard(key)
        self._crowded.discard(key)

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
        has_room = False
        for item in batch.items:
            held = self._of(batch, item)
            error = refused.get(item.key.topic_partition)
            if held is None:
                if error is None and item.key not in self._held:
                    self.left.add(item.key)  # it came after the stop
                continue
            held.asked = False
            was_registered = held.registered
            if error is None:
                self._accepted(item, held)
            elif self._refused(item, held, error, now):
                news.append((item.key, error))
            has_room = has_room or (held.registered and not was_registered)
        if has_room and self._no_room is not None:
            self._make_room()
        return news

    def crowd(self, batch: Batch, error: OffsetManagerError) -> bool:
        """The service is at a limit, says `error`, and has done nothing of `batch`.

        Whether that may be for the new managers in it.  These, and all others that it does not
        have, then wait aside: what it has goes on as if there were none.
        """
        found = (self._of(batch, item) for item in batch.items)
        if batch.epoch != self.epoch or all(held is None or held.registered for held in found):
            return False
        if not batch.submits:
            self._room = max(1, len(batch.items) // 2)
        if self._no_room is None:
            self._no_room = error
            for key, held in self._held.items():
                if not held.registered:
                    self._queue(key, held)
        self._no_room = error
        return True

    def _make_room(self) -> None:
        """The service has made a manager: all that wait for one may be asked for as usual."""
        self._no_room = None
        self._room = min(BATCH_LIMIT, 2 * self._room)
        waiting, self._crowded = self._crowded, Ready()
        for key in waiting:
            self._queue(key, self._held[key])

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
        was_parked, held.parked = held.parked, False
        held.registered = True
        self._parked.pop(item.key, None)
        # Asked for as a manager alone, though an offset waited for it: that is in no queue.
        is_owed = item.value is None and item.version > held.settled_version
        if item.value is not None:
            held.error = None
            held.sent = max(held.sent, item.version)
            if item.version >= held.rewind_version:
                held.rewind = False
        if is_owed or was_parked:  # nor is what was submitted while it was parked
            self._queue(item.key, held)

    def _refused(self, item: Item, held: Held, error: OffsetManagerError, now: float) -> bool:
        told = held.error is not None and held.error.code == error.code
        held.error = error
        if isinstance(error, OffsetRegressionError):
            held.registered = True
            held.refused = max(held.refused, item.version)
            held.peak = max(held.peak, error.floor)
        else:
            held.registered = False
            self._unqueue(item.key)
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
            self.left = Left()  # it has nothing that it was not asked for again
        self.instance = instance
        return True

    def renew(self) -> None:
        """The service no longer knows this client: everything is sent again."""
        self.epoch += 1
        self._parked.clear()
        self._no_room, self._room, self._crowded = None, BATCH_LIMIT, Ready()
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
        """As `Held.commit`; True for what is not held, of which nothing newer is known."""
        held = self._held.get(key)
        return held is None or held.commit(value, version)

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
                if held.version <= held.settled_version:
                    self._crowded.discard(key)
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
