"""The error tree and the table of Kafka's codes."""

from __future__ import annotations

import copy
import inspect
import pickle

import confluent_kafka
import pytest

from offsetmgr import errors
from offsetmgr.codes import OFFSET_CHANGED
from offsetmgr.errors import (
    ERRORS,
    ClientFencedError,
    ErrorInfo,
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
    Verdict,
    error_info,
)

INFO = error_info(25)

KAFKAS = [info for info in ERRORS.values() if info.code < OFFSET_CHANGED]

EXAMPLES: list[OffsetManagerError] = [
    InvalidValueError("offset", -1, "is negative", "give more"),
    KafkaRequestError("the groups", INFO, "no ACL"),
    OffsetStoreError("list of groups", INFO, "no table"),
    OffsetRegressionError("g/t/0", 5, 7),
    ManagerExistsError("g/t/0", "etl"),
    MessageError("the handler failed", "t", 0, 5),
    OffsetConflictError("changed by another"),
    ManagerStoppedError("g/t/0 is stopped"),
    ClientFencedError("a newer one"),
    OffsetCommitError("g", "t", 0, 5, INFO, "held by x"),
    OffsetFetchError("g", "t", 0, None, INFO),
    OffsetNoticeError("g", "t", 0, 5, error_info(32_001), "it is 7 now"),
    OffsetTimeoutError("after 5 s"),
    OverloadedError("too many"),
    OffsetsUncommittedError({"g/t/0": ManagerStoppedError("g/t/0 is stopped")}),
    ServiceError(500, "broken", "internal"),
    ServiceUnavailableError("no answer"),
]


def _classes() -> dict[str, type[OffsetManagerError]]:
    return {
        name: found
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, OffsetManagerError) and name[0] != "_"
    }


def test_every_error_has_an_example_here() -> None:
    """The following tests cover every class, also future ones."""
    abstract = {OffsetManagerError, errors.CoordinatorError}
    assert {type(example) for example in EXAMPLES} == set(_classes().values()) - abstract


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_survive_pickling_and_copying(error: OffsetManagerError) -> None:
    """They cross processes (Spark's, for one) with all they carry."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 -- our own
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert repr(vars(again)) == repr(vars(error))
        assert again.code == error.code


def test_stable_names_are_not_used_twice() -> None:
    """The service's JSON tells errors apart by their code alone."""
    by_kafka = (*errors.CoordinatorError.__subclasses__(), errors.CoordinatorError, ServiceError)
    codes = [found.code for found in _classes().values() if found not in by_kafka]
    own = [code for code in codes if code != OffsetManagerError.code]
    assert len(own) == len(set(own))


@pytest.mark.parametrize("info", ERRORS.values(), ids=lambda i: i.name)
def test_every_row_of_the_table_is_complete(info: ErrorInfo) -> None:
    """Each code has a hint that fits a line."""
    assert 10 <= len(info.hint) <= 160
    assert "\n" not in info.hint
    assert not info.hint.endswith(".")


@pytest.mark.parametrize("info", KAFKAS, ids=lambda i: i.name)
def test_names_are_those_of_kafka(info: ErrorInfo) -> None:
    """An operator finds the name in Kafka's own documentation, or in librdkafka's for its own."""
    known: str = confluent_kafka.KafkaError(info.code).name()
    renamed = {
        "UNKNOWN": "UNKNOWN_SERVER_ERROR",
        "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    }
    assert info.name == renamed.get(known, known)


CODES = {
    "OffsetCommit": {3, 7, 12, 14, 15, 16, 22, 24, 25, 27, 28, 29, 30, 35, 69, 82, 100, 110, 113},
    "OffsetFetch": {3, 7, 14, 15, 16, 24, 25, 29, 30, 35, 69, 88, 100, 113, -1},
    "FindCoordinator": {8, 14, 15, 16, 24, 30, 42, 89, 129},
    "JoinGroup": {15, 16, 23, 24, 25, 26, 27, 30, 79, 81, 82, 110, 111, 113},
    "connection": {13, 31, 33, 34, 56, 58},
}


@pytest.mark.parametrize("request_kind", CODES)
def test_no_code_of_kafkas_protocol_guide_is_missing(request_kind: str) -> None:
    """Each error code that Kafka documents for our requests has a class of its own."""
    assert CODES[request_kind] <= ERRORS.keys()


def test_an_unknown_code_is_retried_after_a_read() -> None:
    """A code of a newer Kafka neither loses an offset nor overwrites one."""
    info = error_info(9999)
    assert info.retriable
    assert info.verdict is Verdict.UNKNOWN
    assert info.name == "CODE_9999"
    assert error_info(9999, "NEW_ONE").name == "NEW_ONE"


MESSAGES = {
    # The detail takes the place of the hint.
    "commit of g/t/3 at offset 1042 failed: the metadata is longer than the broker's "
    "offset.metadata.max.bytes; submit less (OFFSET_METADATA_TOO_LARGE)": OffsetCommitError(
        "g", "t", 3, 1042, error_info(12)
    ),
    "fetch of g/t/3 failed: held by etl@host (UNKNOWN_MEMBER_ID)": OffsetFetchError(
        "g", "t", 3, None, INFO, "held by etl@host"
    ),
    # Nothing failed.
    "committed offset of g/t/3 at offset 13: it is 40 now (OFFSET_CHANGED_EXTERNALLY)": (
        OffsetNoticeError("g", "t", 3, 13, error_info(32_001), "it is 40 now")
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_an_error_names_place_and_reason(message: str) -> None:
    """The message holds place, offset, reason and Kafka's name."""
    error = MESSAGES[message]
    assert str(error) == message
    assert (error.code, error.retriable) == (error.info.name, error.info.retriable)
    assert error.hint == (error.detail or error.info.hint)


def test_errors_fit_the_code_that_catches_them() -> None:
    """ValueError for bad values, TimeoutError for waits; a regression says how to go back."""
    assert issubclass(InvalidValueError, ValueError)
    assert issubclass(OffsetTimeoutError, TimeoutError)
    assert "call rewind(5)" in str(OffsetRegressionError("g/t/0", 5, 7))
