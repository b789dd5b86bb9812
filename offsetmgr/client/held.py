"""What a client knows of one partition, and the requests that speak of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.types import MAX_OFFSET

if TYPE_CHECKING:
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

_ABOVE_ALL: Final = MAX_OFFSET + 1


class Item(NamedTuple):
    """One partition of a batch."""

    key: ManagerKey
    version: int
    value: OffsetAndMetadata | None
    """None where only a manager is asked for."""
    rewind: bool = False


class Batch(NamedTuple):
    """A request to be sent, and sent again as it is while nobody knows whether it arrived."""

    group: str
    items: tuple[Item, ...]
    submits: bool
    """Whether it carries offsets; otherwise it asks for managers."""
    sequence: int
    epoch: int
    """The outbox's epoch when it was made; the answer to an older one means nothing."""
    instance: str | None
    """The service process that was heard last then; None where none was."""


class Held:
    """What is known of one partition."""

    __slots__ = (
        "asked", "committed", "committed_version", "doubted", "error", "newest", "parked", "peak",
        "refused", "registered", "rewind", "rewind_version", "rewound_from", "sent", "since",
        "stopping", "version",
    )  # fmt: skip

    def __init__(self, since: int) -> None:
        self.since = since
        """Requests up to this sequence speak of an earlier manager of the partition."""
        self.newest: OffsetAndMetadata | None = None
        self.version = 0
        self.sent = 0
        """Newest version that the service, as it lives now, has taken."""
        self.refused = 0
        """Newest version that it refused for good."""
        self.registered = False
        self.asked = False
        """A request for it is under way: the service may have the manager."""
        self.parked = False
        """Held by another client: tried again at a slow pace, and told once."""
        self.stopping = False
        self.error: OffsetManagerError | None = None
        """Why the newest was refused; None where it was not."""
        self.committed: OffsetAndMetadata | None = None
        self.committed_version = 0
        self.doubted = False
        """Kafka may not have the newest, though the service took it: the same is no repetition."""
        self.rewind = False
        """The next request has to say that it may go back."""
        self.rewind_version = 0
        self.rewound_from = -1
        """The highest offset that may be committed while the newest lies below it on purpose:
        a service that forgot the rewind has to be told again.  -1: there is none."""
        self.peak = -1
        """The highest offset seen for this partition; -1: none yet."""

    @property
    def settled_version(self) -> int:
        """Everything up to this version needs no request of its own."""
        return self.version if self.parked else max(self.sent, self.refused)

    def renew(self, value: OffsetAndMetadata, version: int, *, rewind: bool) -> None:
        """`value` is the newest from now on, as `version`."""
        self.version = version
        self.newest = value
        self.doubted = False
        if rewind:
            self.rewind = True
            self.rewind_version = version
            below = self.peak if self.peak >= 0 else _ABOVE_ALL
            self.rewound_from = max(self.rewound_from, below)
        elif value.offset >= self.rewound_from:
            self.rewound_from = -1
        self.peak = max(self.peak, value.offset)

    def commit(self, value: OffsetAndMetadata, version: int) -> bool:
        """The coordinator has `value`, and with it all versions up to `version`.

        Without a version (an event), the newest is meant if it looks the same; not after a
        rewind, when an event may still tell of the time before.  False where it is no news: the
        answer to a newer request, or a newer event, has overtaken it.
        """
        if 0 < version < self.committed_version:
            return False
        if not version and value == self.newest and self.rewound_from < 0:
            version = self.version
        is_news = not self._is_late(value, version)
        if is_news:
            self.committed = value
        self.committed_version = max(self.committed_version, version)
        self.peak = max(self.peak, value.offset)
        if version and version >= self.rewind_version:
            self.rewound_from = -1
        return is_news

    def _is_late(self, value: OffsetAndMetadata, version: int) -> bool:
        """Whether `value` tells of a time before what is known to be committed.

        `version` is 0 for an event that is not about the newest.  A lower offset is one of before,
        unless it is the newest, or may have come with a rewind that is not acknowledged yet, or
        with what a notice has told (the log was made anew, and the offset moved to its end).
        """
        if version == self.version:
            return False  # the newest, or nothing was submitted here
        if not version and self.committed_version >= self.version:
            return True
        if self.committed is None or value.offset >= self.committed.offset:
            return False
        return self.rewind_version <= self.committed_version and not self.doubted
