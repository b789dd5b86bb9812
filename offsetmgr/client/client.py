"""The client: hands offsets to the service next to it, and never slows its caller.

Offsets are sent by the client's own thread.  Calls that wait ask in the caller's thread.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from offsetmgr.backoff import Backoff
from offsetmgr.client import wire
from offsetmgr.client.calls import InterruptedCallError
from offsetmgr.client.core import Core
from offsetmgr.client.failure_log import FailureLog
from offsetmgr.client.offsets import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Handle,
    Offsets,
    better_reason,
    by_group,
    named,
    pauses,
    timed_out,
)
from offsetmgr.client.transport import Credentials, parse_url
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
    ServiceError,
)
from offsetmgr.types import (
    MAX_GROUP_CHARS,
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    StopResult,
    TopicPartition,
    Uncommitted,
    check_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.client.offsets import Logs, Named, QueryReport, Refusals, SubmitResult, Values
    from offsetmgr.client.partitions import ClientPartition, Mailboxes
    from offsetmgr.types import Stream

_T = TypeVar("_T")

CHUNK: Final = 5_000
"""Partitions named in one flush or stop; the service takes 10,000."""

INITIAL_WAIT_S: Final = 10.0
"""Longest wait of one request for an initial offset."""

TOPICS_PER_REQUEST: Final = 50
"""Keeps the request's first line within what HTTP servers take."""


