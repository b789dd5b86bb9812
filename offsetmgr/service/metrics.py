"""Prometheus metrics: counted where it is rare, read from the managers' status where it is not.

A submit costs nothing here.  Offsets, dirty flags and regressions are read when somebody scrapes,
so the series of a stopped manager are gone with it.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
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


class Source(NamedTuple):
    """Callbacks for values that are read at each scrape."""

    managers: Callable[[], Sequence[ManagerHandle]]
    clients: Callable[[], int]
    streams: Callable[[], int]
    dropped_logs: Callable[[], int]
    fence: Callable[[], FenceCounts]
    watched: Callable[[], Iterable[Metric]]
    """Of the groups that are watched, whoever commits them."""
    clock: Clock
    wall: Callable[[], float]
    """Seconds since 1970."""


class Metrics:
    """Counters fed by the managers' reports, and the page that shows everything."""

    def __init__(self, cluster_name: str, version: str) -> None:
        self._cluster_name = cluster_name
        self._version = version
        self._registry = CollectorRegistry()
        self._lock = Lock()
        self._source: Source | None = None

        def counter(name: str, text: str, label: str) -> Counter:
            return Counter(name, text, ("cluster_name", label), registry=self._registry)

        self._commits = counter(
            "offsetmgr_commits", "Offsets that Kafka was asked to commit, by result.", "result"
        )
        self._errors = counter(
            "offsetmgr_commit_errors",
            "Failed commits of single partitions, by Kafka's code.",
            "code",
        )
        self._notices = counter(
            "offsetmgr_offset_notices",
            "Committed offsets that were found not to be as they should, by code.",
            "code",
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
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def requested(
        self, kind: Literal["commit", "fetch"], partitions: int, failures: int, duration_s: float
    ) -> None:
        """Count an answered request to Kafka; for any thread."""
        if kind == "commit":
            self._commits.labels(self._cluster_name, "committed").inc(partitions - failures)
            self._commits.labels(self._cluster_name, "failed").inc(failures)
            self._durations.labels(self._cluster_name).observe(duration_s)

    def failed(self, error: OffsetManagerError) -> None:
        """Count a failed commit or a notice; for any thread."""
        if isinstance(error, OffsetCommitError):
            self._errors.labels(self._cluster_name, error.code).inc()
        elif isinstance(error, OffsetNoticeError):
            self._notices.labels(self._cluster_name, error.code).inc()

    def watch(self, source: Source) -> None:
        """Show ``source`` on the page."""
        self._source = source
        self._registry.register(self)

    def page(self) -> bytes:
        """Return the page in Prometheus' text format; slow with many managers, for any thread."""
        with self._lock:  # two scrapes at once would only slow each other down
            return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: prometheus_client asks at registration, when there is no manager."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return what is read and not counted; prometheus_client calls it for each page."""
        source = self._source
        if source is None:
            return
        managers = source.managers()
        held, fenced = source.fence()
        info = GaugeMetricFamily(
            "offsetmgr_build_info", "Version of the service.", labels=("version",)
        )
        info.add_metric((self._version,), 1)
        yield info
        for name, text, value in (
            ("offsetmgr_managers", "Live offset managers.", len(managers)),
            ("offsetmgr_clients", "Clients whose lease has not lapsed.", source.clients()),
            ("offsetmgr_event_streams", "Open event streams.", source.streams()),
            ("offsetmgr_held_groups", "Groups kept by the fence.", held),
            ("offsetmgr_fenced_groups", "Groups lost to another service.", fenced),
        ):
            yield GaugeMetricFamily(name, text, value)
        yield CounterMetricFamily(
            "offsetmgr_dropped_log_records",
            "Log records that could not be written.",
            source.dropped_logs(),
        )
        yield from source.watched()
        yield from self._partitions(managers, source.wall() - source.clock.now())

    def _partitions(
        self, managers: Sequence[ManagerHandle], clock_to_wall_s: float
    ) -> Iterable[Metric]:
        def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"offsetmgr_{name}", text, labels=(*_LABELS, *more))

        submitted = gauge("submitted_offset", "Newest submitted offset.")
        committed = gauge("committed_offset", "Last offset known to be committed.")
        dirty = gauge(
            "uncommitted", "1 where the newest submitted offset is not known to be committed."
        )
        failing = gauge(
            "failing",
            "1 where the last request of the partition failed, with Kafka's code.",
            "code",
        )
        at = gauge(
            "last_commit_timestamp_seconds",
            "When Kafka last acknowledged a commit, in seconds since 1970.",
        )
        regressions = CounterMetricFamily(
            "offsetmgr_regressions", "Lower offsets that were refused.", labels=_LABELS
        )
        for handle in managers:
            key, status = handle.key, handle.status()
            labels = (self._cluster_name, key.group, key.topic, str(key.partition))
            if status.submitted is not None:
                submitted.add_metric(labels, status.submitted.offset)
            if status.committed is not None:
                committed.add_metric(labels, status.committed.offset)
            if status.committed_at is not None:
                at.add_metric(labels, status.committed_at + clock_to_wall_s)
            dirty.add_metric(labels, status.dirty)
            if isinstance(status.last_error, CoordinatorError):
                failing.add_metric((*labels, status.last_error.code), 1)
            regressions.add_metric(labels, status.regressions)
        return submitted, committed, at, dirty, failing, regressions
