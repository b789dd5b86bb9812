"""A flush or a stop of several managers, within its deadline.

It runs in the caller's thread on connections of its own, so that one that waits for Kafka holds
up nothing else.  What has to be sent first is left to the sender.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.client import wire
from offsetmgr.client.backoff import FIRST_PAUSE_S
from offsetmgr.errors import (
    CoordinatorError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
)
from offsetmgr.types import FlushResult, Uncommitted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.client.core import Core
    from offsetmgr.client.deadline import Deadline
    from offsetmgr.client.partitions import ClientPartition
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

CHUNK: Final = 5_000
"""Partitions named in one flush or stop; the service takes 10,000."""

LONGEST_PAUSE_S: Final = 1.0


class Scope(NamedTuple):
    """Which managers are meant; None stands for all."""

    group: str | None = None
    partitions: Collection[TopicPartition] | None = None

    def pieces(self) -> list[Scope]:
        """The same, in pieces that the service takes."""
        if self.group is None or self.partitions is None:
            return [self]
        named = list(self.partitions)
        starts = range(0, len(named), CHUNK)
        return [Scope(self.group, named[at : at + CHUNK]) for at in starts]


def flush(core: Core, scope: Scope, deadline: Deadline) -> FlushResult:
    """Have the newest of all managers in `scope` committed."""
    core.check_process()
    with core.lock:
        keys = core.partitions.keys(*scope)
    return FlushCall(core, scope, keys, deadline).flush()


def stop(core: Core, scope: Scope, deadline: Deadline) -> FlushResult:
    """Have the newest of all managers in `scope` committed, then stop them.

    Managers that are being stopped by somebody else are left to them.
    """
    core.check_process()
    with core.lock:
        keys = core.partitions.stop(core.partitions.keys(*scope))
        call = FlushCall(core, scope, keys, deadline)
        if scope.group is not None:
            call.name_partitions()
    try:
        result = call.stop()
    except BaseException:
        # Ctrl-C: nobody else would end this stop, so that its managers go on.
        core.unstop(keys)
        raise
    core.forget(keys, result, answered=call.answered)
    return result


def telling(
    before: OffsetManagerError | None, error: OffsetManagerError, deadline: Deadline
) -> OffsetManagerError:
    """Of two reasons the one to tell: that the caller's own time ran out says the least."""
    return before if before is not None and deadline.over else error


def kafka_is_silent() -> OffsetManagerError:
    """Why the service, which answered, could not say that an offset is committed."""
    return OffsetTimeoutError("Kafka did not answer the service in time")


def _pieces_of(keys: Iterable[ManagerKey]) -> list[Scope]:
    """Return scopes that name each of `keys`."""
    groups: dict[str, list[TopicPartition]] = {}
    for key in keys:
        groups.setdefault(key.group, []).append(key.topic_partition)
    return [piece for each in groups.items() for piece in Scope(*each).pieces()]


