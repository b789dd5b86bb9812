"""Prometheus metrics: counted where it is rare, read from snapshots where it is not.

A submit costs nothing here.  Offsets, dirty flags and regressions are read from the managers when
somebody scrapes, so the series of a stopped manager are gone with it.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from offsetmgr.errors import CoordinatorError, OffsetCommitError, OffsetNoticeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import Metric

    from actors import Clock
    from offsetmgr.coordinator.base import FenceCounts
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import ManagerHandle


_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS: Final = ("cluster_name", "group", "topic", "partition")


class Metrics:
    """Counters fed by the managers' reports, and the page that shows everything."""

    def __init__(self, cluster_name: str, version: str) -> None:
        self._cluster_name = cluster_name
        self._registry = CollectorRegistry()
        self._lock = Lock()
        self._commits = Counter(
            "offsetmgr_commits",
            "Offsets that Kafka was asked to commit, by result.",
            ("cluster_name", "result"),
            registry=self._registry,
        )
        self._errors = Counter(
            "offsetmgr_commit_errors",
            "Failed commits of single partitions, by Kafka's code.",
            ("cluster_name", "code"),
            registry=self._registry,
        )
        self._notices = Counter(
            "offsetmgr_offset_notices",
            "Committed offsets that were found not to be as they should, by code.",
            ("cluster_name", "code"),
            registry=self._registry,
        )
        self._durations = Histogram(
            "offsetmgr_commit_duration_seconds",
            "How long Kafka took to answer a commit request.",
            ("cluster_name",),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        # Known from the start, so that a rate() finds the first one.
        for result in ("committed", "failed"):
            self._commits.labels(cluster_name, result)
        self._durations.labels(cluster_name)
        info = GaugeMetricFamily(
            "offsetmgr_build_info", "Version of the service.", labels=("version",)
        )
        info.add_metric((version,), 1)
        self._info = info
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def requested(
        self, kind: Literal["commit", "fetch"], partitions: int, failures: int, duration_s: float
    ) -> None:
        """A request to Kafka was answered; for any thread."""
        if kind == "commit":
            self._commits.labels(self._cluster_name, "committed").inc(partitions - failures)
            self._commits.labels(self._cluster_name, "failed").inc(failures)
            self._durations.labels(self._cluster_name).observe(duration_s)

    def failed(self, error: OffsetManagerError) -> None:
        """A commit failed, or a committed offset is not as it should be; for any thread."""
        if isinstance(error, OffsetCommitError):
            self._errors.labels(self._cluster_name, error.code).inc()
        elif isinstance(error, OffsetNoticeError):
            self._notices.labels(self._cluster_name, error.code).inc()

    def watch(self, source: Source) -> None:
        """Show ``source`` on the page."""
        self._registry.register(_Collector(self._cluster_name, source, self._info))

    def page(self) -> bytes:
        """The page in Prometheus' text format; takes long with many managers, for any thread."""
        with self._lock:  # two scrapes at once would only slow each other down
            return generate_latest(self._registry)


class Source:
    """Where the page reads what is not counted."""

    def __init__(
        self,
        managers: Callable[[], Sequence[ManagerHandle]],
        clients: Callable[[], int],
        streams: Callable[[], int],
        dropped_logs: Callable[[], int],
        fence: Callable[[], FenceCounts],
        clock: Clock,
        wall: Callable[[], float],
    ) -> None:
        """``wall`` is the wall clock in seconds since 1970; ``clock`` that of the managers."""
        self.managers = managers
        self.clients = clients
        self.streams = streams
        self.dropped_logs = dropped_logs
        self.fence = fence
        self.clock = clock
        self.wall = wall


class _Collector:
    """Reads the managers' snapshots for one scrape."""

    def __init__(self, cluster_name: str, source: Source, info: Metric) -> None:
        self._cluster_name = cluster_name
        self._source = source
        self._info = info

    def describe(self) -> Iterable[Metric]:
        """Nothing: asked at registration, when the managers are of no interest."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families that are read rather than counted."""
        source = self._source
        managers = source.managers()
        yield self._info
        yield _single("offsetmgr_managers", "Live offset managers.", len(managers))
        yield _single("offsetmgr_clients", "Clients whose lease has not lapsed.", source.clients())
        yield _single("offsetmgr_event_streams", "Open event streams.", source.streams())
        held, fenced = source.fence()
        yield _single("offsetmgr_held_groups", "Groups kept by the fence.", held)
        yield _single("offsetmgr_fenced_groups", "Groups lost to another service.", fenced)
        lost = CounterMetricFamily(
            "offsetmgr_dropped_log_records", "Log records that could not be written."
        )
        lost.add_metric((), source.dropped_logs())
        yield lost
        yield from self._partitions(managers)

    def _partitions(self, managers: Sequence[ManagerHandle]) -> Iterable[Metric]:
        submitted = GaugeMetricFamily(
            "offsetmgr_submitted_offset", "Newest submitted offset.", labels=_LABELS
        )
        committed = GaugeMetricFamily(
            "offsetmgr_committed_offset", "Last offset known to be committed.", labels=_LABELS
        )
        dirty = GaugeMetricFamily(
            "offsetmgr_uncommitted",
            "1 where the newest submitted offset is not known to be committed.",
            labels=_LABELS,
        )
        failing = GaugeMetricFamily(
            "offsetmgr_failing",
            "1 where the last request of the partition failed, with Kafka's code.",
            labels=(*_LABELS, "code"),
        )
        at = GaugeMetricFamily(
            "offsetmgr_last_commit_timestamp_seconds",
            "When Kafka last acknowledged a commit, in seconds since 1970.",
            labels=_LABELS,
        )
        regressions = CounterMetricFamily(
            "offsetmgr_regressions", "Lower offsets that were refused.", labels=_LABELS
        )
        behind_s = self._source.wall() - self._source.clock.now()
        for handle in managers:
            key, status = handle.key, handle.status()
            labels = (self._cluster_name, key.group, key.topic, str(key.partition))
            if status.submitted is not None:
                submitted.add_metric(labels, status.submitted.offset)
            if status.committed is not None:
                committed.add_metric(labels, status.committed.offset)
            if status.committed_at is not None:
                at.add_metric(labels, status.committed_at + behind_s)
            dirty.add_metric(labels, status.dirty)
            if isinstance(status.last_error, CoordinatorError):
                failing.add_metric((*labels, status.last_error.code), 1)
            regressions.add_metric(labels, status.regressions)
        return submitted, committed, at, dirty, failing, regressions


def _single(name: str, help_text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text)
    family.add_metric((), value)
    return family
