"""Prometheus metrics of watched groups, and the page of all metrics.

Unknown values and deleted partitions have no series.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from offsetmgr.kafka.errors import code_of, does_not_exist
from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.lag.measure import GroupLag, PartitionLag

_PARTITION: Final = ("cluster_name", "group", "topic", "partition")
_GROUP: Final = ("cluster_name", "group")
_MEMBER: Final = (*_PARTITION, "member_host", "consumer_id", "client_id")


class Series(Metric):
    """A family whose series have their labels as text, made once for all families of a partition.

    A page of a million of them takes a tenth of the time of prometheus_client's own.
    """

    def __init__(self, name: str, text: str, kind: str = "gauge") -> None:
        super().__init__(name, text, kind)
        self.values: dict[str, float] = {}

    def set(self, labels: str, value: float | None) -> None:
        """Give a series its value, once; None leaves it out.

        Groups share the ends of logs, the service and its watch have the same groups, and names
        that are escaped may look alike: a series that stands twice would spoil the scrape.
        """
        if value is not None:
            self.values.setdefault(labels, value)

    def lines(self) -> Iterator[str]:
        """Return the lines of the page."""
        name = f"{self.name}_total" if self.type == "counter" else self.name
        yield f"# HELP {name} {self.documentation}\n# TYPE {name} {self.type}\n"
        for labels, value in self.values.items():
            yield f"{name}{{{labels}}} {float(value)!r}\n"


def labels_of(names: Iterable[str], values: Iterable[object]) -> str:
    """Return labels as they stand in a series; names of groups and others are escaped."""
    texts = (visible(str(value)).replace("\\", r"\\").replace('"', r"\"") for value in values)
    return ",".join(map('{}="{}"'.format, names, texts))


class _Metrics(list[Metric], Collector):
    def collect(self) -> Iterable[Metric]:
        return self


def page_of(metrics: Iterable[Metric]) -> bytes:
    """Return the page of ``metrics`` as Prometheus reads it; Series of the same name are one."""
    found: dict[str, Series] = {}
    others = _Metrics()
    for each in metrics:
        if not isinstance(each, Series):
            others.append(each)
        elif each.name in found:
            found[each.name].values = each.values | found[each.name].values
        else:
            found[each.name] = each
    lines = (line for each in found.values() for line in each.lines())
    return generate_latest(others) + "".join(lines).encode()


class _Families(dict[str, Series]):
    """Gauges by name, in the order in which they were first set."""

    def set(self, name: str, text: str, labels: str, value: float | None) -> None:
        family = self.get(name)
        if family is None:
            family = self[name] = Series(name, text)
        family.set(labels, value)


def families(
    cluster: str,
    view: Mapping[str, GroupLag],
    *,
    other_names: bool = False,
    unlisted: bool = False,
) -> Iterator[Series]:
    """Return the metrics of watched groups; ``unlisted`` if there may be more of them.

    With ``other_names`` also under those of kafka-lag-exporter and kafka_exporter.
    """
    made = _Families()
    failed = max(sum(1 for group in view.values() if read_errors(group)), int(unlisted))
    text = "Watched groups that could not be read, or not wholly, in the last round."
    made.set("offsetmgr_unreadable_groups", text, labels_of(["cluster_name"], [cluster]), failed)
    for name, group in view.items():
        if group.error:
            continue  # its numbers are of before
        where = labels_of(_GROUP, (cluster, name))
        text = "Burrow's status: 1 OK, 2 WARN, 3 ERR; 7 out of range."
        made.set("offsetmgr_group_status", text, where, group.status)
        text = "Partitions with lag whose age is not known."
        unknown = sum(1 for each in group.partitions if each.seconds_unknown)
        made.set("offsetmgr_lag_seconds_unknown", text, where, unknown)
        for each in group.partitions:
            _partition(made, labels_of(_PARTITION, (cluster, name, *each.partition)), each)
        if other_names:
            _other_names(made, cluster, group)
    return iter(made.values())


def read_errors(group: GroupLag) -> list[OffsetManagerError]:
    """Return why a watched group could not be read, or not wholly, in the last round."""
    if group.error is not None:
        return [group.error]
    errors = [each.error for each in group.partitions if each.error is not None]
    return [each for each in errors if code_of(each) is not None and not does_not_exist(each)]


def _partition(made: _Families, labels: str, lag: PartitionLag) -> None:
    committed = lag.committed.offset if lag.committed and lag.end is not None else None
    age = "Age of the first record that is not committed; 0 where all is."
    status = "Burrow's status: 1 OK, 2 WARN, 4 STOP, 5 STALL, 6 REWIND; 7 out of range."
    for name, text, value in (
        ("end_offset", "Offset after the last record.", lag.end),
        ("committed_offset", "Committed offset; the oldest one without an ack.", committed),
        ("lag", "Records behind the end of the log.", lag.lag),
        ("lag_seconds", age, lag.seconds),
        ("pending_acks", "Records without an ack below one that has an ack.", lag.pending_acks),
        ("partition_status", status, None if lag.lag is None else lag.status),
    ):
        made.set(f"offsetmgr_{name}", text, labels, value)


def _other_names(made: _Families, cluster: str, group: GroupLag) -> None:
    """Set the names of kafka-lag-exporter, with the cluster, and those of kafka_exporter."""
    name, prefix, other = group.name, "kafka_consumergroup_group", "kafka_consumergroup"
    names, lags = ("consumergroup", "topic", "partition"), Counter[str]()
    for each in group.partitions:
        member = each.member
        offset = each.committed.offset if each.committed else None
        who = (member.host, member.member_id, member.client_id) if member else ("", "", "")
        labels = labels_of(_MEMBER, (cluster, name, *each.partition, *who))
        made.set(f"{prefix}_offset", "Committed offset.", labels, offset)
        made.set(f"{prefix}_lag", "Records behind.", labels, each.lag)
        made.set(f"{prefix}_lag_seconds", "Seconds behind.", labels, each.seconds)
        log = labels_of(("cluster_name", "topic", "partition"), (cluster, *each.partition))
        made.set("kafka_partition_latest_offset", "End of the log.", log, each.end)
        labels = labels_of(names, (name, *each.partition))
        made.set(f"{other}_current_offset", "Committed offset.", labels, offset)
        made.set(f"{other}_lag", "Records behind.", labels, each.lag)
        log = labels_of(names[1:], each.partition)
        made.set("kafka_topic_partition_current_offset", "End of the log.", log, each.end)
        if each.lag is not None:
            lags[each.partition.topic] += each.lag
    where = labels_of(_GROUP, (cluster, name))
    most = max((each.lag for each in group.partitions if each.lag is not None), default=None)
    made.set(f"{prefix}_max_lag", "Most records behind.", where, most)
    made.set(f"{prefix}_max_lag_seconds", "Most seconds behind.", where, group.seconds)
    made.set(f"{prefix}_sum_lag", "Records behind.", where, group.total)
    for topic, lag in lags.items():
        labels = labels_of((*_GROUP, "topic"), (cluster, name, topic))
        made.set(f"{prefix}_topic_sum_lag", "Records behind.", labels, lag)
        made.set(f"{other}_lag_sum", "Records behind.", labels_of(names, (name, topic)), lag)
    made.set(f"{other}_members", "Live members.", labels_of(names, [name]), len(group.members))
