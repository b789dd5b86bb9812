"""The port to the group coordinator.

Behind it are Kafka, the same contract in memory with scripted faults, and a database in ``stores``.
All answer by futures and never block the calling thread.  A future's value always arrives by the
given deadline, and is never an exception: a failure is part of the answer, because a commit with
one refused partition is not a failed commit.

Callers are trusted: managers and the service check the values of users.  Here names and time-outs
are checked, because librdkafka ends the process on some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from actors import Future
from offsetmgr.answers import CommitResult as CommitResult
from offsetmgr.answers import Failure as Failure
from offsetmgr.answers import FenceCounts as FenceCounts
from offsetmgr.answers import FetchResult as FetchResult
from offsetmgr.answers import GroupMember as GroupMember
from offsetmgr.answers import PartitionLog as PartitionLog
from offsetmgr.answers import TopicLog as TopicLog
from offsetmgr.answers import TopicNames as TopicNames
from offsetmgr.codes import NOT_SENT, Scope, Verdict
from offsetmgr.text import listed, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_BATCH_BYTES: Final = 500_000
"""The largest batch: half of a broker's default limit."""

_RECORD_BYTES: Final = 80
"""The most that a record takes in addition to its group, topic and metadata."""


_FETCH_PARTITIONS: Final = 2_000
"""The partitions of one fetch.  All groups share a client for fetches: librdkafka keeps it for 9 ms
over so many, for 0.8 s over 20,000, and for longer than any request has over 60,000."""

_B = TypeVar("_B")
_R = TypeVar("_R")
_T = TypeVar("_T")
_A = TypeVar("_A", CommitResult, FetchResult)

_UNSENT: Final = Failure(NOT_SENT, "not sent, as the request before it failed")


class Coordinator(Protocol):
    """Kafka, as the managers and the service use it."""

    @property
    def fence(self) -> FenceCounts:
        """The groups of the fence; zeros without one."""
        return FenceCounts(0, 0)

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Read the committed offsets of ``partitions``, or all of the group's if None."""

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets``: in one request, or one after the other if the broker takes less.

        The caller leaves ``offsets`` as it is until it is answered.
        """

    def release(self, group: str) -> None:  # noqa: ARG002
        """Give up all resources of ``group``, which has no manager any more."""
        return

    def topic_ids(
        self, topics: Sequence[str], timeout_s: float
    ) -> Future[Mapping[str, str | Failure]]:
        """Read the ids of ``topics``; empty ones from a Kafka that has none."""

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """Read the log start offset and high watermark of all partitions of ``topics``.

        With ``at_ms`` (milliseconds since 1970, UTC) also the first offset of that time or later,
        with ``stable`` the last stable offset.
        """

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """Read the names of all topics, sorted."""

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """Return None if Kafka answers, else the reason why it does not."""

    def close(self, timeout: float) -> None:
        """Let requests under way end, then release the connections; within ``timeout`` seconds."""


def live_members(group: str, members: Sequence[GroupMember]) -> str:
    """Return the members in one line, for the ``detail`` of an UNKNOWN_MEMBER_ID."""
    names = [f"{visible(m.client_id, 100)}, host {visible(m.host, 100)}" for m in members]
    text = f"group {visible(group)} has live members ({listed(names)})"
    return f"{text}; commit to another group or stop them"


def or_fail(answer: Future[_R], callback: Callable[[_T], None]) -> Callable[[_T], None]:
    """Return ``callback``, with whatever it raises as the answer.

    Without an answer the group would stand still for good.
    """

    def call(argument: _T) -> None:
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the answer
            answer.set_exception(error)

    return call


def commit_in_batches(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    send: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Future[CommitResult]],
) -> Future[CommitResult]:
    """Commit ``offsets`` with as many calls of ``send`` as needed, one at a time.

    The broker writes the offsets of one request as one record batch of ``__consumer_offsets``, and
    refuses them all if it is larger than that topic's ``max.message.bytes`` (1 MiB by default).
    ``send`` keeps the deadline.  Nothing is sent behind a failure of the whole group.
    """
    batches = _batches(group, offsets)
    if len(batches) == 1:  # nearly always
        return send(offsets)
    return _one_by_one(batches, send, CommitResult.failed, lambda r: CommitResult(_failures(r)))


def fetch_in_batches(
    partitions: Sequence[TopicPartition],
    send: Callable[[Sequence[TopicPartition]], Future[FetchResult]],
) -> Future[FetchResult]:
    """Fetch ``partitions`` with as many calls of ``send`` as needed, one at a time; as above."""
    if len(partitions) <= _FETCH_PARTITIONS:
        return send(partitions)
    starts = range(0, len(partitions), _FETCH_PARTITIONS)
    batches = [partitions[start : start + _FETCH_PARTITIONS] for start in starts]

    def join(results: Sequence[FetchResult]) -> FetchResult:
        offsets = {where: value for each in results for where, value in each.offsets.items()}
        return FetchResult(offsets, _failures(results))

    return _one_by_one(batches, send, FetchResult.failed, join)


def _one_by_one(
    batches: list[_B],
    send: Callable[[_B], Future[_A]],
    failed: Callable[[_B, Failure], _A],
    join: Callable[[list[_A]], _A],
) -> Future[_A]:
    results: list[_A] = []
    answer: Future[_A] = Future()

    def send_next() -> None:
        if batches:
            send(batches.pop(0)).add_done_callback(or_fail(answer, answered))
        else:
            answer.set(join(results))

    def answered(done: Future[_A]) -> None:
        result = done.get()
        results.append(result)
        stop = next((f for f in result.failures.values() if f.info.scope is Scope.GROUP), None)
        if stop is not None:
            rest = stop if stop.info.verdict is Verdict.REFUSED else _UNSENT
            results.extend(failed(batch, rest) for batch in batches)
            batches.clear()
        send_next()

    send_next()
    return answer


def _failures(results: Iterable[CommitResult | FetchResult]) -> dict[TopicPartition, Failure]:
    return {where: failure for each in results for where, failure in each.failures.items()}


def _batches(
    group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[Mapping[TopicPartition, OffsetAndMetadata]]:
    fixed = _RECORD_BYTES + len(group.encode())
    sizes = [fixed + len(p.topic) + len(v.metadata.encode()) for p, v in offsets.items()]
    if 0 < sum(sizes) <= _BATCH_BYTES:
        return [offsets]
    batches: list[dict[TopicPartition, OffsetAndMetadata]] = []
    left = 0
    for (partition, value), size in zip(offsets.items(), sizes, strict=True):
        if size > left:
            batches.append({})
            left = _BATCH_BYTES
        batches[-1][partition] = value
        left -= size
    return list(batches)
