"""Commits that are too large for the broker, sent in several requests, one after the other.

The broker writes the offsets of one request as one record batch of ``__consumer_offsets``, and
refuses them all where the batch is larger than that topic's ``max.message.bytes`` (1 MiB unless
configured).  Kafka 4 answers UNKNOWN_SERVER_ERROR then, older ones INVALID_COMMIT_OFFSET_SIZE.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from actors import Future
from offsetmgr.coordinator.base import CommitResult, Failure
from offsetmgr.coordinator.explain import NOT_SENT
from offsetmgr.errors import Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

BATCH_BYTES: Final = 1_000_000
"""The largest batch that is sent: 5 % less than what a broker takes unless configured otherwise."""

RECORD_BYTES: Final = 80
"""The most that a record takes beside its group, topic and metadata."""

_TOO_LARGE_CODES: Final = frozenset({-1, 10, 18, 28})
"""UNKNOWN_SERVER_ERROR, which may say something else as well, MESSAGE_TOO_LARGE,
RECORD_LIST_TOO_LARGE and INVALID_COMMIT_OFFSET_SIZE."""

_UNSENT: Final = Failure(NOT_SENT, "not sent, as the request before it in this commit failed")


def commit_in_batches(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    send: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Future[CommitResult]],
) -> Future[CommitResult]:
    """Commit ``offsets`` with as many calls of ``send`` as it takes, one at a time.

    A batch that the broker finds too large is halved and sent again at once: it was answered, so
    what it may have written lies before what is written next.  ``send`` keeps the deadline.
    """
    fixed = RECORD_BYTES + len(group.encode())
    sizes = {p: fixed + len(p.topic) + len(v.metadata.encode()) for p, v in offsets.items()}
    commit = _Commit(offsets, sizes, send)
    commit.go_on()
    return commit.future


class _Commit:
    """One commit: a batch at a time, those with the smallest records first."""

    def __init__(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        sizes: Mapping[TopicPartition, int],
        send: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Future[CommitResult]],
    ) -> None:
        self.future: Future[CommitResult] = Future()
        self._offsets = offsets
        self._sizes = sizes
        self._send = send
        self._left = list(offsets)
        self._limit_bytes = BATCH_BYTES
        self._in_doubt: dict[TopicPartition, Failure] = {}
        """To be sent again, though the broker did not say that it wrote nothing."""
        self._failures: dict[TopicPartition, Failure] = {}

    def go_on(self) -> None:
        """Send the next batch, or answer if nothing is left."""
        if not self._left:
            self.future.set(CommitResult(self._failures))
            return
        batch = self._next_batch()
        sent = self._send({partition: self._offsets[partition] for partition in batch})
        sent.add_done_callback(partial(self._answered, batch))

    def _next_batch(self) -> list[TopicPartition]:
        """Take as much as the limit allows, and one partition at least."""
        if self._size(self._left) <= self._limit_bytes:
            batch, self._left = self._left, []
            return batch
        self._left.sort(key=self._sizes.__getitem__)
        count = total = 0
        for partition in self._left:
            total += self._sizes[partition]
            if count and total > self._limit_bytes:
                break
            count += 1
        batch, self._left = self._left[:count], self._left[count:]
        return batch

    def _answered(self, batch: list[TopicPartition], done: Future[CommitResult]) -> None:
        failures = done.get().failures
        too_large = {p: f for p, f in failures.items() if f.info.code in _TOO_LARGE_CODES}
        if len(too_large) > 1 and len(failures) == len(batch):  # a batch is refused as a whole
            self._halve(too_large)
        else:
            too_large = {}
        for partition in failures.keys() - too_large.keys():
            self._fail(partition, failures[partition])
        stop = next((f for f in failures.values() if f.info.scope is Scope.GROUP), None)
        if stop is not None and not too_large:
            rest = stop if stop.info.verdict is Verdict.REFUSED else _UNSENT
            for partition in self._left:
                self._fail(partition, rest)
            self._left = []
        self.go_on()

    def _halve(self, batch: Mapping[TopicPartition, Failure]) -> None:
        self._left[:0] = batch
        self._limit_bytes = min(self._limit_bytes, self._size(batch)) // 2
        for partition, failure in batch.items():
            if failure.info.verdict is Verdict.UNKNOWN:
                self._in_doubt[partition] = failure

    def _fail(self, partition: TopicPartition, failure: Failure) -> None:
        # What is known of the last request says nothing of the one before it.
        self._failures[partition] = self._in_doubt.get(partition, failure)

    def _size(self, partitions: Iterable[TopicPartition]) -> int:
        return sum(map(self._sizes.__getitem__, partitions))
