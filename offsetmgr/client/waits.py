"""A caller's waits: flush and stop, the commit of a submit, a claim, an initial offset.

They run in the caller's thread on connections of its own, so that one that waits for Kafka holds
up nothing else, and answer by their deadline.  Offsets are sent by the sender alone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from offsetmgr.client import wire
from offsetmgr.client.offsets import Deadline, named, timed_out
from offsetmgr.client.sender import FIRST_PAUSE_S
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
)
from offsetmgr.types import FlushResult, Uncommitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from offsetmgr.client.core import Core
    from offsetmgr.client.handle import Mailboxes
    from offsetmgr.client.offsets import Refusals, Selection
    from offsetmgr.client.partitions import ClientPartition
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

CHUNK: Final = 5_000
"""Partitions named in one flush or stop; the service takes 10,000."""

LONGEST_PAUSE_S: Final = 1.0
INITIAL_WAIT_S: Final = 10.0
"""Longest wait of one request for an initial offset."""


def flush(core: Core, selection: Selection, deadline: Deadline) -> FlushResult:
    """Have the newest offsets of the managers committed."""
    with core.lock:
        keys = core.partitions.keys(*selection)
    return Wait(core, keys, deadline, all_of_it=selection.group is None).run()


def stop(core: Core, selection: Selection, deadline: Deadline) -> FlushResult:
    """Have the newest offsets of the managers committed, then stop them.

    Managers that are being stopped by somebody else are left to them.
    """
    with core.lock:
        keys = core.partitions.stop(core.partitions.keys(*selection))
        wait = Wait(core, keys, deadline, stops=True, all_of_it=selection.group is None)
    try:
        result = wait.run()
    except BaseException:  # Ctrl-C: nobody else would end this stop, so that its managers go on
        with core.lock:
            core.partitions.unstop(keys)
            core.notify()
        raise
    core.forget(keys, result, answered=wait.answered)
    return result


def commit(
    core: Core,
    values: Mapping[ManagerKey, OffsetAndMetadata],
    deadline: Deadline,
    *,
    rewind: bool,
) -> tuple[Refusals, Refusals]:
    """Submit `values` and wait for Kafka; return what is refused, and what is still tried."""
    with core.lock:  # nobody stops and forgets them in between
        refused = core.submit(values, rewind=rewind)
        wait = Wait(core, [key for key in values if key not in refused], deadline)
    late: Refusals = {}
    for key, (_, error) in wait.run().uncommitted.items():
        is_final = isinstance(error, (ClientFencedError, ManagerStoppedError)) or key in wait.final
        (refused if is_final else late)[key] = error
    return refused, late


class Wait:
    """A flush or a stop: the versions that are waited for, and what is known of each."""

    def __init__(
        self,
        core: Core,
        keys: Iterable[ManagerKey],
        deadline: Deadline,
        *,
        stops: bool = False,
        all_of_it: bool = False,
    ) -> None:
        """`all_of_it`: nothing but `keys` is held, so that a request need not name them."""
        self._core = core
        self._deadline = deadline
        self._stops = stops
        self._unnamed = all_of_it
        self._reasons: dict[ManagerKey, OffsetManagerError] = {}
        self._reason: OffsetManagerError | None = None
        """Why the last request failed."""
        self.final: set[ManagerKey] = set()
        """Waiting longer for these is pointless."""
        self.answered = False
        """True if the service is known to have stopped all of them."""
        with core.lock:
            self._version = core.partitions.next_version()
            """Of the stop: higher than what its managers have, lower than what comes later."""
            found = ((key, core.partitions.get(key)) for key in keys)
            # Kept by itself: what somebody else stops meanwhile leaves the partitions with its end.
            self._held = {key: held for key, held in found if held is not None}
        self._targets = {key: held.version for key, held in self._held.items() if held.version}
        self._to_stop = dict.fromkeys(self._held)
        """Not known to be stopped."""

    def run(self) -> FlushResult:
        """Ask until all is committed, and stopped, or waiting longer is pointless."""
        core, pause_s = self._core, FIRST_PAUSE_S
        while not (self._is_over() or self._deadline.over):
            try:
                if self._is_delivered():
                    self._ask()
                    self._reason = None
            except OffsetManagerError as error:
                if not core.ended.is_set():  # else it was the close that broke it off
                    self._reason = better_reason(self._reason, error, self._deadline)
            with core.lock:
                core.changed.wait_for(self._is_over, self._deadline.within_s(pause_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return self._result()

    def _is_over(self) -> bool:
        core = self._core
        with core.lock:
            if core.fenced is not None or core.ended.is_set() or self.answered:
                return True
            if not self._stops:
                return not any(map(self._is_outstanding, self._targets))
            # The service may have managers to stop, or has yet to be given offsets.
            found = map(core.partitions.get, self._held)
            return not any(
                held and (held.version or core.partitions.may_exist(held)) for held in found
            )

    def _is_outstanding(self, key: ManagerKey) -> bool:
        return not (key in self.final or self._is_committed(key) or self._is_gone(key))

    def _is_committed(self, key: ManagerKey) -> bool:
        return self._held[key].committed_version >= self._targets[key]

    def _is_gone(self, key: ManagerKey) -> bool:
        """True if somebody else has stopped the manager meanwhile."""
        return self._core.partitions.get(key) is not self._held[key]

    def _is_delivered(self) -> bool:
        """Wait until the service has all offsets, or has refused them; False if it does not."""
        core = self._core
        waiting = list(self._targets.items())

        def is_delivered() -> bool:
            while waiting:
                key, version = waiting[-1]
                if self._held[key].settled_version < version and not self._is_gone(key):
                    return core.fenced is not None or core.ended.is_set()
                waiting.pop()
            return True

        with core.lock:
            core.expedite()
            done = core.changed.wait_for(is_delivered, self._deadline.within_s())
            core.check_fence()
            return done and not core.ended.is_set()

    def _ask(self) -> None:
        """Have the service flush, or stop; what it has no manager for is sent to it again."""
        core, partitions = self._core, self._core.partitions
        path, version = (wire.STOP, self._version) if self._stops else (wire.FLUSH, None)
        with core.lock:
            registration = partitions.registration
            sent = {key: held.sent for key in self._held if (held := partitions.get(key))}
            asked = self._to_stop if self._stops else filter(self._is_outstanding, self._targets)
            keys = list(asked)
        missing = self._targets.keys() & keys
        pieces: Sequence[tuple[str | None, list[TopicPartition] | None]] = _pieces_of(keys)
        if self._unnamed:
            pieces = [(None, None)]
        for at, piece in enumerate(pieces):
            timeout_s = self._deadline.for_service_s() / (len(pieces) - at)
            data = core.post(path, wire.flush_body(*piece, timeout_s, version), self._deadline)
            with wire.reading(path):
                settled = wire.settled_of(data)
            with core.lock:
                if partitions.registration != registration:
                    return  # it restarted, and knew nothing of what was asked
            self._apply(settled, sent)
            for key in (*settled.committed, *settled.uncommitted):
                missing.discard(key)
                self._to_stop.pop(key, None)
        missing -= self.final
        with core.lock:
            # Asked for again they would outlive a stop that is under way.
            mine = [key for key in missing if self._stops or not self._held[key].stopping]
            partitions.lost(mine)
            if self._stops:
                # A new version, as this stop would hold back what is sent again.
                self._version = partitions.next_version()
                self._to_stop, self._unnamed, self.answered = dict.fromkeys(mine), False, not mine

    def _apply(self, settled: wire.Settled, sent: Mapping[ManagerKey, int]) -> None:
        core = self._core
        for key, value in settled.committed.items():
            version = sent.get(key, 0)
            with core.lock:
                held = core.partitions.get(key)
                error = held.superseded_by(key, value, version) if held is not None else None
            if error is not None:
                self._reasons[key] = error
                self.final.add(key)
            # Where nothing was sent it is the initial offset.
            core.committed(key, value, version if error is None else 0, ours=version > 0)
        for key, failure in settled.uncommitted.items():
            self._reasons[key] = failure or kafka_is_silent()
            core.heed(key, self._reasons[key])
            if self._is_final(key, self._reasons[key], sent):
                self.final.add(key)
        with core.lock:
            for key in self._targets:
                held = core.partitions.get(key)
                if held is not None and held.error is not None:
                    self.final.add(key)

    def _is_final(
        self, key: ManagerKey, error: OffsetManagerError, sent: Mapping[ManagerKey, int]
    ) -> bool:
        """True if what the service had when it was asked will not be committed any more."""
        if isinstance(error, OffsetRegressionError):
            with self._core.lock:
                held = self._core.partitions.get(key)
                # Else something newer is on its way, and may be high enough.
                return held is None or held.version <= sent.get(key, 0)
        return isinstance(error, CoordinatorError) and not error.retriable

    def _result(self) -> FlushResult:
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        with self._core.lock:
            for key, held in self._held.items():
                version = self._targets.get(key, 0)
                if held.committed_version < version and held.newest is not None:
                    uncommitted[key] = Uncommitted(held.newest, self._why(key, held))
                elif held.committed is not None:
                    committed[key] = held.committed
        return FlushResult(committed, uncommitted)

    def _why(self, key: ManagerKey, held: ClientPartition) -> OffsetManagerError:
        core = self._core
        known = held.error or self._reasons.get(key) or core.fenced
        known = known or self._reason or core.link_error
        if known is not None:
            return known
        if core.ended.is_set():
            return ManagerStoppedError(f"the client was closed before {key} was committed")
        if self._is_gone(key):
            return ManagerStoppedError(f"{key} was stopped before this offset was committed")
        return OffsetTimeoutError(f"the service did not answer within {self._deadline.timeout} s")


def _pieces_of(keys: Iterable[ManagerKey]) -> list[tuple[str, list[TopicPartition]]]:
    """Return groups with partitions of theirs, as many as the service takes at once."""
    groups: dict[str, list[TopicPartition]] = {}
    for key in keys:
        groups.setdefault(key.group, []).append(key.topic_partition)
    return [
        (group, named[at : at + CHUNK])
        for group, named in groups.items()
        for at in range(0, len(named), CHUNK)
    ]


def pauses(ended: threading.Event, deadline: Deadline) -> Iterator[None]:
    """Yield, and wait longer and longer before the next, until the deadline or `ended`."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield
        if deadline.over or ended.wait(deadline.within_s(pause_s)):
            return
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def better_reason(
    before: OffsetManagerError | None, error: OffsetManagerError, deadline: Deadline
) -> OffsetManagerError:
    """Return the first reason after the deadline, whose end causes later errors."""
    return before if before is not None and deadline.over else error


