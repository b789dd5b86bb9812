"""The client: hands offsets to the service beside it, and never slows whoever submits them."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar

from offsetmgr.client import waits, wire
from offsetmgr.client.core import Core
from offsetmgr.client.credentials import Credentials
from offsetmgr.client.failure_log import FailureLog, log_uncommitted
from offsetmgr.client.handle import RemoteManagerHandle
from offsetmgr.client.offsets import LogEnds, Offsets, PassingError, Selection
from offsetmgr.client.transport import parse_url
from offsetmgr.errors import OffsetManagerError, ServiceUnavailableError
from offsetmgr.types import (
    MAX_GROUP_CHARS,
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.client.offsets import Deadline, QueryReport, Refusals

_T = TypeVar("_T")

TOPICS_PER_REQUEST: Final = 50
"""Keeps the request's first line within what HTTP servers take."""


class OffsetClient(Offsets):
    """A client of the service at `url`, `http(s)://host:port` or `unix:///path/of/the.sock`.

    `name` is the owner of the managers.  A restarted driver of the same name takes them over at
    once, and the older client is fenced.  Without a name the client has one of its own, and its
    successor waits until its lease has ended.

    A submit takes microseconds and does not fail if the service is away: the newest offset of each
    partition is kept, and sent again to a restarted service.

    An unpickled client is another one: it has a name of its own (this one with a suffix), and holds
    nothing yet.

    `token_file` holds the token that the service asks for, `ca_file` the authority of its
    certificate (by default those of the system), `cert_file` and `key_file` the client's own
    certificate.  They are read again when they change.

    Raises InvalidValueError for a bad url or name, or a file that is of no use.
    """

    def __init__(
        self,
        url: str,
        name: str | None = None,
        *,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._credentials = Credentials(token_file, ca_file, cert_file, key_file)
        address = parse_url(url, self._credentials)
        own = _own_name() if name is None else check_group(name, "name")
        failures = FailureLog()
        self._state = Core(url, address, own, failures)
        super().__init__(url, own, failures)

    @property
    def core(self) -> Core:
        """The client's shared state; raises ManagerStoppedError in the child of a fork."""
        self.check_process()
        return self._state

    @property
    def closed(self) -> bool:
        return self._state.closing

    # Managers

    def _spawn(self, key: ManagerKey) -> RemoteManagerHandle:
        return RemoteManagerHandle(key, self.core.spawn(key), self)

    def _claim(self, keys: list[ManagerKey], deadline: Deadline) -> None:
        waits.claim(self.core, keys, deadline)

    def _submit(
        self,
        offsets: Mapping[ManagerKey, OffsetAndMetadata],
        *,
        rewind: bool,
        wait: Deadline | None,
    ) -> tuple[Refusals, Refusals]:
        if wait is None:
            return self.core.submit(offsets, rewind=rewind), {}
        return waits.commit(self.core, offsets, wait, rewind=rewind)

    def _settle(self, selection: Selection, deadline: Deadline, *, stop: bool) -> FlushResult:
        return (waits.stop if stop else waits.flush)(self.core, selection, deadline)

    def _listen(self) -> None:
        self.core.listen()

    def report_query(self, report: QueryReport) -> None:
        self._state.report_query(report)

    # Questions to Kafka

    def _committed(self, group: str, deadline: Deadline) -> dict[TopicPartition, OffsetAndMetadata]:
        what = "the committed offsets"
        return self._get(wire.OFFSETS, [("group", group)], deadline, what, wire.committed_of)

    def _logs(
        self, topics: list[str], deadline: Deadline, *, at_ms: int = -1, stable: bool = False
    ) -> dict[TopicPartition, LogEnds]:
        more = [("at_ms", str(at_ms))] if at_ms >= 0 else []
        more += [("stable", "true")] if stable else []
        found: dict[TopicPartition, LogEnds] = {}
        for at in range(0, len(topics), TOPICS_PER_REQUEST):
            query = [*(("topic", name) for name in topics[at : at + TOPICS_PER_REQUEST]), *more]
            found |= self._get(wire.TOPICS, query, deadline, "the topics", wire.logs_of)
        return found

    def _topic_names(self, deadline: Deadline) -> list[str]:
        return self._get(wire.TOPIC_NAMES, [], deadline, "the topics", wire.names_of)

    def _get(
        self,
        path: str,
        query: Iterable[tuple[str, object]],
        deadline: Deadline,
        what: str,
        read: Callable[[dict[str, Any]], _T],
    ) -> _T:
        """Ask until the service answers: it may just be starting, and Kafka electing a leader.

        The service answers by the deadline, too: if Kafka does not, it says so.
        """
        core, reason = self.core, None
        for _ in waits.pauses(core.ended, deadline):
            within = ("timeout_s", round(deadline.for_service_s(), 3))
            try:
                data = core.get(wire.target(path, *query, within), deadline)
                with wire.reading(what):
                    return read(data)
            except (ServiceUnavailableError, PassingError) as error:
                reason = waits.better_reason(reason, error, deadline)
            except OffsetManagerError as error:
                reason = error
                break
        reason = reason or ServiceUnavailableError("the service was not asked")
        # The message says it all; the frames of the connection would hide it.
        raise reason.with_traceback(None) from reason.__cause__

    # The end

    def _close(self, deadline: Deadline) -> FlushResult:
        core = self._state
        with core.lock:
            core.closing = True
        result = waits.stop(core, Selection(), deadline)
        core.end(deadline)
        log_uncommitted(f"client {self.name}", result.uncommitted)
        return result

    def _abandon(self) -> None:
        self._state.abandon()

    def __reduce__(self) -> tuple[object, tuple[str, str, dict[str, str | None]]]:
        return _elsewhere, (self._url, self._name, self._credentials.files)


def _own_name(base: str = "") -> str:
    """Return `base` with an end that no other process has, nor another client of this one."""
    end = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    return f"{base[: MAX_GROUP_CHARS - len(end) - 1]}.{end}" if base else end


def _elsewhere(url: str, name: str, files: dict[str, str | None]) -> OffsetClient:
    """Return what arrives of a pickled client: another one, which does not fence the first."""
    return OffsetClient(url, _own_name(name), **files)
