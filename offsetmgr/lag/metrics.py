"""Prometheus metrics of watched groups.  Unknown values and deleted partitions have no series."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from offsetmgr.kafka.errors import code_of, does_not_exist
from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.lag.measure import GroupLag, PartitionLag

_PARTITION: Final = ("cluster_name", "group", "topic", "partition")
_GROUP: Final = ("cluster_name", "group")
_MEMBER: Final = (*_PARTITION, "member_host", "consumer_id", "client_id")


class _Families:
    """Gauges by name, in the order in which they were first set."""

    def __init__(self) -> None:
        self._made: dict[str, GaugeMetricFamily] = {}
        self._series: set[tuple[str, ...]] = set()

    def set(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        labels: Iterable[object],
        value: float | None,
    ) -> None:
        """Give a series its value, once; None leaves it out.

        Groups share the ends of logs, and names that are escaped may look alike: a series that
        stands twice would spoil the scrape.
        """
        family = self._made.get(name)
        if family is None:
            family = self._made[name] = GaugeMetricFamily(name, text, labels=names)
        if value is None:
            return
        texts = [visible(str(label)) for label in labels]
        series = name, *texts
        if series not in self._series:
            self._series.add(series)
            family.add_metric(texts, value)

    def __iter__(self) -> Iterator[GaugeMetricFamily]:
        return iter(self._made.values())


def families(
    cluster: str,
    view: Mapping[str, GroupLag],
    *,
    other_names: bool = False,
    unlisted: bool = False,
) -> Iterator[GaugeMetricFamily]:
    """Return the metrics of watched groups; ``unlisted`` if there may be more of them.

    With ``other_names`` also under those of kafka-lag-exporter and kafka_exporter.
    """
    made = _Families()
    failed = max(sum(1 for group in view.values() if read_errors(group)), int(unlisted))
    text = "Watched groups that could not be read, or not wholly, in the last round."
    made.set("offsetmgr_unreadable_groups", text, ("cluster_name",), (cluster,), failed)
    for name, group in view.items():
        if group.error:
            continue  # its numbers are of before
        where = (cluster, name)
        text = "Burrow's status: 1 OK, 2 WARN, 3 ERR; 7 out of range."
        made.set("offsetmgr_group_status", text, _GROUP, where, group.status)
        text = "Partitions with lag whose age is not known."
        unknown = sum(1 for each in group.partitions if each.seconds_unknown)
        made.set("offsetmgr_lag_seconds_unknown", text, _GROUP, where, unknown)
        for each in group.partitions:
            _partition(made, (*where, *each.partition), each)
        if other_names:
            _lag_exporter(made, cluster, group)
            _kafka_exporter(made, group)
    return iter(made)


def read_errors(group: GroupLag) -> list[OffsetManagerError]:
    """Return why a watched group could not be read, or not wholly, in the last round."""
    if group.error is not None:
        return [group.error]
    errors = [each.error for each in group.partitions if each.error is not None]
    return [each for each in errors if code_of(each) is not None and not does_not_exist(each)]


def _partition(made: _Families, labels: tuple[object, ...], lag: PartitionLag) -> None:
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
        made.set(f"offsetmgr_{name}", text, _PARTITION, labels, value)


def _lag_exporter(made: _Families, cluster: str, group: GroupLag) -> None:
    name, prefix = group.name, "kafka_consumergroup_group"
    for each in group.partitions:
        member = each.member
        who = (member.host, member.member_id, member.client_id) if member else ("", "", "")
        labels = (cluster, name, *each.partition, *who)
        made.set(f"{prefix}_offset", "Committed offset.", _MEMBER, labels, _offset(each))
        made.set(f"{prefix}_lag", "Records behind.", _MEMBER, labels, each.lag)
        made.set(f"{prefix}_lag_seconds", "Seconds behind.", _MEMBER, labels, each.seconds)
        log, names = (cluster, *each.partition), ("cluster_name", "topic", "partition")
        made.set("kafka_partition_latest_offset", "End of the log.", names, log, each.end)
    where = (cluster, name)
    most = max((each.lag for each in group.partitions if each.lag is not None), default=None)
    made.set(f"{prefix}_max_lag", "Most records behind.", _GROUP, where, most)
    made.set(f"{prefix}_max_lag_seconds", "Most seconds behind.", _GROUP, where, group.seconds)
    made.set(f"{prefix}_sum_lag", "Records behind.", _GROUP, where, group.total)
    for topic, lag in _topic_lags(group).items():
        names = (*_GROUP, "topic")
        made.set(f"{prefix}_topic_sum_lag", "Records behind.", names, (*where, topic), lag)


def _kafka_exporter(made: _Families, group: GroupLag) -> None:
    name, prefix = group.name, "kafka_consumergroup"
    names = ("consumergroup", "topic", "partition")
    for each in group.partitions:
        labels = (name, *each.partition)
        made.set(f"{prefix}_current_offset", "Committed offset.", names, labels, _offset(each))
        made.set(f"{prefix}_lag", "Records behind.", names, labels, each.lag)
        text = "End of the log."
        made.set("kafka_topic_partition_current_offset", text, names[1:], each.partition, each.end)
    for topic, lag in _topic_lags(group).items():
        made.set(f"{prefix}_lag_sum", "Records behind.", names[:2], (name, topic), lag)
    members = len(group.description.members) if group.description else 0
    made.set(f"{prefix}_members", "Live members.", names[:1], (name,), members)


def _offset(lag: PartitionLag) -> int | None:
    return lag.committed.offset if lag.committed else None


def _topic_lags(group: GroupLag) -> Counter[str]:
    lags: Counter[str] = Counter()
    for each in group.partitions:
        if each.lag is not None:
            lags[each.partition.topic] += each.lag
    return lags