def kafka_is_silent() -> OffsetManagerError:
    """Return why the service, which answered, could not say that an offset is committed."""
    return OffsetTimeoutError("Kafka did not answer the service in time")


def claim(core: Core, keys: Sequence[ManagerKey], deadline: Deadline) -> None:
    """Hold managers for `keys` when the service has given them to this client; else hold none."""

    def are_given() -> bool:
        core.check_fence()
        for key in keys:
            held = core.partitions.get(key)
            if held is None:
                raise ManagerStoppedError(f"{key} was stopped while this call waited for it")
            if held.error is not None:
                raise held.error
            if not held.registered:
                return False
        return True

    core.claim(keys)
    core.expedite()
    given = False
    try:
        with core.lock:
            given = core.changed.wait_for(are_given, deadline.within_s(threading.TIMEOUT_MAX))
            reason = core.link_error
    finally:  # after Ctrl-C too: nobody else would give them back
        if not given:
            core.forget(keys, FlushResult({}, {}), answered=False)
    if not given:
        raise timed_out(f"could not acquire {named(keys)}", deadline, reason)


def initial_offset(
    core: Core, key: ManagerKey, mail: Mailboxes, deadline: Deadline
) -> OffsetAndMetadata | None:
    """Return what was committed when the manager started, as soon as the service knows it."""
    reason: OffsetManagerError | None = None
    core.expedite()
    for _ in pauses(core.ended, deadline):
        try:
            if _is_registered(core, key, mail, deadline):
                return _ask_initial(core, key, deadline)
        except (ClientFencedError, ManagerStoppedError):
            raise
        except OffsetManagerError as error:
            reason = better_reason(reason, error, deadline)
    _is_registered(core, key, mail, Deadline(0))
    held = core.partitions.get(key)
    if held is not None and not held.registered:
        reason = reason or held.error or core.link_error
    what = f"could not get the initial offset of {key}"
    raise timed_out(what, deadline, reason or core.link_error)


