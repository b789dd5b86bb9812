"""What the managers report, handed on to metrics, event streams and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.service.events import EventHub
    from offsetmgr.service.failure_log import FailureLog
    from offsetmgr.service.metrics import Metrics
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult


class Reporter:
    """A ``manager.Observer``; called on the managers' threads."""

    def __init__(self, metrics: Metrics, hub: EventHub, failures: FailureLog) -> None:
        self._metrics = metrics
        self._hub = hub
        self._failures = failures

    def committed(self, key: ManagerKey, offset: OffsetAndMetadata) -> None:
        """The coordinator acknowledged ``offset``."""
        self._hub.committed(key, offset)

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """A commit or fetch failed, or a submitted offset was dropped as a regression."""
        self._metrics.failed(error)
        self._hub.failed(key, error)
        self._failures.failed(key, error)

    def requested(
        self,
        kind: Literal["commit", "fetch"],
        group: str,
        partitions: int,
        failures: int,
        duration_s: float,
    ) -> None:
        """A request to the coordinator was answered."""
        del group
        self._metrics.requested(kind, partitions, failures, duration_s)

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        """A manager is gone."""
        del result
        self._hub.stopped(key)