class FlushCall:
    """The versions that are waited for, and what is known of each."""

    def __init__(
        self, core: Core, scope: Scope, keys: list[ManagerKey], deadline: Deadline
    ) -> None:
        """`keys` are the managers of `scope` that the result will speak of."""
        self._core = core
        self._keys = keys
        self._pieces = scope.pieces()
        self._deadline = deadline
        self._reasons: dict[ManagerKey, OffsetManagerError] = {}
        self._reason: OffsetManagerError | None = None
        self._hopeless: set[ManagerKey] = set()
        """Waiting longer for these is pointless."""
        self._stopped: set[ManagerKey] = set()
        """What the service has committed and stopped, by its answers so far."""
        self.answered = False
        """True if the service is known to have stopped all of them."""
        with core.lock:
            self._version = core.partitions.next_version()
            """Of the stop: higher than what its managers have, lower than what comes later."""
            found = ((key, core.partitions.get(key)) for key in keys)
            # Kept by itself: what somebody else stops meanwhile leaves the partitions with its end.
            self._held = {key: held for key, held in found if held is not None}
            self._targets = {key: held.version for key, held in self._held.items() if held.version}

    def name_partitions(self) -> None:
        """Speak of each partition by name, so that a stop is heard before a late submit too."""
        self._pieces = _pieces_of(self._keys)

    def flush(self) -> FlushResult:
        """Ask until all is committed, or waiting longer is pointless."""
        pause_s = FIRST_PAUSE_S
        while self._outstanding() and not self._is_over():
            if not self._attempt(wire.FLUSH) and self._core.fenced is not None:
                break
            if self._outstanding():
                pause_s = self._pause(pause_s, self._outstanding)
        return self._result()

    def stop(self) -> FlushResult:
        """Ask until the service has committed what the managers hold, and stopped them."""
        pause_s = FIRST_PAUSE_S
        while self._to_stop() and not self._is_over():
            self.answered = self._attempt(wire.STOP)
            if self.answered or self._core.fenced is not None:
                break
            pause_s = self._pause(pause_s, self._to_stop)
        return self._result()

    def _is_over(self) -> bool:
        """True if nobody waits any more, or nobody sends: another thread has closed the client."""
        return self._deadline.over or self._core.ended.is_set()

    def _pause(self, pause_s: float, is_wanted: Callable[[], bool]) -> float:
        """Wait, no longer than there is anything to wait for."""
        core = self._core
        with core.lock:
            core.changed.wait_for(
                lambda: core.ended.is_set() or not is_wanted(),
                self._deadline.within_s(pause_s),
            )
        return min(2 * pause_s, LONGEST_PAUSE_S)

    def _outstanding(self) -> bool:
        with self._core.lock:
            return any(
                not self._is_committed(key) and not self._is_gone(key)
                for key in self._targets
                if key not in self._hopeless
            )

    def _is_committed(self, key: ManagerKey) -> bool:
        return self._held[key].committed_version >= self._targets[key]

    def _is_gone(self, key: ManagerKey) -> bool:
        """True if somebody else has stopped the manager meanwhile."""
        return self._core.partitions.get(key) is not self._held[key]

    def _to_stop(self) -> bool:
        """True if the service may have managers to stop, or has yet to be given offsets."""
        with self._core.lock:
            found = (self._core.partitions.get(key) for key in self._keys)
            return any(
                held is not None and (held.registered or held.asked or held.version)
                for held in found
            )

    def _attempt(self, path: str) -> bool:
        """Have everything sent, then ask; whether the answer counts."""
        try:
            counts = self._drain() and self._ask(path)
        except OffsetManagerError as error:
            if not self._core.ended.is_set():  # else it was the close that broke it off
                self._reason = telling(self._reason, error, self._deadline)
            return False
        self._reason = None
        return counts

    def _drain(self) -> bool:
        """Wait until the service has all of it, or has refused it; False where it does not come.

        What it has no room for is not waited for: the others can be asked about meanwhile.
        """
        core = self._core
        with core.lock:
            waiting = list(self._targets.items())
            core.expedite()

            def sent() -> bool:
                while waiting:
                    key, version = waiting[-1]
                    held = self._held[key]
                    is_sent = held.settled_version >= version or self._is_gone(key)
                    if not is_sent and core.partitions.quota_error_for(held) is None:
                        return core.fenced is not None or core.ended.is_set()
                    waiting.pop()
                return True

            done = core.changed.wait_for(sent, self._deadline.within_s())
            core.check_fence()
            return done and not core.ended.is_set()

    def _ask(self, path: str) -> bool:
        core = self._core
        with core.lock:
            registration = core.partitions.registration
            taken = {key: held.sent for key in self._keys if (held := core.partitions.get(key))}
        lost = set(self._targets)
        for piece in self._pieces:
            timeout_s = self._deadline.for_service_s()
            if path == wire.STOP:
                body = wire.stop_body(*piece, timeout_s, self._version)
            else:
                body = wire.flush_body(*piece, timeout_s)
            data = core.post(path, body, self._deadline)
            with wire.reading(path):
                settled = wire.settled_of(data)
            with core.lock:
                if core.partitions.registration is not registration:
                    return False  # it restarted, and knew nothing of what was asked
            self._apply(settled, taken)
            if path == wire.STOP:
                self._stopped.update(settled.committed)
            lost -= settled.committed.keys() | settled.uncommitted.keys() | self._hopeless
        with core.lock:
            if path == wire.FLUSH:
                # Asked for again they would outlive the stop that is under way.
                lost = {key for key in lost if not self._held[key].stopping}
                core.partitions.lost(lost)
            else:
                # What was stopped for good would come back, and what is missing go, by turns.
                lost -= {key for key in self._stopped & lost if self._is_committed(key)}
                core.partitions.lost(lost)
                self._version = core.partitions.next_version()
                self._pieces = _pieces_of(lost)
        return not lost

    def _apply(self, settled: wire.Settled, taken: Mapping[ManagerKey, int]) -> None:
        for key, value in settled.committed.items():
            version = taken.get(key, 0)
            with self._core.lock:
                error = self._core.partitions.passed_over(key, value, version)
            if error is not None:
                self._reasons[key] = error
                self._hopeless.add(key)
            # Where nothing was sent it is the initial offset.
            ours = version > 0
            self._core.committed(key, value, version if error is None else 0, ours=ours)
        for key, left in settled.uncommitted.items():
            if left is None:
                self._reasons[key] = kafka_is_silent()
                continue
            self._reasons[key] = left
            self._core.heed(key, left)
            if self._is_final(key, left, taken):
                self._hopeless.add(key)
        with self._core.lock:
            for key in self._targets:
                held = self._core.partitions.get(key)
                if held is not None and held.error is not None:
                    self._hopeless.add(key)

    def _is_final(
        self, key: ManagerKey, error: OffsetManagerError, taken: Mapping[ManagerKey, int]
    ) -> bool:
        """True if what the service had when it was asked will not be committed any more."""
        if isinstance(error, OffsetRegressionError):
            with self._core.lock:
                held = self._core.partitions.get(key)
                # Else something newer is on its way, and may be high enough.
                return held is None or held.version <= taken.get(key, 0)
        return isinstance(error, CoordinatorError) and not error.retriable

    def _result(self) -> FlushResult:
        """What is known when the wait is over."""
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
        # A request may have run out of time for the others, who are asked about all the same.
        no_room = None if core.link_error else core.partitions.quota_error_for(held)
        known = known or no_room or self._reason or core.link_error
        if known is not None:
            return known
        if self._is_gone(key):
            return ManagerStoppedError(f"{key} was stopped before this offset was committed")
        if core.ended.is_set():
            return ManagerStoppedError(f"the client was closed before {key} was committed")
        return OffsetTimeoutError(f"the service did not answer within {self._deadline.timeout} s")
