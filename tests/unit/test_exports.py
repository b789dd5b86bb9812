"""The public names of the package."""

from __future__ import annotations

import re
from pathlib import Path

import offsetmgr
from offsetmgr import errors, spark

NAMES = {
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
    "OffsetsUncommittedError",
    "Offsets",
    "OverloadedError",
    "PartitionRange",
    "ServiceError",
    "ServiceUnavailableError",
    "StopResult",
    "TopicPartition",
    "Uncommitted",
}


def test_names() -> None:
    """The public names change only on purpose, and all of them exist; others do not."""
    assert set(offsetmgr.__all__) == NAMES
    assert not hasattr(offsetmgr, "nonsense")
    assert all(getattr(offsetmgr, name) for name in NAMES)


def test_every_error_is_exported() -> None:
    """Errors that a user may have to catch can be imported from the top."""
    tree = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type)
        and issubclass(each, errors.OffsetManagerError)
        and not name.startswith("_")
    }
    assert tree <= NAMES


def test_every_name_for_spark_has_its_sentence() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    for name in spark.__all__:
        assert re.search(rf"^\| `{name}\b[^|]*` \| \w", guide, re.MULTILINE), name
