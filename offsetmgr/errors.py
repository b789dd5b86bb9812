"""Every error of the product; ``codes.py`` has the meaning of Kafka's codes."""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

from offsetmgr.codes import ERRORS as ERRORS
from offsetmgr.codes import ErrorInfo as ErrorInfo
from offsetmgr.codes import Fault as Fault
from offsetmgr.codes import Scope as Scope
from offsetmgr.codes import Verdict as Verdict
from offsetmgr.codes import error_info as error_info
from offsetmgr.text import listed as listed
from offsetmgr.text import shown as shown

if TYPE_CHECKING:
    from collections.abc import Mapping


class OffsetManagerError(Exception):
    """Base of every error raised by this product."""

    code: str = "error"
    """Stable name of the error, as the service's JSON carries it."""

    topic: str | None = None
    """Topic, partition and offset that the error is about; None where it is about no single one."""
    partition: int | None = None
    offset: int | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # The arguments of the subclasses are not the message, which pickle would pass to them.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class InvalidValueError(OffsetManagerError, ValueError):
    """An invalid argument; nothing was done."""

    code = "invalid_value"

    def __init__(self, field: str, value: object, problem: str, hint: str) -> None:
        """``field`` ``value`` ``problem`` is the message, ``hint`` the advice behind it."""
        super().__init__(f"{field} {shown(value)} {problem}; {hint}")
        self.field = field
        self.value = value
        self.problem = problem
        self.hint = hint


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


class OffsetConflictError(OffsetManagerError):
    """Somebody else has changed the committed offsets of the group in the meantime."""

    code = "offset_conflict"


class ManagerExistsError(OffsetManagerError):
    """The partition already has a manager for this group that is not stopped."""

    code = "manager_exists"

    def __init__(self, name: str, owner: str, lease_left_s: float | None = None) -> None:
        """``name`` is the manager, ``owner`` who holds it.

        ``lease_left_s`` is how long a client of the service keeps it if it stays silent.
        """
        if lease_left_s is None:
            owned = f"{owner}; stop that one first, or use its handle"
        else:
            lease = f"if it has ended, its lease frees the partition in {lease_left_s:.0f} s"
            owned = f"client {owner!r}; close that client first; {lease}"
        super().__init__(f"{name} is held by {owned}")
        self.name = name
        self.owner = owner
        self.lease_left_s = lease_left_s


class ManagerStoppedError(OffsetManagerError):
    """The manager was stopped; spawn a new one."""

    code = "manager_stopped"


class ClientFencedError(OffsetManagerError):
    """Another process has taken over as the client of this name."""

    code = "client_fenced"


class OffsetTimeoutError(OffsetManagerError, TimeoutError):
    """The caller's time-out has elapsed."""

    code = "timeout"


class MessageError(OffsetManagerError):
    """A message was not processed, and stays uncommitted."""

    code = "message_undone"

    def __init__(self, message: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic, self.partition, self.offset = topic, partition, offset


class OffsetsUncommittedError(OffsetManagerError):
    """Some offsets could not be committed; ``errors`` has the reason for each."""

    code = "offsets_uncommitted"

    def __init__(self, errors: Mapping[Any, OffsetManagerError]) -> None:
        """``errors`` are by group, topic and partition."""
        why = next(iter(errors.values()), "")
        super().__init__(f"not committed: {listed(errors)}; the first: {why}")
        self.errors = errors

    @classmethod
    def one_of(cls, errors: Mapping[Any, OffsetManagerError]) -> OffsetManagerError:
        """Return the only error, or one that has all of them."""
        first = next(iter(errors.values()))
        alone = len(errors) == 1 or isinstance(first, ClientFencedError)
        return first if alone else cls(errors)


class OverloadedError(OffsetManagerError):
    """A limit of the service was reached; try again later."""

    code = "overloaded"


class ServiceError(OffsetManagerError):
    """The service, or Kafka behind it, refused a request; ``code`` is the name of the error."""

    def __init__(self, status: int, message: str, code: str = "service_error") -> None:
        """HTTP ``status`` and what the service said."""
        super().__init__(message)
        self.status = status
        self.code = code


class ServiceUnavailableError(OffsetManagerError):
    """The service could not be reached; submitted offsets are kept and sent later."""

    code = "service_unavailable"


class _CodedError(OffsetManagerError):
    """An error with the code of Kafka, or of an offset store."""

    names_fault = True

    def __init__(
        self,
        what: str,
        info: ErrorInfo,
        detail: str = "",
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        """``what`` was asked for; ``detail`` is advice for this case."""
        fault = f", fault: {info.fault.value}" if self.names_fault else ""
        super().__init__(f"{what}: {detail or info.hint} ({info.name}{fault})")
        self.what = what
        self.topic, self.partition, self.offset = topic, partition, offset
        self.info = info
        self.detail = detail
        self.code = info.name
        self.retriable = info.retriable
        """True if the service tries again by itself."""
        self.hint = detail or info.hint
        """Advice on what to do."""


class CoordinatorError(_CodedError):
    """A commit or fetch of one partition was refused, or its outcome is unknown.

    ``code`` is Kafka's name of the error, such as UNKNOWN_MEMBER_ID.
    """

    topic: str
    partition: int
    verb = "request"
    outcome = " failed"
    names_fault = False

    def __init__(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int | None,
        info: ErrorInfo,
        detail: str = "",
    ) -> None:
        """``detail`` is advice for this case, such as the names of the live members."""
        at = "" if offset is None else f" at offset {offset}"
        what = f"{self.verb} of {group}/{topic}/{partition}{at}{self.outcome}"
        super().__init__(what, info, detail, topic=topic, partition=partition, offset=offset)
        self.group = group


class OffsetCommitError(CoordinatorError):
    """A commit was refused, or its outcome is unknown; the offset is still to be committed."""

    verb = "commit"


class OffsetFetchError(CoordinatorError):
    """The committed offset could not be fetched."""

    verb = "fetch"


class OffsetNoticeError(CoordinatorError):
    """A notice about a committed offset, such as OFFSET_CHANGED_EXTERNALLY.

    Nothing failed.  ``offset`` is the last one committed here.  The message says what was found,
    what happens next, and what an operator can do.
    """

    verb = "committed offset"
    outcome = ""


class KafkaRequestError(_CodedError):
    """Kafka refused a request that is not about a single manager, or did not answer it."""


class OffsetStoreError(_CodedError):
    """The database of an offset store refused a statement, or did not answer."""
