"""A caller's wait for the commit of what it submitted, and for an initial offset.

As with a flush, they run in the caller's thread and always answer by the deadline.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from offsetmgr.client import flush, wire
from offsetmgr.client.backoff import FIRST_PAUSE_S
from offsetmgr.client.deadline import Deadline
from offsetmgr.client.flush import LONGEST_PAUSE_S, kafka_is_silent, telling
from offsetmgr.client.session import FullError
from offsetmgr.client.tracebacks import cut, short_traceback
from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.client.core import Core
    from offsetmgr.client.partitions import Batch
    from offsetmgr.client.streams import Mailboxes
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

_INITIAL_WAIT_S: Final = 10.0
GIVE_BACK_S: Final = 2.0
"""Longest wait for the service to take back managers that hold nothing."""
_NAMED: Final = 3
"""Partitions that a message names; the others are counted."""


class Commit:
    """Submitted offsets of one group, until the coordinator has them."""

    def __init__(
        self,
        core: Core,
        group: str,
        keys: Iterable[ManagerKey],
        deadline: Deadline,
        refused: Mapping[ManagerKey, OffsetManagerError],
    ) -> None:
        self._core = core
        self._group = group
        self._deadline = deadline
        self._reason: OffsetManagerError | None = None
        self._final: dict[ManagerKey, OffsetManagerError] = dict(refused)
        """Refused for good, or not worth waiting for."""
        with core.lock:
            found = ((key, core.partitions.get(key)) for key in keys)
            self._held = {key: held for key, held in found if held is not None}
            self._targets = {
                key: held.version for key, held in self._held.items() if key not in refused
            }

    def wait(self) -> None:
        """Raise what stood in the way, unless all of it is committed by the deadline."""
        pause_s = FIRST_PAUSE_S
        self._core.expedite()
        while (waiting := self._outstanding()) and not self._deadline.over:
            if not self._attempt():
                self._core.ended.wait(self._deadline.within_s(pause_s))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if waiting or self._final:
            raise self._failure(waiting)

    def _outstanding(self) -> list[ManagerKey]:
        waiting = []
        with self._core.lock:
            for key, version in self._targets.items():
                held = self._held[key]
                if key in self._final or held.committed_version >= version:
                    continue
                ended = self._core.ended.is_set()
                if ended or self._core.partitions.get(key) is not held:
                    how = "the client was closed" if ended else "its manager was stopped"
                    message = f"{how} before this offset of {key} was committed"
                    self._final[key] = ManagerStoppedError(message)
                else:
                    waiting.append(key)
        return waiting

    def _attempt(self) -> bool:
        """Send what is not committed and wait for Kafka; whether that brought anything."""
        with self._core.lock:
            waiting = self._outstanding()
            if not waiting:
                return True
            batch = self._take(waiting)
            rest = len(waiting) - len(batch.items)
            requests = 1 + math.ceil(rest / self._core.partitions.limit)
        try:
            body = wire.waiting_body(batch, self._deadline.for_service_s() / requests)
            return self._apply(
                batch, self._core.post_batch(wire.OFFSETS, body, self._deadline, batch)
            )
        except ClientFencedError as error:
            self._final.update(dict.fromkeys(self._targets, error))
            return True
        except OffsetManagerError as error:
            if isinstance(error, FullError):
                self._core.exceed(batch, error)
            self._reason = telling(self._reason, error, self._deadline)
            return False
        finally:
            with self._core.lock:
                self._core.partitions.give_back(batch)
                self._core.wake.notify()
                # A flush or a stop may wait for just what this request has brought there.
                self._core.changed.notify_all()

    def _take(self, waiting: list[ManagerKey]) -> Batch:
        """Those of `waiting` that are asked for next: what the last request was not about."""
        partitions = self._core.partitions
        # Nothing that the service has a manager for waits for what it has no room for.
        keys = [key for key in waiting if partitions.quota_error_for(self._held[key]) is None]
        batch = partitions.take_these(keys or waiting)
        for item in batch.items:
            self._targets[item.key] = self._targets.pop(item.key)
        return batch

    def _apply(self, batch: Batch, data: dict[str, object]) -> bool:
        core = self._core
        with wire.reading("submitted offsets"):
            refused = wire.refused_of(data, batch)
            settled = wire.settled_of(data, batch.group)
        with core.lock:
            if batch.registration is not core.partitions.registration:
                return False
            news = core.partitions.accept(batch, refused, time.monotonic())
        for key, error in news:
            core.deliver(key, error)
        self._committed(batch, settled.committed)
        for item in batch.items:
            refusal = refused.get(item.key.topic_partition)
            passed = self._held[item.key].committed_version >= self._targets[item.key]
            if refusal is not None and not passed:  # else by a newer request, and committed
                self._final[item.key] = refusal
        for key, left in settled.uncommitted.items():
            self._reason = left or self._reason or kafka_is_silent()
            if isinstance(left, CoordinatorError) and not left.retriable:
                self._final[key] = left
                core.heed(key, left)
        return bool(refused or settled.committed)

    def _committed(self, batch: Batch, committed: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        core = self._core
        versions = {item.key: item.version for item in batch.items}
        for key, value in committed.items():
            version = versions.get(key, 0)
            with core.lock:
                dropped = core.partitions.passed_over(key, value, version)
                core.committed(key, value, version if dropped is None else 0)
                held = self._held.get(key)
                if dropped is None and held is not None and held.committed_version < version:
                    # It was forgotten, with a stop that was not answered.
                    held.committed, held.committed_version = value, version
            if dropped is not None:
                self._final[key] = dropped

    def _failure(self, waiting: list[ManagerKey]) -> OffsetManagerError:
        final = self._final
        if waiting and not final:
            return self._late(waiting)
        errors = {**final, **{key: self._late([key]) for key in waiting}}
        return OffsetsUncommittedError.one_of(errors)

    def _late(self, waiting: list[ManagerKey]) -> OffsetManagerError:
        return _timed_out(
            f"could not commit {_named(waiting)} of group {self._group}",
            self._deadline,
            self._reason or self._core.link_error,
            " (kept, and tried again)",
        )


def claim(core: Core, keys: Sequence[ManagerKey], deadline: Deadline) -> None:
    """Hold managers for `keys` when the service has given them to this client; else hold none."""
    core.claim(keys)
    core.expedite()
    try:
        with core.lock:
            wait_s = deadline.within_s(threading.TIMEOUT_MAX)
            given = core.changed.wait_for(lambda: _are_given(core, keys), wait_s)
            reason = core.link_error or _quota_error(core, keys)
    except BaseException:  # Ctrl-C too: nobody else would give them back
        _give_back(core, keys)
        raise
    if not given:
        _give_back(core, keys)
        what = f"could not acquire {_named(keys)} of group {keys[0].group}"
        raise _timed_out(what, deadline, reason)


def _are_given(core: Core, keys: Iterable[ManagerKey]) -> bool:
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


def _quota_error(core: Core, keys: Iterable[ManagerKey]) -> OffsetManagerError | None:
    """Why the service makes no manager for one of `keys`, where it said so."""
    held = filter(None, map(core.partitions.get, keys))
    return next(filter(None, map(core.partitions.quota_error_for, held)), None)


def _give_back(core: Core, keys: Iterable[ManagerKey]) -> None:
    """Stop the managers of `keys`, which hold no offset."""
    by_group: dict[str, list[TopicPartition]] = {}
    for key in keys:
        by_group.setdefault(key.group, []).append(key.topic_partition)
    for group, partitions in by_group.items():
        flush.stop(core, flush.Scope(group, partitions), Deadline(GIVE_BACK_S))


@short_traceback
def initial_offset(
    core: Core, key: ManagerKey, mail: Mailboxes, deadline: Deadline
) -> OffsetAndMetadata | None:
    """What was committed when the manager started, as soon as the service knows it."""
    core.expedite()
    reason: OffsetManagerError | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        if _is_registered(core, key, mail, deadline):
            try:
                known, value, found = _ask_initial(core, key, deadline)
            except ClientFencedError:
                raise
            except OffsetManagerError as error:
                known, value, found = False, None, telling(reason, error, deadline)
            reason = found or reason
            if known:
                return value
        if deadline.over:
            raise _no_initial_offset(core, key, deadline, reason)
        core.ended.wait(deadline.within_s(pause_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _is_registered(core: Core, key: ManagerKey, mail: Mailboxes, deadline: Deadline) -> bool:
    """Wait until the service has the manager."""
    with core.lock:

        def ready() -> bool:
            held = core.partitions.get(key)
            if mail.result is not None or held is None or core.fenced is not None:
                return True
            return held.registered

        found = core.changed.wait_for(ready, deadline.within_s())
        core.check_fence()
        if mail.result is not None or key not in core.partitions:
            raise ManagerStoppedError(f"{key} is stopped; spawn a new manager")
        return found


def _ask_initial(
    core: Core, key: ManagerKey, deadline: Deadline
) -> tuple[bool, OffsetAndMetadata | None, OffsetManagerError | None]:
    wait_s = min(deadline.for_service_s(), _INITIAL_WAIT_S)
    target = wire.target(
        wire.INITIAL_OFFSETS,
        ("group", key.group),
        ("topic", key.topic),
        ("partition", key.partition),
        ("wait_s", round(wait_s, 3)),
    )
    data = core.get(target, deadline)
    with wire.reading("the initial offsets"):
        for entry in data["initial_offsets"]:
            if wire.partition_of(entry) != key.topic_partition:
                continue
            if entry["known"]:
                found = entry["committed"]
                return True, None if found is None else wire.offset_of(found), None
            error = entry["error"]
            reason = kafka_is_silent() if error is None else wire.error_of(error, key)
            return False, None, reason
    with core.lock:
        core.partitions.lost([key])
        core.wake.notify()
    return False, None, None


def _no_initial_offset(
    core: Core, key: ManagerKey, deadline: Deadline, reason: OffsetManagerError | None
) -> OffsetTimeoutError:
    held = core.partitions.get(key)
    refusal = None if held is None or held.registered else held.error
    reason = reason or refusal or core.link_error or _quota_error(core, [key])
    return _timed_out(f"could not get the initial offset of {key}", deadline, reason)


def _timed_out(
    what: str, deadline: Deadline, reason: OffsetManagerError | None, aside: str = ""
) -> OffsetTimeoutError:
    """What a wait ends with; a `reason` that carries more than its message is its cause."""
    why = reason or "the service did not answer"
    failure = OffsetTimeoutError(f"{what} within {deadline.timeout} s{aside}: {why}")
    if isinstance(reason, (CoordinatorError, ManagerExistsError)):
        failure.__cause__ = cut(reason)
    return failure


def _named(keys: Iterable[ManagerKey]) -> str:
    names = [str(key.topic_partition) for key in keys]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
