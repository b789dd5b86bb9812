"""Every error of the product.

::

    OffsetManagerError
    ├── InvalidValueError (ValueError)      bad input; names the field, the value and the fix
    ├── OffsetRegressionError               a lower offset without an explicit rewind
    ├── OffsetConflictError                 somebody else has changed the group's offsets meanwhile
    ├── ManagerExistsError                  the key has a live manager; names its owner
    ├── ManagerStoppedError                 submit after stop
    ├── ClientFencedError                   a newer incarnation of this client took over
    ├── CoordinatorError                    Kafka said no, or did not answer; carries an ErrorInfo
    │   ├── OffsetCommitError               ... to a commit
    │   ├── OffsetFetchError                ... to a fetch of committed offsets
    │   └── OffsetNoticeError               nothing failed, but somebody should know
    ├── KafkaRequestError                   Kafka did not answer a question about the cluster
    ├── OffsetStoreError                    an offset store's database refused, or did not answer
    ├── OffsetTimeoutError (TimeoutError)   a wait asked for by the caller ran out
    ├── OffsetsUncommittedError             some of many offsets are not committed; why of each
    ├── OverloadedError                     a limit was reached; nothing of the request was taken
    ├── ServiceError                        the service answered with an error of its own
    └── ServiceUnavailableError             the service did not answer

Errors are data: what Kafka's codes mean stands in ``codes.py``.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.codes import ERRORS, ErrorInfo, Fault, Scope, Verdict, error_info

__all__ = [
    "ERRORS",
    "ClientFencedError",
    "CoordinatorError",
    "ErrorInfo",
    "Fault",
    "InvalidValueError",
    "KafkaRequestError",
    "ManagerExistsError",
    "ManagerStoppedError",
    "OffsetCommitError",
    "OffsetFetchError",
    "OffsetManagerError",
    "OffsetNoticeError",
    "OffsetRegressionError",
    "OffsetStoreError",
    "OffsetTimeoutError",
    "OffsetsUncommittedError",
    "OverloadedError",
    "Scope",
    "ServiceError",
    "ServiceUnavailableError",
    "Verdict",
    "error_info",
    "listed",
    "shown",
]

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SHOWN_CHARS: Final = 80
_LISTED: Final = 10
_NAMED: Final = 3


def shown(value: object) -> str:
    """``value`` as it may stand in a message or a log: escaped, and cut when long."""
    try:
        # Never build megabytes of repr for a message of one line.
        text = repr(value[:_SHOWN_CHARS] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001 -- whatever the value is, the message must be made
        # Such as an integer of more digits than Python will print.
        kind = type(value).__name__
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else f"<{kind}>"
    if isinstance(value, (str, bytes)) and len(value) > _SHOWN_CHARS:
        return f"{text}… ({len(value)} characters)"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def listed(values: Collection[object]) -> str:
    """Return the first ten values as text, with how many more there are."""
    first = ", ".join(map(str, islice(values, _LISTED)))
    more = len(values) - _LISTED
    return first if more <= 0 else f"{first} and {more} more"


class OffsetManagerError(Exception):
    """Base of every error raised by this product."""

    code: str = "error"
    """Stable name of the error, as the service's JSON carries it."""


class InvalidValueError(OffsetManagerError, ValueError):
    """A value that was refused at the door; nothing was done with it."""

    code = "invalid_value"

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        """``field`` ``value`` ``problem``; ``fix`` says what to give instead."""
        super().__init__(f"{field} {shown(value)} {problem}; {fix}")
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[type, tuple[str, object, str, str]]:
        return type(self), (self.field, self.value, self.problem, self.fix)


class OffsetRegressionError(OffsetManagerError):
    """A submitted offset is lower than one submitted or committed before."""

    code = "offset_regression"

    def __init__(self, name: str, offset: int, floor: int) -> None:
        """``name`` is the manager, ``floor`` the highest offset known for it."""
        super().__init__(
            f"{name}: offset {offset} is lower than {floor}, which was submitted or committed "
            f"before; to go back on purpose, call rewind({offset}), or submit with rewind=True"
        )
        self.name = name
        self.offset = offset
        self.floor = floor

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return type(self), (self.name, self.offset, self.floor)


class OffsetConflictError(OffsetManagerError):
    """A group's committed offsets were changed by somebody else while work from them went on."""

    code = "offset_conflict"


class ManagerExistsError(OffsetManagerError):
    """A group/topic/partition already has a manager that is not stopped."""

    code = "manager_exists"

    def __init__(self, name: str, owner: str, lease_left_s: float | None = None) -> None:
        """``name`` is the manager, ``owner`` who holds it.

        ``lease_left_s`` is how long a client of the service keeps it if it stays silent.
        """
        if lease_left_s is None:
            text = (
                f"{name} is held by {owner}; stop that one first, or use its handle (a partition "
                "of a group has one owner at a time)"
            )
        else:
            text = (
                f"{name} is held by client {owner!r}; close that client first; if it has ended "
                f"without a close, its lease frees the partition in {lease_left_s:.0f} s"
            )
        super().__init__(text)
        self.name = name
        self.owner = owner
        self.lease_left_s = lease_left_s

    def __reduce__(self) -> tuple[type, tuple[str, str, float | None]]:
        return type(self), (self.name, self.owner, self.lease_left_s)


