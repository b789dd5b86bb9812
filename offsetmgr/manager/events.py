"""The events of a manager's life, and what a step asks to be done."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.coordinator.base import Failure, TopicLog
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.offset_manager import OffsetManager, Version, Waiter
    from offsetmgr.types import OffsetAndMetadata, StopResult

# Events.


class Read(NamedTuple):
    """The coordinator has this offset committed; None for nothing."""

    found: OffsetAndMetadata | None
    topic_id: str | None = ""
    """The topic's id, as of a manager."""
    topic_exists: bool = True


class Recreated(NamedTuple):
    """The same, and the topic is not the one that the manager knew."""

    found: OffsetAndMetadata | None
    topic_id: str


class ReadFailed(NamedTuple):
    """The committed offset could not be read."""

    failure: Failure


class Committed(NamedTuple):
    """The coordinator has committed a version."""

    version: Version


class Refused(NamedTuple):
    """A version was refused: it had no effect."""

    version: Version
    failure: Failure


class Unknown(NamedTuple):
    """A commit without a clear answer: it has landed, or may land yet, or never."""

    version: Version
    failure: Failure


class FlushAsked(NamedTuple):
    """The newest version is to be committed now."""

    waiter: Waiter | None = None
    """The caller of a flush; a stop has entered its own when it closed the manager."""


class Expired(NamedTuple):
    """The deadline of the last stop has passed."""


class LogRead(NamedTuple):
    """The logs of a topic, as they were after the version of each manager was submitted."""

    log: TopicLog
    numbers: Mapping[OffsetManager, int]
    """The numbers of those versions."""


Event: TypeAlias = (
    Read | Recreated | ReadFailed | Committed | Refused | Unknown | FlushAsked | Expired | LogRead
)


# Effects.


class Publish(Enum):
    """News of a manager's record, as it is after the step."""

    INITIAL = "initial"
    """Answer who waits for the initial offset: it is the acknowledged one."""
    COMMITTED = "committed"
    """Put the acknowledged offset into its mailbox, and answer the flushes that wait for it."""
    END = "end"
    """Close the mailboxes, free the name, answer the stops."""


# To get an enum's member takes a call in Python 3.11.
PUBLISH_INITIAL, PUBLISH_COMMITTED, PUBLISH_END = Publish


class AnswerFlushes(NamedTuple):
    """Answer the flushes that wait for versions up to ``number``."""

    number: float
    result: StopResult


Effect: TypeAlias = "Publish | AnswerFlushes | OffsetManagerError"
"""An error is to be put into its mailbox."""
Effects: TypeAlias = "list[Effect]"
