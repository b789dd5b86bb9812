"""The steps of a group's commits, its offsets at a past time, and the causes of deleted offsets.

An offset belongs to one log: those of a deleted or recreated topic must not be restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from offsetmgr.admin.reset import Target
from offsetmgr.admin.times import time_before, time_text
from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.errors import does_not_exist
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.kafka.log_reader import NextRecord
    from offsetmgr.types import PartitionRange


HISTORY_FIELDS: Final = ("time", "topic", "partition", "from", "to", "metadata", "change", "cause")


class Move(str, Enum):
    """The change of a partition's committed offset by one commit."""

    FIRST = "first"
    """No older record is left, so it is not known what stood before."""
    FORWARD = "forward"
    SAME = "same"
    BACKWARD = "backward"
    DELETED = "deleted"
    """The offset expired or was deleted."""
    HIDDEN = "hidden"
    """The offset that is committed now, by a commit that cannot be read, at an unknown time."""


class Cause(str, Enum):
    """The cause of a deletion, or of a hidden commit, in words."""

    TOPIC_DELETED = "the topic was deleted"
    TOPIC_RECREATED = "the topic was recreated"
    OTHER = "it expired, or somebody deleted it"
    TRANSACTION = "an open transaction hides its newest commits; kafka-transactions aborts it"


Causes: TypeAlias = Mapping["CommitStep", Cause | OffsetManagerError]
"""The causes of deletions and hidden commits; an error where the log that tells it is unread."""
_LOG_ENDED: Final = frozenset({Cause.TOPIC_DELETED, Cause.TOPIC_RECREATED})
"""The log ended to which the offset belongs: it must not be restored."""


class CommitStep(NamedTuple):
    """A commit of a partition, and what stood before it."""

    at_s: float
    partition: TopicPartition
    before: int | None
    """None where nothing was committed, or nothing is known of it."""
    after: int | None
    """None where the offset was deleted."""
    metadata: str
    move: Move


def steps(
    records: Iterable[CommitRecord],
    committed: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({}),
    now_s: float = 0.0,
    since_s: float = 0.0,
    topic: str | None = None,
    partition: int | None = None,
) -> Iterator[CommitStep]:
    """Yield the steps of one group, in the order of the log.

    Only those from ``since_s`` on, of ``topic`` and of ``partition``; None stands for all.  What
    was ``committed`` before the log was read, and is not in it, follows as of ``now_s``: a log is
    read up to its first open transaction, of whatever group.
    """
    last: dict[TopicPartition, int | None] = {}
    hidden = {where: value.offset for where, value in committed.items()}
    for record in records:
        where = record.key.topic_partition
        before = last.get(where)
        if record.at_s >= since_s and _is_in(where, topic, partition):
            move = _move(before, record.offset, first=where not in last)
            yield CommitStep(record.at_s, where, before, record.offset, _metadata(record), move)
        last[where] = record.offset
        if record.offset == hidden.get(where, -1):
            del hidden[where]
    for where, offset in hidden.items():
        if _is_in(where, topic, partition):
            text = committed[where].metadata
            yield CommitStep(now_s, where, last.get(where), offset, text, Move.HIDDEN)


def _is_in(where: TopicPartition, topic: str | None, partition: int | None) -> bool:
    return topic in {None, where.topic} and partition in {None, where.partition}


def history_report(
    group: str,
    shown: Sequence[CommitStep],
    causes: Causes = MappingProxyType({}),
) -> dict[str, Any]:
    """Return steps as JSON has them, with the ``causes`` of deletions.

    ``undo_to`` is the time just before the last step that went backwards or deleted an offset; None
    where none did.  What a partition did before its topic was deleted cannot be undone.
    """
    undo: CommitStep | None = None
    ended: set[TopicPartition] = set()
    for step in reversed(shown):
        if causes.get(step) in _LOG_ENDED:
            ended.add(step.partition)
        elif step.move in {Move.BACKWARD, Move.DELETED} and step.partition not in ended:
            undo = step
            break
    texts = {
        step: cause.value if isinstance(cause, Cause) else f"not known: {cause}"
        for step, cause in causes.items()
    }
    rows = []
    for step in shown:
        row = time_text(step.at_s), *step[1], *step[2:5], step.move.value, texts.get(step, "")
        rows.append(dict(zip(HISTORY_FIELDS, row, strict=True)))
    undo_to = None if undo is None else time_before(undo.at_s)
    return {"group": group, "undo_to": undo_to, "steps": rows}