class ManagerStoppedError(OffsetManagerError):
    """The manager was stopped; spawn a new one."""

    code = "manager_stopped"


class ClientFencedError(OffsetManagerError):
    """A newer incarnation of this client's name has taken its managers over."""

    code = "client_fenced"


class OffsetTimeoutError(OffsetManagerError, TimeoutError):
    """The time that the caller gave ran out."""

    code = "timeout"


class OffsetsUncommittedError(OffsetManagerError):
    """Offsets that were to be committed are not; ``errors`` has the reason of each."""

    code = "offsets_uncommitted"

    def __init__(self, errors: Mapping[Any, OffsetManagerError]) -> None:
        """``errors`` are by group, topic and partition."""
        shown_keys = [str(key) for key in errors][:_NAMED]
        more = f" and {len(errors) - _NAMED} more" if len(errors) > _NAMED else ""
        why = next(iter(errors.values()), "")
        super().__init__(f"not committed: {', '.join(shown_keys)}{more}; the first: {why}")
        self.errors = errors

    @classmethod
    def one_of(cls, errors: Mapping[Any, OffsetManagerError]) -> OffsetManagerError:
        """Return the only error, or one that has all of them."""
        first = next(iter(errors.values()))
        alone = len(errors) == 1 or isinstance(first, ClientFencedError)
        return first if alone else cls(errors)

    def __reduce__(self) -> tuple[type, tuple[dict[Any, OffsetManagerError]]]:
        return type(self), (dict(self.errors),)


class OverloadedError(OffsetManagerError):
    """A limit was reached; nothing of the request was taken, try again later."""

    code = "overloaded"


class ServiceError(OffsetManagerError):
    """The service answered with an error that is none of the above."""

    def __init__(self, status: int, message: str, code: str = "service_error") -> None:
        """HTTP ``status`` and what the service said."""
        super().__init__(message)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return type(self), (self.status, str(self), self.code)


class ServiceUnavailableError(OffsetManagerError):
    """The service could not be reached; what was submitted is kept and sent later."""

    code = "service_unavailable"


class CoordinatorError(OffsetManagerError):
    """The coordinator refused, or its answer is not known."""

    verb = "request"
    outcome = " failed"

    def __init__(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int | None,
        info: ErrorInfo,
        detail: str = "",
    ) -> None:
        """``detail`` is what only this case knows, such as who the live members are."""
        place = f"{self.verb} of {group}/{topic}/{partition}"
        at = "" if offset is None else f" at offset {offset}"
        text = detail or info.hint
        super().__init__(f"{place}{at}{self.outcome}: {text} ({info.name})")
        self.group = group
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.info = info
        self.detail = detail

    @property
    def code(self) -> str:  # type: ignore[override]
        """Kafka's name of the error, such as UNKNOWN_MEMBER_ID."""
        return self.info.name

    @property
    def retriable(self) -> bool:
        """True if the service tries again by itself."""
        return self.info.retriable

    @property
    def hint(self) -> str:
        """Advice on what to do."""
        return self.detail or self.info.hint

    def __reduce__(self) -> tuple[type, tuple[str, str, int, int | None, ErrorInfo, str]]:
        args = (self.group, self.topic, self.partition, self.offset, self.info, self.detail)
        return type(self), args


class OffsetCommitError(CoordinatorError):
    """A commit was refused, or what became of it is not known; the offset stays dirty."""

    verb = "commit"


class OffsetFetchError(CoordinatorError):
    """The committed offset could not be fetched."""

    verb = "fetch"


class OffsetNoticeError(CoordinatorError):
    """News of a committed offset for its owner or an operator, such as OFFSET_CHANGED_EXTERNALLY.

    Nothing failed.  ``offset`` is the last one committed here; the message says what was found,
    what is done about it, and what people can do.
    """

    verb = "committed offset"
    outcome = ""


class KafkaRequestError(OffsetManagerError):
    """Kafka refused to tell or change something of the cluster, or did not answer."""

    def __init__(self, what: str, info: ErrorInfo, detail: str = "") -> None:
        """``what`` was asked for; ``detail`` is known of this case alone."""
        super().__init__(f"{what}: {detail or info.hint} ({info.name}, fault: {info.fault.value})")
        self.what = what
        self.info = info
        self.detail = detail

    @property
    def code(self) -> str:  # type: ignore[override]
        """Kafka's name of the error, such as GROUP_AUTHORIZATION_FAILED."""
        return self.info.name

    def __reduce__(self) -> tuple[type, tuple[str, ErrorInfo, str]]:
        return type(self), (self.what, self.info, self.detail)


class OffsetStoreError(OffsetManagerError):
    """The database of an offset store refused, or did not answer; no partition is concerned."""

    def __init__(self, what: str, info: ErrorInfo, detail: str = "") -> None:
        """``what`` was asked for; ``detail`` is known of this case alone."""
        super().__init__(f"{what}: {detail or info.hint} ({info.name})")
        self.what = what
        self.info = info
        self.detail = detail

    @property
    def code(self) -> str:  # type: ignore[override]
        """Name of the error, such as STORE_FAILED."""
        return self.info.name

    def __reduce__(self) -> tuple[type, tuple[str, ErrorInfo, str]]:
        return type(self), (self.what, self.info, self.detail)