def _is_registered(core: Core, key: ManagerKey, mail: Mailboxes, deadline: Deadline) -> bool:
    """Wait until the service has the manager."""
    with core.lock:

        def is_ready() -> bool:
            held = core.partitions.get(key)
            over = mail.result is not None or core.fenced is not None
            return over or held is None or held.registered

        found = core.changed.wait_for(is_ready, deadline.within_s())
        core.check_fence()
        if mail.result is not None or key not in core.partitions:
            raise ManagerStoppedError(f"{key} is stopped; spawn a new manager")
        return found


def _ask_initial(core: Core, key: ManagerKey, deadline: Deadline) -> OffsetAndMetadata | None:
    """Return the initial offset; raise why it is not known."""
    query = {**key._asdict(), "wait_s": min(deadline.for_service_s(), INITIAL_WAIT_S)}
    data = core.get(wire.target(wire.INITIAL_OFFSETS, *query.items()), deadline)
    with wire.reading("the initial offsets"):
        entries = {wire.partition_of(each): each for each in data["initial_offsets"]}
        entry = entries.get(key.topic_partition)
        if entry is not None and entry["known"]:
            found = entry["committed"]
            return None if found is None else wire.offset_of(found)
        failure = None if entry is None else entry["error"]
        reason = kafka_is_silent() if failure is None else wire.error_of(failure, key)
    if entry is None:
        with core.lock:
            core.partitions.lost([key])
            core.wake.notify()
    raise reason