def _metadata(record: CommitRecord) -> str:
    """Return it without the NUL that confluent-kafka's consumers put behind it."""
    return record.metadata.removesuffix("\0")


def _move(before: int | None, after: int | None, *, first: bool) -> Move:
    if after is None:
        return Move.DELETED
    if first:
        return Move.FIRST
    if before is None or after > before:
        return Move.FORWARD
    return Move.SAME if after == before else Move.BACKWARD


def targets_at(
    steps: Iterable[CommitStep],
    at_s: float,
    time: str,
    causes: Causes = MappingProxyType({}),
) -> dict[TopicPartition, Target]:
    """Return the targets that take one group back to where it stood at ``at_s``, which is ``time``.

    A commit of that moment is included.  ``causes`` are those of all deletions since then: an
    offset that is, or may be, of a former log is not restored.
    """
    nothing = Target(None, f"nothing was committed at {time}; left as it is")
    lost = Target(None, f"its commits of before {time} are compacted away; left as it is")
    found: dict[TopicPartition, Target] = {}
    for step in steps:
        if step.at_s > at_s:
            last = found.setdefault(step.partition, lost).offset
            if step.move is Move.HIDDEN and (last and last.offset) == step.before:
                found[step.partition] = Target(None, f"{Cause.TRANSACTION.value}; left as it is")
        elif step.after is None:
            found[step.partition] = nothing
        else:
            found[step.partition] = Target(OffsetAndMetadata(step.after, step.metadata))
    for step, cause in causes.items():
        if isinstance(cause, OffsetManagerError):
            why = f"whether its topic was recreated since then is not known: {cause}"
            found[step.partition] = Target(None, f"{why}; left as it is")
        elif cause in _LOG_ENDED:
            found[step.partition] = Target(None, f"{cause.value} since then; left as it is")
    return found


def cause_of(
    deletion: CommitStep,
    log: PartitionRange | OffsetManagerError,
    first: NextRecord | OffsetManagerError | None,
) -> Cause | OffsetManagerError:
    """Return the cause of a partition's deletion; the error of its log if that cannot be read.

    ``first`` is the first record of a log that begins at 0.  If it is younger than the deletion,
    the topic was recreated; so it was if the log is shorter than the deleted offset.
    """
    if does_not_exist(log):
        return Cause.TOPIC_DELETED
    if isinstance(log, OffsetManagerError):
        return log
    if (deletion.before or 0) > log.high_watermark:
        return Cause.TOPIC_RECREATED
    if isinstance(first, OffsetManagerError):
        return first
    began_s = first.at_s if first is not None and first.offset == 0 else None
    is_younger = began_s is not None and began_s > deletion.at_s
    return Cause.TOPIC_RECREATED if is_younger else Cause.OTHER


def read_causes(reader: ClusterReader, steps: Iterable[CommitStep]) -> Causes:
    """Return the causes of the deletions and hidden commits among ``steps``."""
    untold = [step for step in steps if step.move in {Move.DELETED, Move.HIDDEN}]
    deletions = [step for step in untold if step.move is Move.DELETED]
    logs = reader.log_ranges({step.partition for step in deletions})
    first_records = {
        where: [0]
        for where, log in logs.items()
        if not isinstance(log, OffsetManagerError) and log.log_start_offset == 0 < log[1]
    }
    firsts = reader.next_records(first_records)
    return dict.fromkeys(untold, Cause.TRANSACTION) | {
        step: cause_of(step, logs[step.partition], firsts.get((step.partition, 0)))
        for step in deletions
    }
