"""Commits that are too large for the broker, sent in several requests, one after the other.

The broker writes the offsets of one request as one record batch of ``__consumer_offsets``, and
refuses them all where the batch is larger than that topic's ``max.message.bytes`` (1 MiB unless
configured).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors import Future
from offsetmgr.coordinator.base import CommitResult, Failure
from offsetmgr.coordinator.explain import NOT_SENT
from offsetmgr.errors import Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

BATCH_BYTES: Final = 500_000
"""The largest batch that is sent: half of what a broker takes unless configured otherwise."""

RECORD_BYTES: Final = 80
"""The most that a record takes beside its group, topic and metadata."""

_UNSENT: Final = Failure(NOT_SENT, "not sent, as the request before it in this commit failed")


def commit_in_batches(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    send: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Future[CommitResult]],
) -> Future[CommitResult]:
    """Commit ``offsets`` with as many calls of ``send`` as it takes, one at a time.

    ``send`` keeps the deadline.  Nothing is sent behind a failure of the whole group.
    """
    batches = _batches(group, offsets)
    failures: dict[TopicPartition, Failure] = {}
    committed: Future[CommitResult] = Future()

    def send_next() -> None:
        if batches:
            send(batches.pop(0)).add_done_callback(answered)
        else:
            committed.set(CommitResult(failures))

    def answered(done: Future[CommitResult]) -> None:
        found = done.get().failures
        failures.update(found)
        stop = next((f for f in found.values() if f.info.scope is Scope.GROUP), None)
        if stop is not None:
            rest = stop if stop.info.verdict is Verdict.REFUSED else _UNSENT
            failures.update({partition: rest for batch in batches for partition in batch})
            batches.clear()
        send_next()

    send_next()
    return committed


def _batches(
    group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[dict[TopicPartition, OffsetAndMetadata]]:
    batches: list[dict[TopicPartition, OffsetAndMetadata]] = []
    fixed, left = RECORD_BYTES + len(group.encode()), 0
    for partition, value in offsets.items():
        size = fixed + len(partition.topic) + len(value.metadata.encode())
        if size > left:
            batches.append({})
            left = BATCH_BYTES
        batches[-1][partition] = value
        left -= size
    return batches
