"""What a committer asks of the coordinator, and what it tells the managers of the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.errors import error_info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from offsetmgr.manager.slot import SubmitSlot, Version
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

BATCH_LIMIT: Final = 10_000
"""Most partitions in one request; the rest follows in the next."""

_TIMED_OUT: Final = -185
"""librdkafka's code of a request without an answer."""


class Member(Protocol):
    """What the plan needs of a manager."""

    @property
    def slot(self) -> SubmitSlot:
        """The submit mailbox."""

    def acknowledge(self, version: Version, now: float) -> None:
        """Tell that the coordinator holds ``version``."""


class FetchRequest(NamedTuple):
    """Read the initial offsets of new managers."""

    members: Mapping[TopicPartition, Member]
    """Who asks: a new manager may take a partition over meanwhile."""


class ReadBackRequest(NamedTuple):
    """Read what became of commits, or whether they still stand."""

    members: Mapping[TopicPartition, Member]


class CommitRequest(NamedTuple):
    """Commit these, and nothing else meanwhile."""

    versions: Mapping[TopicPartition, Version]
    members: Mapping[TopicPartition, Member]
    """Whose versions they are."""


Request: TypeAlias = FetchRequest | ReadBackRequest | CommitRequest


def broken(request: Request, error: BaseException) -> CommitResult | FetchResult:
    """A coordinator that raises breaks its contract; what became of the request is unknown."""
    return _spoiled(request, Failure(error_info(-1), f"the coordinator's client failed: {error!r}"))


def given_up(request: Request) -> CommitResult | FetchResult:
    """The same for one that does not answer."""
    why = "the coordinator's client did not answer by its deadline; report this with its log"
    return _spoiled(request, Failure(error_info(_TIMED_OUT), why))


def _spoiled(request: Request, failure: Failure) -> CommitResult | FetchResult:
    if isinstance(request, CommitRequest):
        return CommitResult(dict.fromkeys(request.versions, failure))
    return FetchResult({}, dict.fromkeys(request.members, failure))


class InitialKnown(NamedTuple):
    """A new manager's initial offset."""

    committed: OffsetAndMetadata | None


class InitialFailed(NamedTuple):
    """The fetch failed; tried again."""

    failure: Failure


class VersionCommitted(NamedTuple):
    """The coordinator holds this version."""

    version: Version
    clean: bool


@dataclass(frozen=True, slots=True)
class AllCommitted:
    """The coordinator holds all versions of a request: a note for each, as it is gone through."""

    request: CommitRequest
    clean: Sequence[bool]
    """Where nothing newer waits."""

    def __iter__(self) -> Iterator[tuple[TopicPartition, VersionCommitted]]:
        for (partition, version), clean in zip(
            self.request.versions.items(), self.clean, strict=True
        ):
            yield partition, VersionCommitted(version, clean)


class VersionFailed(NamedTuple):
    """This version was refused, or what became of it is unknown."""

    version: Version
    failure: Failure
    final: bool


class Noticed(NamedTuple):
    """Nothing failed, but its user and an operator should know."""

    failure: Failure
    """What was found, as an error that did not happen."""
    before: OffsetAndMetadata
    """What was committed last, as far as was known."""
    committed: OffsetAndMetadata | None
    """What is committed now."""


Note: TypeAlias = InitialKnown | InitialFailed | VersionCommitted | VersionFailed | Noticed
Notes: TypeAlias = "list[tuple[TopicPartition, Note]]"
