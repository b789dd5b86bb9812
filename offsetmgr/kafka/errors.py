"""Translation of the errors of Kafka, librdkafka and confluent-kafka into ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from offsetmgr.answers import Failure
from offsetmgr.codes import ERRORS, NO_SUCH_PARTITION, error_info
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.text import shell_command, visible

if TYPE_CHECKING:
    from collections.abc import Callable

_VARYING: Final = re.compile(
    r"\S+/(?:bootstrap|\d+)\b|'[^']*'|\(after .*|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]+|\d+",
    re.DOTALL | re.IGNORECASE,
)
"""Names of brokers, times with counts of repetitions, addresses, UUIDs, other numbers."""

_TEXT_CHARS: Final = 300

_TOO_LARGE: Final = frozenset({4, 10, 18})
"""INVALID_FETCH_SIZE as librdkafka's INVALID_MSG_SIZE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE."""
_EXPLANATIONS: Final = {
    **dict.fromkeys(NO_SUCH_PARTITION, "the topic or partition does not exist in the cluster"),
    58: "Kafka did not accept the credentials; check sasl.* and ssl.*",
}
"""For requests of any user; the table of codes is about commits of the service."""
RIGHT_CODES: Final = {29: "topic", 30: "group", 31: "cluster"}
"""Kinds of resources, by the codes of a missing right."""

_T = TypeVar("_T")


def failure_of(error: int | KafkaError | BaseException, text: str = "") -> Failure:
    """Return a code of Kafka or librdkafka, or an exception of confluent-kafka, as a failure.

    ``text`` explains a code that the table of codes lacks.  The frames of an exception are dropped.
    """
    if isinstance(error, BaseException):
        _drop_frames(error)
        if not (isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError)):
            text = visible(f"{type(error).__name__}: {error}", _TEXT_CHARS)
            return Failure(error_info(-1), text)
        error = error.args[0]
    if isinstance(error, int):
        error = KafkaError(error)
    code = error.code()
    if code in ERRORS:
        return Failure(ERRORS[code])
    return Failure(error_info(code, error.name()), visible(text or error.str(), _TEXT_CHARS))


def request_error(
    what: str,
    error: Failure | KafkaError | BaseException,
    *,
    right: str = "DESCRIBE",
    topic: str = "",
    group: str | None = None,
    servers: object = "",
    partition: int | None = None,
    offset: int | None = None,
) -> KafkaRequestError:
    """Return the error to raise if a request failed, or a client that reads or writes.

    ``right`` is the operation that Kafka must allow for it, on ``topic`` or ``group`` if that is
    known; ``servers`` are the bootstrap servers.
    """
    failure = error if isinstance(error, Failure) else failure_of(error)
    code = failure.info.code
    detail = failure.detail or _EXPLANATIONS.get(code, "")
    kind = RIGHT_CODES.get(code)
    if kind is not None and not failure.detail:
        name = {"topic": topic or None, "group": group}.get(kind, "")
        place = kind if kind == "cluster" else f"{kind} {visible(name)}" if name else f"the {kind}"
        detail = f"this user lacks {right} on {place}; grant it"
        if name is not None:
            detail += f": {grant_command(right, kind, name, servers)}"
    words = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(words, KafkaError) and words.str() != KafkaError(code).str():
        detail = "; ".join(filter(None, (visible(words.str(), _TEXT_CHARS), detail)))
    at: dict[str, Any] = {"topic": topic or None, "partition": partition, "offset": offset}
    return KafkaRequestError(what, failure.info, detail, **at)


def grant_command(right: str, kind: str, name: str, servers: object = "") -> str:
    """Return the command by which an administrator grants ``right``, such as DESCRIBE_CONFIGS.

    ``kind`` is topic, group or cluster; a cluster has no name.
    """
    where = ["--bootstrap-server", str(servers)] if servers else []
    resource = [f"--{kind}"] if kind == "cluster" else [f"--{kind}", name]
    grant = ["--allow-principal", "User:NAME", "--operation", right.title().replace("_", "")]
    return shell_command(["kafka-acls", *where, "--add", *grant, *resource])


def cause_of(text: str) -> str:
    """Return the text of an error without what differs from one time to the next."""
    return _VARYING.sub("", text)


def known(answer: _T | OffsetManagerError) -> _T:
    """Return an answer; raise it if it is an error."""
    if isinstance(answer, OffsetManagerError):
        raise answer
    return answer


def tried(ask: Callable[..., _T], *arguments: Any) -> _T | OffsetManagerError:
    """Return the answer of ``ask``, or the error that it raises, without its frames."""
    try:
        return ask(*arguments)
    except OffsetManagerError as error:
        _drop_frames(error)
        return error


def _drop_frames(error: BaseException) -> None:
    """Drop the frames of an error that is kept as an answer.

    With whatever keeps the error they would make a circle that holds an admin client until a
    garbage collection, maybe in a thread of librdkafka's, which aborts where a client ends there.
    """
    error.__traceback__ = error.__context__ = None


def code_of(answer: object) -> int | None:
    """Return Kafka's code of an answer that is an error; None of any other answer."""
    return answer.info.code if isinstance(answer, KafkaRequestError) else None


def is_too_large(answer: object) -> bool:
    """Return True if the answer is that a message, or its batch, is larger than its topic takes."""
    return code_of(answer) in _TOO_LARGE


def does_not_exist(answer: object) -> bool:
    """Return True if the answer is that there is no such topic or partition."""
    return code_of(answer) in NO_SUCH_PARTITION
