"""What to do where somebody else has changed a committed offset: a tool, a second service.

It is told in any case, with what was committed here last and what is committed now.  Then, as
``on_external_change`` says:

- ``follow``: theirs counts as committed and is kept from expiring.  It is the floor for what comes:
  lower offsets are refused but for a rewind, also those that were waiting; these stay dirty and
  visible.  Where theirs is lower, or they deleted it, what is submitted next goes over it.
- ``overwrite``: ours is committed again, until somebody gives up.
- ``pause``: nothing more is committed there until a rewind, or until the manager is stopped and
  spawned anew, which then begins with theirs; it does not end by being idle.  What is submitted
  stays dirty and visible, and where a lost commit of ours lands after all, theirs is put back.

An operator who resets the group of a live job finds the reset kept by ``pause`` in any case, and by
``follow`` for as long as the job is behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.codes import COMMITS_PAUSED, OFFSET_CHANGED, error_info
from offsetmgr.coordinator.base import Failure

if TYPE_CHECKING:
    from offsetmgr.manager.slot import SubmitSlot, Version
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_DONE = {
    "follow": "it is taken over; lower offsets are refused but for a rewind()",
    "overwrite": "the one of this service is committed again",
    "pause": "commits wait here; rewind() to go on, or stop this manager",
}


_SHOWN = 40
"""Characters of metadata that a message shows."""


def _text(theirs: OffsetAndMetadata) -> str:
    metadata = theirs.metadata
    return (
        f"{theirs.offset} with metadata {metadata[:_SHOWN]!r}" if metadata else f"{theirs.offset}"
    )


class Foreign:
    """What others have committed and nothing of ours was committed over since."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._theirs: dict[TopicPartition, OffsetAndMetadata | None] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._theirs)

    def found(self, partition: TopicPartition, theirs: OffsetAndMetadata | None) -> Failure:
        """Somebody has committed ``theirs`` (None: deleted it); what to tell."""
        if self.policy != "overwrite":
            self._theirs[partition] = theirs
        now = "nothing is committed any more" if theirs is None else f"it is {_text(theirs)} now"
        why = f"somebody else changed it: {now}; {_DONE[self.policy]}"
        return Failure(error_info(OFFSET_CHANGED), why)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether what stands there is theirs."""
        return partition in self._theirs

    def pauses(self, partition: TopicPartition) -> bool:
        """Whether nothing is committed there until somebody decides."""
        return self.policy == "pause" and partition in self._theirs

    def refusal(
        self, partition: TopicPartition, version: Version, slot: SubmitSlot
    ) -> Failure | None:
        """Why ``version`` may not be committed over theirs; None where it may."""
        if partition not in self._theirs or slot.rewinds:
            return None
        if self.policy == "pause":
            return Failure(error_info(COMMITS_PAUSED))
        theirs = self._theirs[partition]
        if theirs is None or theirs.offset <= version.value.offset:
            return None
        why = f"somebody else committed {theirs.offset}, which is higher; rewind() to go back"
        return Failure(error_info(OFFSET_CHANGED), why)

    def forget(self, partition: TopicPartition) -> None:
        """Ours is committed there, or its manager is a new one."""
        self._theirs.pop(partition, None)
