"""Claims of the partitions that a consumer is assigned."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from offsetmgr.backoff import Backoff
from offsetmgr.errors import OffsetManagerError
from offsetmgr.stores.base import as_store_error, checked_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from offsetmgr.stores import OffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


def claim(
    store: OffsetStore, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Claim ``partitions`` and return their committed offsets.

    Raises OffsetManagerError, whatever the store raises.
    """
    try:
        return checked_answer(store.claim(group, partitions), partitions)
    except BaseException as error:
        raise as_store_error(f"claim for group {group}", error) from error


class Claims:
    """Claims partitions in a thread of its own, so that no poll waits for the store.

    A failed claim is reported and retried with back-off until it succeeds or the partitions are
    dropped: no message of a partition may be delivered before.
    """

    def __init__(
        self, store: OffsetStore, group: str, failed: Callable[[OffsetManagerError, str], None]
    ) -> None:
        self._store = store
        self._group = group
        self._failed = failed
        self._changed = threading.Condition()
        self._wanted: dict[TopicPartition, object] = {}  # with a token of their assignment
        self._claimed: dict[TopicPartition, OffsetAndMetadata | None] = {}  # and not taken yet
        self._asked: frozenset[TopicPartition] = frozenset()  # by the claim under way
        self._running = False
        self._ended = threading.Event()

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to claim ``partitions``."""
        with self._changed:
            self._wanted.update(dict.fromkeys(partitions, object()))

    def take(self, timeout_s: float = 0.0) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return what was claimed since the last call; wait up to ``timeout_s`` for it."""
        if not (self._wanted or self._claimed):  # nearly always
            return {}
        with self._changed:
            if self._wanted and not self._running:
                self._start()
            self._changed.wait_for(lambda: self._claimed or not self._wanted, timeout_s)
            claimed, self._claimed = self._claimed, {}
            return claimed

    def drop(self, partitions: Collection[TopicPartition], timeout_s: float = 0.0) -> None:
        """Claim ``partitions`` no longer; release those that were claimed and not taken.

        Waits up to ``timeout_s`` for a claim under way, which could else end after their next
        owner's.
        """
        with self._changed:
            for each in partitions:
                self._wanted.pop(each, None)
            self._changed.wait_for(lambda: self._asked.isdisjoint(partitions), timeout_s)
            untaken = [each for each in partitions if each in self._claimed]
            for each in untaken:
                del self._claimed[each]
        self.release(untaken)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Give claimed partitions back; a failure is reported."""
        if partitions:
            try:
                self._store.release(self._group, partitions)
            except Exception as error:  # noqa: BLE001 -- whatever a store raises
                what = f"release for group {self._group}"
                self._failed(as_store_error(what, error), "could not give back partitions")

    def close(self, timeout_s: float) -> None:
        """Drop all partitions; wait up to ``timeout_s`` for a claim under way."""
        self._ended.set()
        with self._changed:
            self.drop([*self._wanted, *self._claimed], timeout_s)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"claims-{self._group}", daemon=True)
        with suppress(RuntimeError):  # no thread can be started; the next poll tries again
            thread.start()
            self._running = True

    def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            with self._changed:
                if self._ended.is_set() or not self._wanted:
                    self._running = False
                    return
                asked = self._wanted.copy()
                self._asked = frozenset(asked)
            committed: Mapping[TopicPartition, OffsetAndMetadata | None] | None = None
            try:
                committed = claim(self._store, self._group, list(asked))
            except OffsetManagerError as error:
                self._failed(error, "could not claim partitions; tries again")
            with self._changed:
                # What was dropped meanwhile, or assigned again, may have had another owner since.
                current = [each for each in asked if self._wanted.get(each) is asked[each]]
                if committed is not None:
                    for each in current:
                        del self._wanted[each]
                        self._claimed[each] = committed[each]
                self._asked = frozenset()
                self._changed.notify_all()
            if committed is None:
                self._ended.wait(backoff.failed())
            else:
                backoff.succeeded()
                self.release([each for each in asked if each not in current])
