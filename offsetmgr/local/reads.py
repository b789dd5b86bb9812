"""Questions about groups and topics that wait for the coordinator's answer."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from offsetmgr.errors import Fault, ManagerStoppedError, ServiceError
from offsetmgr.types import (
    OffsetAndMetadata,
    PartitionRange,
    TopicPartition,
    check_group,
    check_list,
    check_offset,
    check_timeout,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors import Future
    from offsetmgr.coordinator.base import Coordinator, Failure, PartitionLog

    Logs = Mapping[str, Mapping[int, PartitionLog]]

_T = TypeVar("_T")

GRACE_S: Final = 1.0
"""Extra wait for an answer that is given at its deadline."""

LONGEST_REQUEST_S: Final = 60.0
PAUSE_S: Final = 0.2

_BAD_GATEWAY: Final = 502
_MISSING: Final = frozenset({"UNKNOWN_TOPIC_OR_PARTITION", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})


ONE_PER_PROCESS: Final = (
    "make one in each process, such as inside the function that a task runs, or use OffsetClient "
    "and the service"
)


def answer(future: Future[_T], timeout: float) -> _T:
    """Wait for what is answered by its deadline."""
    return future.get(timeout=timeout + GRACE_S)


class Reads:
    """The client's methods that change nothing; ``types.Offsets`` describes them."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._pid = os.getpid()
        self._ended = threading.Event()

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            text = f"{self!r} was made by another process; {ONE_PER_PROCESS}"
            raise ManagerStoppedError(text)

    def _check_open(self) -> None:
        self._check_process()
        if self._ended.is_set():
            raise ManagerStoppedError(f"{self!r} is closed; make a new one")

    def committed(
        self, group: str, *, timeout: float = 10.0
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        check_group(group)
        fetch = self._coordinator.reader.fetch
        found = self._ask(lambda left_s: fetch(group, None, left_s), timeout)
        for failure in (found.group_failure, *found.failures.values()):
            if failure is not None:
                raise _refusal(f"fetch of the committed offsets of group {group!r}", failure)
        return {where: value for where, value in found.offsets.items() if value is not None}

    def topics(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[str, dict[int, PartitionRange]]:
        return {
            name: {n: PartitionRange(*partitions[n][:2]) for n in sorted(partitions)}
            for name, partitions in self._logs(topics, timeout).items()
        }

    def offsets_at(
        self, topics: Iterable[str], at_ms: int, *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        found = self._logs(topics, timeout, check_offset(at_ms, "at_ms"))
        return _by_partition(
            found, lambda ends: ends.high_watermark if ends.offset_at is None else ends.offset_at
        )

    def stable_ends(
        self, topics: Iterable[str], *, timeout: float = 10.0
    ) -> dict[TopicPartition, int]:
        found = self._logs(topics, timeout, stable=True)
        return _by_partition(found, lambda ends: ends.last_stable_offset or 0)

    def topic_names(self, *, timeout: float = 10.0) -> list[str]:
        found = self._ask(self._coordinator.topic_names, timeout)
        if found.failure is not None:
            raise _refusal("list of the topics", found.failure)
        return list(found.names)

    def _logs(
        self,
        topics: Iterable[str],
        timeout: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Logs:
        """Ask until all is known: Kafka may be electing the leader of a new partition."""
        listed = check_list(topics, "topics", '["orders"]')
        names = list(dict.fromkeys([check_topic(name) for name in listed]))
        deadline = time.monotonic() + check_timeout(timeout)
        ask = self._coordinator.topic_logs
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            found = self._ask(lambda each_s: ask(names, each_s, at_ms, stable=stable), left_s)
            failures = [(f"topic {name}", found[name].failure) for name in names] + [
                (f"partition {name}-{n}", ends.failure)
                for name in names
                for n, ends in found[name].partitions.items()
            ]
            what, failure = next((each for each in failures if each[1] is not None), ("", None))
            if failure is None:
                return {name: found[name].partitions for name in names}
            passing = failure.info.retriable and failure.info.fault is Fault.BROKER
            if not passing or time.monotonic() + PAUSE_S >= deadline:
                raise _refusal(what, failure)
            self._ended.wait(PAUSE_S)

    def _ask(self, ask: Callable[[float], Future[_T]], timeout: float) -> _T:
        timeout_s = min(check_timeout(timeout), LONGEST_REQUEST_S)
        self._check_open()
        return answer(ask(timeout_s), timeout_s)


def _by_partition(logs: Logs, pick: Callable[[PartitionLog], int]) -> dict[TopicPartition, int]:
    return {TopicPartition(name, n): pick(each[n]) for name, each in logs.items() for n in each}


def _refusal(what: str, failure: Failure) -> ServiceError:
    name = failure.info.name
    text = f"{what} failed: {failure.detail or failure.info.hint} ({name})"
    if name in _MISSING:
        text = f"{what} does not exist in the cluster; create it, or correct its name"
    return ServiceError(_BAD_GATEWAY, text, name)
