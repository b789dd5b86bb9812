"""Claims of the partitions that a consumer is assigned."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.backoff import Backoff
from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.stores.base import as_store_error, checked_answer
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from concurrent.futures import Future

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.stores import OffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

LATE_S: Final = 10.0
"""A store that has not answered for so long is reported."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


def no_answer(late_s: float) -> str:
    return f"the store has not answered for {late_s:g} s; it is waited for"


def claim(
    store: OffsetStore, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Claim ``partitions`` and return their committed offsets.

    Raises OffsetManagerError, whatever error the store raises.
    """
    try:
        return checked_answer(store.claim(group, [*partitions]), partitions)
    except Exception as error:
        raise as_store_error(f"claim for group {group}", error) from error


class Claims:
    """Claims partitions in the background, so that no poll waits for the store, and releases them.

    One claim is under way at a time.  A failed one is reported and retried with back-off until it
    succeeds or the partitions are dropped: no message of a partition may be delivered before.  It
    is retried in halves, so that a partition that cannot be claimed holds up no other.  Releases
    are made in their order, and before the next claim.  For one thread at a time.
    """

    def __init__(
        self, store: OffsetStore, group: str, report: Callable[[OffsetManagerError, str], None]
    ) -> None:
        self._store = store
        self._group = group
        self._report = report
        self._wanted: dict[TopicPartition, None] = {}  # in the order in which they are asked for
        self._most: int | None = None  # partitions of the next question; None for all
        self._asked: set[TopicPartition] = set()  # by the question, and wanted ever since
        self._stale: set[TopicPartition] = set()  # by the question, and dropped since
        self._question: Question[dict[TopicPartition, OffsetAndMetadata | None]] | None = None
        self._release: Question[None] | None = None  # under way
        self._due_s = 0.0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to claim ``partitions``."""
        self._wanted.update(dict.fromkeys(partitions))

    def take(self, timeout_s: float = 0.0) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return what was claimed since the last call; wait up to ``timeout_s`` for it."""
        if self._question is None and self._wanted and time.monotonic() >= self._due_s:
            if not self._released(timeout_s):
                return {}
            self._asked = set(islice(self._wanted, self._most))
            self._question = Question(partial(claim, self._store, self._group, [*self._asked]))
        question = self._question
        if question is None or not self._is_answered(question, "claim", timeout_s):
            return {}
        claimed, stale = self._asked, self._stale
        self._question, self._asked, self._stale = None, set(), set()
        failure = question.answer.exception()
        if failure is not None:
            self._due_s = time.monotonic() + self._backoff.failed()
            error = as_store_error(f"claim for group {self._group}", failure)
            self._report(error, "could not claim partitions; tries again")
            self._most = max(1, len(claimed) // 2)
            for each in claimed:
                self._wanted[each] = self._wanted.pop(each)  # the others come first
            return {}
        self._backoff.succeeded()
        self._most = None
        self._forget(claimed)
        # What was dropped meanwhile may have had another owner since, also if it is wanted again.
        self.release(stale)
        committed = question.result()
        return {each: committed[each] for each in claimed}

    def drop(self, partitions: Collection[TopicPartition], timeout_s: float = 0.0) -> None:
        """Claim ``partitions`` no longer; release those that were claimed and not taken.

        Waits up to ``timeout_s`` for a claim under way, which could else end after their next
        owner's.
        """
        self._forget(partitions)
        stale = self._asked.intersection(partitions)
        if self._question is not None and stale:
            self._asked -= stale
            if not self._question.wait(timeout_s):
                self._stale |= stale
            elif self._question.answer.exception() is None:
                self.release(stale, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Drop all partitions; wait up to ``timeout_s`` for a claim under way."""
        self.drop([*self._wanted], timeout_s)
        if self._question is not None and self._stale:
            self._question.answer.add_done_callback(self._release_late)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._wanted.pop(each, None)

    def _release_late(self, answer: Future[dict[TopicPartition, OffsetAndMetadata | None]]) -> None:
        if answer.exception() is None:
            self.release(self._stale)

    def release(self, partitions: Collection[TopicPartition], timeout_s: float = 0.0) -> None:
        """Give claimed partitions back; wait up to ``timeout_s`` for it.  A failure is reported."""
        if partitions:
            former = None if self._released() else self._release

            def work() -> None:
                if former is not None:
                    former.answer.exception()
                self._store.release(self._group, partitions)

            self._release = Question(work)
            self._release.answer.add_done_callback(self._check_release)
            if timeout_s and not self._release.wait(timeout_s):
                self._report_late("release", timeout_s)

    def _check_release(self, answer: Future[None]) -> None:
        if (error := answer.exception()) is not None:
            what = f"release for group {self._group}"
            self._report(as_store_error(what, error), "could not give back partitions")

    def _released(self, timeout_s: float = 0.0) -> bool:
        """Return True once no release is under way; wait up to ``timeout_s`` for it."""
        return self._release is None or self._is_answered(self._release, "release", timeout_s)

    def _is_answered(self, question: Question[Any], what: str, timeout_s: float) -> bool:
        """Wait for the store up to ``timeout_s``; report it if it takes long."""
        answered = question.wait(timeout_s)
        if not answered and time.monotonic() - question.asked_at_s > LATE_S:
            self._report_late(what, LATE_S)
        return answered

    def _report_late(self, what: str, late_s: float) -> None:
        late = OffsetTimeoutError(f"{what} for group {self._group}: {no_answer(late_s)}")
        self._report(late, "the store does not answer")
