"""offsetmgr commits Kafka offsets of Spark jobs to their consumer groups.

Importing this package needs only the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    InvalidValueError,
    KafkaRequestError,
    ManagerExistsError,
    ManagerStoppedError,
    MessageError,
    OffsetCommitError,
    OffsetConflictError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetRegressionError,
    OffsetStoreError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
    OverloadedError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    OffsetManagerHandle,
    PartitionRange,
    StopResult,
    TopicPartition,
    Uncommitted,
)

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.local import LocalOffsets

__all__ = [
    "ClientFencedError",
    "CoordinatorError",
    "FlushResult",
    "InvalidValueError",
    "KafkaRequestError",
    "LocalOffsets",
    "ManagerExistsError",
    "ManagerKey",
    "ManagerStoppedError",
    "MessageError",
    "OffsetAndMetadata",
    "OffsetClient",
    "OffsetCommitError",
    "OffsetConflictError",
    "OffsetFetchError",
    "OffsetManagerError",
    "OffsetManagerHandle",
    "OffsetNoticeError",
    "OffsetRegressionError",
    "OffsetStoreError",
    "OffsetTimeoutError",
    "Offsets",
    "OffsetsUncommittedError",
    "OverloadedError",
    "PartitionRange",
    "ServiceError",
    "ServiceUnavailableError",
    "StopResult",
    "TopicPartition",
    "Uncommitted",
]


def __getattr__(name: str) -> object:
    # The service and its command line import this package too, and need no HTTP client.
    if name == "OffsetClient":
        from offsetmgr.client import OffsetClient  # noqa: PLC0415

        return OffsetClient
    if name == "Offsets":
        from offsetmgr.client.offsets import Offsets  # noqa: PLC0415

        return Offsets
    if name == "LocalOffsets":
        from offsetmgr.local import LocalOffsets  # noqa: PLC0415

        return LocalOffsets
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
