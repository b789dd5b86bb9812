"""What a committer asks of the coordinator, and what the answers mean for each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.errors import error_info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.submits import SubmitBuffer, Version
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

BATCH_LIMIT: Final = 10_000
"""Most partitions in one request; the rest follows in the next."""

_TIMED_OUT: Final = -185
"""librdkafka's code of a request without an answer."""


class Member(Protocol):
    """A manager, as the plan sees it."""

    @property
    def submits(self) -> SubmitBuffer: ...

    def acknowledge(self, version: Version, now: float) -> None:
        """Publish that the coordinator holds ``version``."""


class InitialRequest(NamedTuple):
    """Read the initial offsets of new managers."""

    members: Mapping[TopicPartition, Member]
    """Those that asked: a new manager may take a partition over meanwhile."""


class ReadRequest(NamedTuple):
    """Read the outcome of commits, or verify that commits still stand."""

    members: Mapping[TopicPartition, Member]


class CommitRequest(NamedTuple):
    """Commit these, and nothing else meanwhile."""

    versions: Mapping[TopicPartition, Version]
    members: Mapping[TopicPartition, Member]
    """The managers whose versions they are."""


Request: TypeAlias = InitialRequest | ReadRequest | CommitRequest


def failed_answer(request: Request, error: BaseException | None) -> CommitResult | FetchResult:
    """Return the answer of a coordinator that raised ``error``, or did not answer (None)."""
    if error is None:
        why = "the coordinator's client did not answer by its deadline; report this with its log"
        failure = Failure(error_info(_TIMED_OUT), why)
    else:
        failure = Failure(error_info(-1), f"the coordinator's client failed: {error!r}")
    if isinstance(request, CommitRequest):
        return CommitResult(dict.fromkeys(request.versions, failure))
    return FetchResult({}, dict.fromkeys(request.members, failure))


class InitialKnown(NamedTuple):
    """A new manager's initial offset."""

    committed: OffsetAndMetadata | None


class InitialFailed(NamedTuple):
    """The fetch of the initial offset failed; it is tried again."""

    failure: Failure


class VersionCommitted(NamedTuple):
    """The coordinator holds this version."""

    version: Version
    clean: bool
    """True if nothing newer waits."""


class VersionFailed(NamedTuple):
    """This version was refused, or its outcome is unknown."""

    version: Version
    failure: Failure
    final: bool
    """True if it is not tried again until something new is submitted."""


class Noticed(NamedTuple):
    """Nothing failed, but the user and an operator should know."""

    failure: Failure
    """What was found, as an error that did not happen."""
    before: OffsetAndMetadata
    """What was committed last, as far as was known."""
    committed: OffsetAndMetadata | None
    """What is committed now."""


Result: TypeAlias = InitialKnown | InitialFailed | VersionCommitted | VersionFailed | Noticed
Results: TypeAlias = "list[tuple[TopicPartition, Result]]"
