"""Translation of the errors of Kafka, librdkafka and confluent-kafka into ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from offsetmgr.answers import Failure
from offsetmgr.codes import ERRORS, NO_SUCH_PARTITION, error_info
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

_VARYING: Final = re.compile(r"\S+/(?:bootstrap|\d+)\b|'[^']*'|\(after .*|\d+", re.DOTALL)
"""Names of brokers, times with counts of repetitions, other numbers."""

_TEXT_CHARS: Final = 300

_T = TypeVar("_T")


def failure_of_code(code: int, text: str = "") -> Failure:
    """Translate a code of Kafka or librdkafka; ``text`` explains one that the table lacks."""
    if code in ERRORS:
        return Failure(ERRORS[code])
    error = KafkaError(code)
    return Failure(error_info(code, error.name()), visible(text or error.str(), _TEXT_CHARS))


def failure_of_exception(error: BaseException) -> Failure:
    """Translate what confluent-kafka raised, and drop its traceback.

    That and the future that keeps the error would make a circle that holds an admin client until a
    garbage collection, maybe in a thread of librdkafka's, which aborts where a client ends there.
    """
    error.__traceback__ = None
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return failure_of_code(error.args[0].code(), error.args[0].str())
    return Failure(error_info(-1), visible(f"{type(error).__name__}: {error}", _TEXT_CHARS))


def request_error(what: str, error: KafkaError) -> KafkaRequestError:
    """Return an error of confluent-kafka as one of ours."""
    return KafkaRequestError(what, error_info(error.code(), error.name()), error.str())


def cause_of(text: str) -> str:
    """Return librdkafka's ``text`` without what differs from one broker, or time, to the next."""
    return _VARYING.sub("", text)


def known(answer: _T | OffsetManagerError) -> _T:
    """Return an answer; raise it if it is an error."""
    if isinstance(answer, OffsetManagerError):
        raise answer
    return answer


def tried(ask: Callable[..., _T], *arguments: Any) -> _T | OffsetManagerError:
    """Return the answer of ``ask``, or the error that it raises."""
    try:
        return ask(*arguments)
    except OffsetManagerError as error:
        return error


def code_of(answer: object) -> int | None:
    """Return Kafka's code of an answer that is an error; None of any other answer."""
    return answer.info.code if isinstance(answer, KafkaRequestError) else None


def does_not_exist(answer: object) -> bool:
    """Return True if the answer is that there is no such topic or partition."""
    return code_of(answer) in NO_SUCH_PARTITION
