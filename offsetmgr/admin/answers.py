"""Answers of the cluster's reader: a value, or the error that stands in its place."""

from __future__ import annotations

from typing import Final, TypeVar

from offsetmgr.errors import KafkaRequestError, OffsetManagerError

_NO_SUCH_PARTITION: Final = frozenset({3, -188, -190})
"""UNKNOWN_TOPIC_OR_PARTITION, and librdkafka's two ways to find that out by itself."""

_T = TypeVar("_T")


def known(answer: _T | OffsetManagerError) -> _T:
    """Return the value; raise the error."""
    if isinstance(answer, OffsetManagerError):
        raise answer
    return answer


def does_not_exist(answer: object) -> bool:
    """Return True if the answer is that there is no such topic or partition."""
    return isinstance(answer, KafkaRequestError) and answer.info.code in _NO_SUCH_PARTITION
