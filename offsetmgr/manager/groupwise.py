"""Submitting the offsets of many partitions of one group at once.

Who submits the same partitions again and again, plain offsets that only rise, is served by
``Tray.repeat``, which does nothing by partition; everything else is looked at here, one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.errors import ManagerStoppedError, OffsetManagerError
from offsetmgr.types import MAX_OFFSET, ManagerKey, OffsetAndMetadata, check_offset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.names import Group
    from offsetmgr.manager.slot import SubmitSlot
    from offsetmgr.types import TopicPartition


class Submission(NamedTuple):
    """One offset of a group-wise submit that is more than a plain number; already checked."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    rewind: bool = False


def submit_each(
    group: Group, offsets: Mapping[TopicPartition, int | Submission]
) -> dict[TopicPartition, OffsetManagerError]:
    """Submit ``offsets``; returns the refused ones.

    Raises InvalidValueError, with nothing submitted, where one is no offset.
    """
    values = {where: _checked(where, each) for where, each in offsets.items()}
    refused: dict[TopicPartition, OffsetManagerError] = {}
    slots: list[SubmitSlot] = []
    tray = group.tray
    with tray.lock:
        tray.part()
        for where, value in values.items():
            desk = group.desks.get(where)
            if desk is None:
                refused[where] = no_manager(tray.group, where)
                continue
            slot = desk.slot
            rewind = isinstance(value, Submission) and value.rewind
            try:
                slot.take(OffsetAndMetadata(*value[:3]), rewind=rewind)
            except OffsetManagerError as error:
                refused[where] = error
            else:
                slots.append(slot)
        if not refused:
            # The next round of the same partitions need only be compared with this one.
            tray.remember(list(values), slots, [value.offset for value in values.values()])
    return refused


def no_manager(group: str, where: TopicPartition) -> ManagerStoppedError:
    """Why an offset is refused that nobody is there to take."""
    return ManagerStoppedError(f"{ManagerKey(group, *where)} has no manager; spawn it first")


def _checked(where: TopicPartition, each: int | Submission) -> OffsetAndMetadata | Submission:
    if isinstance(each, Submission):
        return each
    if type(each) is not int or not 0 <= each <= MAX_OFFSET:
        each = check_offset(each, f"offsets[{where[0]}-{where[1]}]")
    return OffsetAndMetadata(each)