class OffsetClient(Offsets):
    """A client of the service at `url`, `http(s)://host:port` or `unix:///path/of/the.sock`.

    `name` is the owner of the managers.  A restarted driver of the same name takes them over at
    once, and the older client is fenced.  Without a name the client gets a unique one, and its
    successor waits until its lease has ended.

    A submit takes microseconds and does not fail if the service is down: the client keeps the
    newest offset of each partition, and sends it again to a restarted service.

    An unpickled client is a new client: its name is this one with a suffix, and it has no offsets.

    `token_file` contains the token for the service, `ca_file` the authority of its certificate (by
    default the system's), `cert_file` and `key_file` the client's own certificate.  The files are
    read again when they change.

    Raises InvalidValueError for a bad url or name, or a file that cannot be used.
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
        super().__init__(url, own, failures, self._state.ended)

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
        core = self.core

        def are_given() -> bool:
            core.check_fence()
            for key in keys:
                if core.partitions.get(key) is not claimed[key]:
                    raise ManagerStoppedError(f"{key} was stopped while this call waited for it")
                if (error := claimed[key].error) is not None:
                    raise error
                if not claimed[key].registered:
                    return False
            return True

        claimed: dict[ManagerKey, ClientPartition] = {}
        given = False
        try:
            core.claim(keys, claimed)
            core.expedite()
            with core.lock:
                given = core.wait_for(are_given, deadline)
                reason = core.link_error
        finally:  # after Ctrl-C too: nobody else would give them back
            if not given:
                # What was submitted meanwhile goes on.
                idle = {key: held for key, held in claimed.items() if not held.version}
                core.forget(idle, FlushResult({}, {}), unanswered=keys)
        if not given:
            raise timed_out(f"could not acquire {named(keys)}", deadline, reason)

    def _submit(self, offsets: Values, *, rewind: bool, wait: Deadline | None) -> SubmitResult:
        core = self.core
        try:
            with core.lock:  # nobody stops and forgets them in between
                refused = core.submit(offsets, rewind=rewind)
                if wait is None:
                    return refused, {}
                waiting = Wait(core, [key for key in offsets if key not in refused], wait)
        except InterruptedCallError as interrupted:
            return {}, dict.fromkeys(() if wait is None else offsets, interrupted)
        waiting.run()
        late: Refusals = {}
        for key, (_, error) in waiting.result().uncommitted.items():
            ended = isinstance(error, (ClientFencedError, ManagerStoppedError))
            (refused if ended or key in waiting.final else late)[key] = error
        return refused, late

    def _settle(
        self, group: str | None, partitions: Named, deadline: Deadline, *, stop: bool
    ) -> FlushResult:
        core = self.core
        wait: Wait | None = None
        try:
            with core.lock:
                keys = core.partitions.keys(group, partitions)
                wait = Wait(core, keys, deadline, stops=stop, all_of_it=group is None)
                wait.begin()
            wait.run()
            return self._end(wait)
        except BaseException:  # such as Ctrl-C, in the end as well: nobody else would end this stop
            if stop and wait is not None:
                wait.give_up()
                self._end(wait)
            raise

    def _end(self, wait: Wait) -> FlushResult:
        result = wait.result()
        if wait.stops:
            self.core.forget(wait.held, result, wait.unanswered, wait)
        return result

    def _listen(self) -> None:
        self.core.listen()

    def report_query(self, report: QueryReport) -> None:
        self._state.report_query(report)

    # Questions to Kafka.  The service answers by the deadline, too: if Kafka does not, it says so.

    def _committed(self, group: str, deadline: Deadline) -> dict[TopicPartition, OffsetAndMetadata]:
        query = [("group", group)]
        try:
            return self._get(wire.OFFSETS, query, deadline, wire.committed_of)
        except ServiceError as error:
            if error.code != wire.TOO_LARGE:
                raise
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        query += [("limit", str(CHUNK))]
        page, after = self._get(wire.OFFSETS, query, deadline, wire.page_of)
        while after is not None:
            found |= page
            following = [*query, ("after", after)]
            page, after = self._get(wire.OFFSETS, following, deadline, wire.page_of)
        return found | page

    def _logs(
        self, topics: list[str], deadline: Deadline, *, at_ms: int | None, stable: bool
    ) -> Logs:
        more = [] if at_ms is None else [("at_ms", str(at_ms))]
        more += [("stable", "true")] if stable else []
        found: Logs = {}
        for at in range(0, len(topics), TOPICS_PER_REQUEST):
            asked = topics[at : at + TOPICS_PER_REQUEST]
            named = [("topic", name) for name in asked]
            read = partial(wire.logs_of, topics=asked)
            found |= self._get(wire.TOPICS, named + more, deadline, read)
        return found

    def _topic_names(self, deadline: Deadline) -> list[str]:
        return self._get(wire.TOPIC_NAMES, [], deadline, wire.names_of)

    def topic_ids_of(self, keys: Iterable[ManagerKey]) -> dict[ManagerKey, str]:
        held = ((key, self._state.partitions.get(key)) for key in keys)
        return {key: each.topic_id for key, each in held if each is not None and each.topic_id}

    def _get(
        self,
        path: str,
        query: list[tuple[str, str]],
        deadline: Deadline,
        read: Callable[[dict[str, Any]], _T],
    ) -> _T:
        within = ("timeout_s", round(deadline.for_service_s(), 3))
        return self.core.ask(wire.target(path, *query, within), deadline, read)

    # The end

    def _close(self, deadline: Deadline) -> None:
        core = self._state
        with core.lock:
            core.closing = True
            keys = core.partitions.keys()
            wait = Wait(core, keys, deadline, stops=True, all_of_it=True)
            wait.begin()
        wait.run()
        self._closed_with(wait.result())
        self._end(wait)
        core.end(deadline)

    def _unsettled(self, error: OffsetManagerError) -> FlushResult:
        core = self._state
        return Wait(core, core.partitions.keys(), Deadline(0.0), reason=error).result()

    def __reduce__(self) -> tuple[object, tuple[str, str, dict[str, str | None]]]:
        return _elsewhere, (self._url, self._name, self._credentials.files)


def _own_name(base: str = "") -> str:
    """Return `base` with an end that no other process has, nor another client of this one."""
    end = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    return f"{base[: MAX_GROUP_CHARS - len(end) - 1]}.{end}" if base else end


def _elsewhere(url: str, name: str, files: dict[str, str | None]) -> OffsetClient:
    """Return what arrives of a pickled client: another one, which does not fence the first."""
    return OffsetClient(url, _own_name(name), **files)


class RemoteManagerHandle(Handle):
    """A manager of the service for one partition of a group."""

    def __init__(self, key: ManagerKey, mail: Mailboxes, client: OffsetClient) -> None:
        super().__init__(key)
        self._mail = mail
        self._client = client
        self._initial: tuple[OffsetAndMetadata | None] | None = None

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        deadline = Deadline(timeout, forever=True)
        if self._initial is None:
            self._initial = self._wait_for_initial(self._live(), deadline)
        return self._initial[0]

    def _put(self, value: OffsetAndMetadata, *, rewind: bool) -> Refusals:
        return self._live().submit({self._key: value}, rewind=rewind)

    def committed_offsets(self) -> Stream[OffsetAndMetadata]:
        self._client.core.listen()
        return self._mail.committed

    def errors(self) -> Stream[OffsetManagerError]:
        self._client.core.listen()
        return self._mail.errors

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        deadline = Deadline(timeout)
        core, mail = self._client.core, self._mail
        if mail.result is None:
            group, mine = self._key.group, [self._key.topic_partition]
            self._client._settle(group, mine, deadline, stop=True)  # noqa: SLF001 -- of this module
        with core.lock:  # a later stop may have taken it over
            core.wait_for(lambda: mail.result is not None, deadline)
        if mail.result is not None:
            return mail.result
        error = OffsetTimeoutError(f"{self._key}: another stop of it took longer than {timeout} s")
        return StopResult(None, None, error)

    def _live(self) -> Core:
        core = self._client.core
        if self._mail.result is not None:
            raise ManagerStoppedError(f"{self._key} is stopped; spawn a new manager")
        return core

    def _wait_for_initial(self, core: Core, deadline: Deadline) -> tuple[OffsetAndMetadata | None]:
        key, reason = self._key, None

        def is_registered() -> bool:
            core.check_fence()
            held = core.partitions.get(key)
            if held is None or self._mail.result is not None:
                raise ManagerStoppedError(f"{key} is stopped; spawn a new manager")
            return held.registered

        core.expedite()
        for _ in pauses(core.ended, deadline):
            with core.lock:
                if not core.wait_for(is_registered, deadline):
                    break
            query = {**key._asdict(), "wait_s": min(deadline.for_service_s(), INITIAL_WAIT_S)}
            target = wire.target(wire.INITIAL_OFFSETS, *query.items())
            try:
                found = core.ask(target, deadline, partial(wire.initial_of, key=key))
            except OffsetManagerError as error:
                if is_forbidden(error):
                    raise
                reason = better_reason(reason, error, deadline)
                continue
            if found is not None:
                return found
            core.lost([key])
        with core.lock:
            waiting = None if is_registered() else core.partitions.get(key)
            reason = reason or (waiting and waiting.error) or core.link_error
        raise timed_out(f"could not get the initial offset of {key}", deadline, reason)


class Wait:
    """A flush or a stop: the versions that are waited for, and what is known of each.

    It is about the managers that the client held at first, and about no later ones of the same
    partitions.  A stop takes over those that another one is stopping, which then waits for this.
    """

    def __init__(
        self,
        core: Core,
        keys: Iterable[ManagerKey],
        deadline: Deadline,
        *,
        stops: bool = False,
        all_of_it: bool = False,
        reason: OffsetManagerError | None = None,
    ) -> None:
        """`all_of_it`: nothing but `keys` is held, so a request need not name them."""
        self._core = core
        self._deadline = deadline
        self.thread = threading.current_thread()
        self.stops = stops
        self._unnamed = all_of_it
        self._reasons: dict[ManagerKey, OffsetManagerError] = {}
        self.reason = reason
        self.final: set[ManagerKey] = set()
        """Those that will not be committed."""
        with core.lock:
            self._version = core.partitions.stop_version() if stops else 0
            """Of the stop: higher than what its managers have, lower than what comes later."""
            found = ((key, core.partitions.get(key)) for key in keys)
            self.held = {key: held for key, held in found if held is not None}
        self._targets = {key: held.version for key, held in self.held.items() if held.version}
        self.unanswered = dict.fromkeys(self.held) if stops else {}
        """Managers to stop that are not known to be stopped."""
        for key, held in self.held.items():
            is_waiting = isinstance(held.stopper, Wait) and held.stopper.thread == self.thread
            if is_waiting and not stops:
                text = "a signal handler cannot wait for the stop that it has interrupted"
                self._reasons[key] = InterruptedCallError(text)
                self.final.add(key)

    def begin(self) -> None:
        """Have what is to be stopped take no more; the lock is held since this was made."""
        for held in self.held.values() if self.stops else ():
            held.stopper = self

    def give_up(self) -> None:
        """Stop no manager whose newest offset the service has not got yet."""
        self.reason = ManagerStoppedError("the stop of its manager was interrupted")
        with self._core.lock:
            for held in self.held.values():
                if held.stopper is self and held.is_unsent:
                    held.stopper = None

    def run(self) -> None:
        """Ask until all is committed, and stopped, or waiting longer is pointless."""
        core, backoff = self._core, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while not (self._is_over() or self._deadline.over):
            try:
                if self._is_delivered() and not self._is_over():
                    self._ask()
                    self.reason = None
            except OffsetManagerError as error:
                if not core.ended.is_set():  # else it was the close that broke it off
                    self.reason = better_reason(self.reason, error, self._deadline)
                if is_forbidden(error):
                    return
                if error.code == wire.TOO_LARGE:
                    self._unnamed = False  # smaller answers follow
            with core.lock:
                core.changed.wait_for(self._is_over, self._deadline.within_s(backoff.failed()))

    def _is_over(self) -> bool:
        core = self._core
        with core.lock:
            if core.fenced is not None or core.ended.is_set() or core.is_stuck:
                return True
            if not self.stops:
                return not any(map(self._is_outstanding, self._targets))
            # The service may have managers to stop, or has yet to be given offsets.
            partitions = core.partitions
            left = (self.held[key] for key in self.unanswered if not self._is_gone(key))
            if any(held.version or partitions.may_exist(held) for held in left):
                return False
            return not (self._unnamed and partitions.pending_stops)

    def _is_outstanding(self, key: ManagerKey) -> bool:
        is_committed = self.held[key].committed_version >= self._targets[key]
        return not (is_committed or key in self.final or self._is_gone(key))

    def _is_gone(self, key: ManagerKey) -> bool:
        """True if somebody else has stopped the manager meanwhile."""
        return self._core.partitions.get(key) is not self.held[key]

    def _mine(self) -> list[ManagerKey]:
        """Return what is to be stopped, unless a later stop has it."""
        for key in self.unanswered:
            self.held[key].stopper = self.held[key].stopper or self
        return [key for key in self.unanswered if self.held[key].stopper is self]

    def _is_delivered(self) -> bool:
        """Wait until the service has all offsets, or has refused them; False if it does not."""
        core = self._core

        def is_delivered() -> bool:
            return (
                core.fenced is not None
                or core.ended.is_set()
                or all(
                    self.held[key].settled_version >= version or self._is_gone(key)
                    for key, version in self._targets.items()
                )
            )

        with core.lock:
            core.expedite()
            done = core.wait_for(is_delivered, self._deadline)
            core.check_fence()
            self.final.update(key for key in self._targets if self.held[key].error is not None)
            for key in [key for key in self.unanswered if is_forbidden(self.held[key].error)]:
                del self.unanswered[key]  # to name it would keep the others from being stopped
            return done and not core.ended.is_set()

    def _ask(self) -> None:
        """Have the service flush, or stop; what it has no manager for is sent to it again."""
        core, partitions = self._core, self._core.partitions
        path, version = (wire.STOP, self._version) if self.stops else (wire.FLUSH, None)
        with core.lock:
            registration = partitions.registration
            sent = {key: held.sent for key, held in self.held.items() if not self._is_gone(key)}
            asked = self._mine() if self.stops else filter(self._is_outstanding, self._targets)
            keys = list(asked)
            pending = list(partitions.pending_stops) if self._unnamed and self.stops else []
        missing = dict.fromkeys(key for key in keys if key in self._targets)
        pieces: Sequence[tuple[str | None, list[TopicPartition] | None]] = _pieces_of(keys)
        if self._unnamed:
            pieces = [(None, None)]
        for at, piece in enumerate(pieces):
            timeout_s = self._deadline.for_service_s() / (len(pieces) - at)
            body = wire.flush_body(*piece, timeout_s, version)
            settled, topic_ids = core.ask(path, self._deadline, wire.settled_of, body)
            with core.lock:
                if partitions.registration != registration:
                    return  # it restarted, and knew nothing of what was asked
                partitions.learn(topic_ids)
            self._apply(settled, sent)
            for key in itertools.chain(*settled):
                missing.pop(key, None)
        with core.lock:
            wanted = [key for key in missing if not (key in self.final or self._is_gone(key))]
            again = set(partitions.lost(wanted, self if self.stops else None))
            for key in pending:
                partitions.pending_stops.pop(key, None)
            if self.stops:
                # A new version, as this stop would hold back what is sent again.
                self._version, self._unnamed = partitions.stop_version(), False
                for key in self._mine():
                    if key not in again:
                        del self.unanswered[key]

    def _apply(self, settled: wire.Settled, sent: Mapping[ManagerKey, int]) -> None:
        core, (committed, uncommitted) = self._core, settled
        with core.lock:
            for key, value in committed.items():
                held, version = self.held.get(key), sent.get(key, 0)
                if held is None:
                    continue
                error = held.superseded_by(key, value, version)
                if error is not None:
                    self._reasons[key] = error
                    self.final.add(key)
                # Where nothing was sent it is the initial offset.
                held.commit(value, version if error is None else held.committed_version)
            for key, failure in uncommitted.items():
                self._reasons[key] = failure
                core.heed(key, failure)
                if self._is_final(key, failure, sent):
                    self.final.add(key)
        for key in committed.keys() - self.final:
            core.failure_log.committed(key)

    def _is_final(
        self, key: ManagerKey, error: OffsetManagerError, sent: Mapping[ManagerKey, int]
    ) -> bool:
        """True if what the service had when it was asked will not be committed any more."""
        if isinstance(error, OffsetRegressionError):
            held = self.held.get(key)
            # Else something newer is on its way, and may be high enough.
            return held is None or held.version <= sent.get(key, 0)
        return isinstance(error, CoordinatorError) and not error.retriable

    def result(self) -> FlushResult:
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        with self._core.lock:
            for key, held in self.held.items():
                version = self._targets.get(key, 0)
                if held.committed_version < version and held.newest is not None:
                    uncommitted[key] = Uncommitted(held.newest, self._why(key, held))
                elif held.committed is not None:
                    committed[key] = held.committed
        return FlushResult(committed, uncommitted)

    def _why(self, key: ManagerKey, held: ClientPartition) -> OffsetManagerError:
        core = self._core
        known = held.error or self._reasons.get(key) or core.fenced
        passes = isinstance(known, CoordinatorError) and known.retriable and not self.stops
        if known is None or passes or known.code == OffsetTimeoutError.code:  # else it says more
            if core.ended.is_set():
                return ManagerStoppedError(f"the client was closed before {key} was committed")
            if self._is_gone(key):
                return ManagerStoppedError(f"{key} was stopped before this offset was committed")
        late = f"the service did not answer within {self._deadline.timeout} s"
        return known or self.reason or core.link_error or OffsetTimeoutError(late)


def is_forbidden(error: OffsetManagerError | None) -> bool:
    """Return True if the service will never do it: this client's identity has no right to that."""
    return isinstance(error, ServiceError) and error.status == HTTPStatus.FORBIDDEN


def _pieces_of(keys: Iterable[ManagerKey]) -> list[tuple[str, list[TopicPartition]]]:
    return [
        (group, partitions[at : at + CHUNK])
        for group, partitions in by_group(keys).items()
        for at in range(0, len(partitions), CHUNK)
    ]
