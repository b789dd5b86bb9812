"""The events of a manager's life, what a step asks to be done, and the times of all steps."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.backoff import pause_s

if TYPE_CHECKING:
    from random import Random

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Failure, TopicLog
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.offset_manager import Version, Waiter
    from offsetmgr.types import OffsetAndMetadata, StopResult

LANDING_TIMEOUTS: Final = 2
"""Request time-outs between a coordinator's first answer and the verification of commits in doubt:
by then nearly all that it still held have landed."""

STOPPED_TIMEOUTS: Final = 12
"""The same for a stopped manager, of which only one verification follows.  Later than that, a
difference is more likely an operator's reset of the group."""

RECOMMIT_SOON_S: Final = 60.0
"""Delay until an offset found at the start is committed again: its age is unknown, so it may be
about to expire."""


class Timing:
    """The times of all steps, from the settings; with the jitter of back-offs."""

    def __init__(self, settings: CommitSettings, rng: Random) -> None:
        self.commit_interval_s = settings.commit_interval_s
        self.verify_interval_s = settings.verify_interval_s
        self.request_timeout_s = settings.request_timeout_s
        self.landing_s = LANDING_TIMEOUTS * settings.request_timeout_s
        self.stopped_s = STOPPED_TIMEOUTS * settings.request_timeout_s
        self.recommit_s = settings.recommit_interval_s or inf
        self.recommit_soon_s = min(RECOMMIT_SOON_S, settings.recommit_interval_s) or inf
        self.backoff_max_s = settings.retry_backoff_max_s
        self.rng = rng
        self._backoff_s = settings.retry_backoff_s

    def backoff_s(self, failures: int) -> float:
        """Return the pause after ``failures`` in a row."""
        return pause_s(failures, self._backoff_s, self.backoff_max_s, self.rng)


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
    """The log of the partition, as it was after version ``number`` was submitted."""

    log: TopicLog
    number: int


Event: TypeAlias = (
    Read | Recreated | ReadFailed | Committed | Refused | Unknown | FlushAsked | Expired | LogRead
)


# Effects.


class PublishInitial(NamedTuple):
    """Answer who waits for the initial offset: it is the acknowledged one."""


class PublishCommitted(NamedTuple):
    """Put the acknowledged offset into its mailbox, and answer the flushes that wait for it."""


PUBLISH_COMMITTED: Final = PublishCommitted()


class PublishError(NamedTuple):
    """Put into the mailbox of errors."""

    error: OffsetManagerError


class AnswerFlushes(NamedTuple):
    """Answer the flushes that wait for versions up to ``number``."""

    number: float
    result: StopResult


class Finish(NamedTuple):
    """Close the mailboxes, free the name, answer the stops."""


Effect: TypeAlias = PublishInitial | PublishCommitted | PublishError | AnswerFlushes | Finish
Effects: TypeAlias = "list[Effect]"
