"""offsetmgr: Kafka offsets of Spark jobs (and of anyone else), committed to their groups.

Importing this package needs the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    InvalidValueError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetConflictError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetRegressionError,
    OffsetTimeoutError,
    OverloadedError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    OffsetManagerHandle,
    StopResult,
    TopicPartition,
)

if TYPE_CHECKING:
    from offsetmgr.client import FlushResult, OffsetClient, PartitionRange, Uncommitted

__all__ = [
    "ClientFencedError",
    "CoordinatorError",
    "FlushResult",
    "InvalidValueError",
    "ManagerExistsError",
    "ManagerKey",
    "ManagerStoppedError",
    "OffsetAndMetadata",
    "OffsetClient",
    "OffsetCommitError",
    "OffsetConflictError",
    "OffsetFetchError",
    "OffsetManagerError",
    "OffsetManagerHandle",
    "OffsetNoticeError",
    "OffsetRegressionError",
    "OffsetTimeoutError",
    "OverloadedError",
    "PartitionRange",
    "ServiceError",
    "ServiceUnavailableError",
    "StopResult",
    "TopicPartition",
    "Uncommitted",
]

_FROM_CLIENT = frozenset({"FlushResult", "OffsetClient", "PartitionRange", "Uncommitted"})


def __getattr__(name: str) -> object:
    # The service and its command line import this package too, and need no HTTP client.
    if name not in _FROM_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from offsetmgr import client  # noqa: PLC0415

    return getattr(client, name)
