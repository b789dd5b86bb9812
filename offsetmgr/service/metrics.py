"""Prometheus metrics.  A submit costs nothing here: offsets are read at each scrape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.responses import Response

from offsetmgr.errors import (
    CoordinatorError,
    OffsetCommitError,
    OffsetManagerError,
    OffsetNoticeError,
)
from offsetmgr.lag.metrics import Series, labels_of, page_of
from offsetmgr.service.access import EVERYTHING, Requester
from offsetmgr.service.openapi import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

    from offsetmgr.manager import ManagerHandle
    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.health import Health
    from offsetmgr.service.threads import ReadThreads

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS: Final = ("cluster_name", "group", "topic", "partition")


@dataclass(eq=False)
class Metrics(Collector):
    """Counters fed by the managers' reports, and the state of each manager at each scrape."""

    cluster_name: str
    version: str
    service: OffsetService
    health: Health
    threads: ReadThreads
    """They make the page, which takes time where there are many managers."""
    dropped_logs: Callable[[], int]
    wall_s: Callable[[float], float]
    """Returns the seconds since 1970 of a time of the managers' clock."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        def counter(name: str, text: str, label: str) -> Counter:
            return Counter(name, text, ("cluster_name", label), registry=self.registry)

        self._commits = counter(
            "offsetmgr_commits", "Offsets that Kafka was asked to commit, by result.", "result"
        )
        self._errors = counter(
            "offsetmgr_commit_errors", "Failed commits of partitions, by Kafka's code.", "code"
        )
        self._notices = counter(
            "offsetmgr_offset_notices", "Committed offsets that are not as expected.", "code"
        )
        self._durations = Histogram(
            "offsetmgr_commit_duration_seconds",
            "How long Kafka took to answer a commit request.",
            ("cluster_name",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        # Known from the start, so that a rate() finds the first one.
        for result in ("committed", "failed"):
            self._commits.labels(self.cluster_name, result)
        self._durations.labels(self.cluster_name)
        Info("offsetmgr_build", "Version of the service.", registry=self.registry).info(
            {"version": self.version}
        )
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def commit_answered(self, partitions: int, failures: int, duration_s: float) -> None:
        """Count an answered commit; for any thread."""
        self._commits.labels(self.cluster_name, "committed").inc(partitions - failures)
        self._commits.labels(self.cluster_name, "failed").inc(failures)
        self._durations.labels(self.cluster_name).observe(duration_s)

    def failed(self, error: OffsetManagerError) -> None:
        """Count a failed commit or a notice; for any thread."""
        if isinstance(error, OffsetCommitError):
            self._errors.labels(self.cluster_name, error.code).inc()
        elif isinstance(error, OffsetNoticeError):
            self._notices.labels(self.cluster_name, error.code).inc()

    @operation("GET", "/metrics", needs=lambda _: EVERYTHING, media_type="text/plain")
    async def metrics(self, by: Requester, _: object) -> Response:
        """Prometheus metrics."""
        page = await self.threads.run(by, lambda: page_of(self.registry.collect()))
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    def collect(self) -> Iterable[Metric]:
        service, fence = self.service, self.health.coordinator.fence
        managers, clients = service.factory.managers(), service.registry.clients()
        for name, text, value in (
            ("managers", "Live offset managers.", len(managers)),
            ("clients", "Clients whose lease has not lapsed.", len(clients)),
            ("event_streams", "Open event streams.", service.hub.reader_count),
            ("held_groups", "Groups kept by the fence.", fence.held),
            ("fenced_groups", "Groups lost to another service.", fence.fenced),
            ("reload_refused", "1 after a refused SIGHUP.", self.health.reload_error is not None),
            ("dropped_audit_lines", "Not in the audit log's file.", service.audit.dropped),
        ):
            yield GaugeMetricFamily(f"offsetmgr_{name}", text, value)
        text = "Log records that could not be written."
        yield CounterMetricFamily("offsetmgr_dropped_log_records", text, self.dropped_logs())
        yield from self._of_managers(managers)

    def _of_managers(self, managers: Iterable[ManagerHandle]) -> Iterable[Series]:
        submitted = Series("offsetmgr_submitted_offset", "Newest submitted offset.")
        committed = Series("offsetmgr_committed_offset", "Last offset known to be committed.")
        text = "1 where the newest submitted offset may not be committed."
        dirty = Series("offsetmgr_uncommitted", text)
        text = "1 where the last request failed, with Kafka's code."
        failing = Series("offsetmgr_failing", text)
        text = "When Kafka last acknowledged a commit."
        at = Series("offsetmgr_last_commit_timestamp_seconds", text)
        text = "Lower offsets that were refused."
        regressions = Series("offsetmgr_regressions", text, "counter")
        clock_to_wall_s = self.wall_s(0.0)
        for handle in managers:
            key, status = handle.key, handle.status()
            labels = labels_of(_LABELS, (self.cluster_name, *key))
            submitted.set(labels, status.submitted and status.submitted.offset)
            committed.set(labels, status.committed and status.committed.offset)
            if status.committed_at is not None:
                at.set(labels, status.committed_at + clock_to_wall_s)
            dirty.set(labels, status.dirty)
            if isinstance(status.last_error, CoordinatorError):
                failing.set(f"{labels},{labels_of(['code'], [status.last_error.code])}", 1)
            regressions.set(labels, status.regressions)
        yield from (submitted, committed, at, dirty, failing, regressions)
