"""What can be asked without changing anything: managers, initial and committed offsets, topics."""

from __future__ import annotations

import base64
import heapq
import math
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from actors import Future, MailboxClosed
from offsetmgr.errors import InvalidValueError, ManagerStoppedError
from offsetmgr.service.errors import KafkaFailedError, failure_body
from offsetmgr.service.messages import (
    InitialOffset,
    InitialOffsetsAnswer,
    ManagersAnswer,
    ManagerView,
    OffsetsAnswer,
    PartitionEnds,
    TopicNamesAnswer,
    TopicsAnswer,
    TopicState,
)
from offsetmgr.service.serialisation import body_or_none, entry, value_or_none
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import Timers
    from offsetmgr.coordinator.base import Coordinator, PartitionLog, TopicLog
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import Factory, ManagerHandle

PAGE: Final = 1_000
"""Managers in a page, where nothing else is asked for."""

MAX_PAGE: Final = 10_000

_CURSOR: Final = msgspec.json.Decoder(tuple[str, str, int])


class Filter(NamedTuple):
    """Which managers are meant; None means any."""

    group: str | None = None
    client: str | None = None
    topic: str | None = None
    partition: int | None = None

    def takes(self, handle: ManagerHandle) -> bool:
        """True if ``handle`` is meant."""
        key = handle.key
        return (
            (self.group is None or key.group == self.group)
            and (self.client is None or handle.owner == self.client)
            and (self.topic is None or key.topic == self.topic)
            and (self.partition is None or key.partition == self.partition)
        )


class Reads:
    """Looks at managers and asks Kafka."""

    def __init__(
        self, factory: Factory, coordinator: Coordinator, timers: Timers, request_timeout_s: float
    ) -> None:
        """``request_timeout_s`` is how long Kafka has to answer at most."""
        self._factory = factory
        self._coordinator = coordinator
        self._timers = timers
        self._request_timeout_s = request_timeout_s

    def managers(self, wanted: Filter, limit: int, after: ManagerKey | None) -> ManagersAnswer:
        """A page of managers in the order of their keys; for any thread, as it may take long."""
        found = [
            handle
            for handle in self._factory.managers(wanted.group)
            if wanted.takes(handle) and (after is None or handle.key > after)
        ]
        page = heapq.nsmallest(limit, found, key=lambda handle: handle.key)
        more = len(found) > len(page)
        following = cursor(page[-1].key) if more else None
        return ManagersAnswer([_view(handle) for handle in page], following)

    async def initial_offsets(self, wanted: Filter, wait_s: float) -> InitialOffsetsAnswer:
        """What was committed when the managers started; waits until Kafka has told all of them."""
        handles = [h for h in self._factory.managers(wanted.group) if wanted.takes(h)]
        handles.sort(key=lambda handle: handle.key)
        if wait_s > 0:
            await self._all_known(handles, wait_s)
        return InitialOffsetsAnswer([_initial(handle) for handle in handles])

    async def _all_known(self, handles: Sequence[ManagerHandle], wait_s: float) -> None:
        """Return when every initial offset is known (or will never be), or ``wait_s`` is over."""
        unknown = {handle.key for handle in handles}
        lock, done = Lock(), Future[None]()

        def arrived(handle: ManagerHandle) -> None:
            with lock:
                unknown.discard(handle.key)
                last = not unknown
            if last:
                done.set()

        waiting = [handle for handle in handles if not handle.initial.closed]
        removers = [handle.initial.add_listener(partial(arrived, handle)) for handle in waiting]
        for handle in handles:
            if handle.initial.closed:
                arrived(handle)
        timer = self._timers.call_after(wait_s, done.set)
        try:
            if unknown:
                await done
        finally:
            timer.cancel()
            for remove in removers:
                remove()

    async def committed(
        self, group: str, topics: Sequence[str], timeout_s: float = math.inf
    ) -> OffsetsAnswer:
        """What Kafka says is committed now.  Raises KafkaFailedError."""
        timeout_s = min(timeout_s, self._request_timeout_s)
        result = await self._coordinator.fetch(group, None, timeout_s)
        what = f"fetch of the committed offsets of group {group!r}"
        if result.group_failure is not None:
            raise KafkaFailedError(what, result.group_failure, timeout_s)
        for where, failure in result.failures.items():
            if not topics or where.topic in topics:
                raise KafkaFailedError(f"{what}, partition {where}", failure, timeout_s)
        return OffsetsAnswer(
            group,
            [
                entry(where, value)
                for where, value in sorted(result.offsets.items())
                if value is not None and (not topics or where.topic in topics)
            ],
        )

    async def topics(
        self,
        names: Sequence[str],
        at_ms: int | None,
        timeout_s: float = math.inf,
        *,
        stable: bool,
    ) -> TopicsAnswer:
        """Partitions of topics, the ends of their logs, and their offsets at a time."""
        timeout_s = min(timeout_s, self._request_timeout_s)
        logs = await self._coordinator.topic_logs(names, timeout_s, at_ms, stable=stable)
        return TopicsAnswer([_topic(name, logs[name], timeout_s) for name in names])

    async def topic_names(self, timeout_s: float = math.inf) -> TopicNamesAnswer:
        """The topics of the cluster.  Raises KafkaFailedError."""
        timeout_s = min(timeout_s, self._request_timeout_s)
        found = await self._coordinator.topic_names(timeout_s)
        if found.failure is not None:
            raise KafkaFailedError("list of the topics", found.failure, timeout_s)
        return TopicNamesAnswer(list(found.names))


def cursor(key: ManagerKey) -> str:
    """Where a page ended, as it travels to the client and back."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_cursor(text: str) -> ManagerKey:
    """The way back.  Raises InvalidValueError."""
    try:
        padded = text + "=" * (-len(text) % 4)
        return ManagerKey(*_CURSOR.decode(base64.urlsafe_b64decode(padded)))
    except ValueError:  # of the encoding, of UTF-8 or of the JSON
        fix = "give `next` of the previous page unchanged"
        raise InvalidValueError(
            "query.after", text, "is not a cursor of this service", fix
        ) from None


def _view(handle: ManagerHandle) -> ManagerView:
    status = handle.status()
    return ManagerView(
        *handle.key,
        client=handle.owner,
        phase=status.phase,
        submitted=value_or_none(status.submitted),
        committed=value_or_none(status.committed),
        dirty=status.dirty,
        last_error=body_or_none(status.last_error),
        regressions=status.regressions,
    )


def _initial(handle: ManagerHandle) -> InitialOffset:
    topic, partition = where = handle.key.topic_partition
    error: OffsetManagerError | None
    try:
        value = handle.initial.get(timeout=0)
    except TimeoutError:
        error = handle.status().last_error
    except MailboxClosed:
        error = ManagerStoppedError(f"{handle.key} was stopped before its initial offset arrived")
    else:
        committed = None if value is None else entry(where, value)
        return InitialOffset(topic, partition, known=True, committed=committed, error=None)
    return InitialOffset(topic, partition, known=False, committed=None, error=body_or_none(error))


def _topic(name: str, log: TopicLog, timeout_s: float) -> TopicState:
    error = None if log.failure is None else failure_body(log.failure, timeout_s)
    ends = [_ends(number, each, timeout_s) for number, each in sorted(log.partitions.items())]
    return TopicState(name, error, ends)


def _ends(number: int, log: PartitionLog, timeout_s: float) -> PartitionEnds:
    error = None if log.failure is None else failure_body(log.failure, timeout_s)
    return PartitionEnds(
        number,
        log.log_start_offset,
        log.high_watermark,
        error,
        log.offset_at,
        log.last_stable_offset,
    )
