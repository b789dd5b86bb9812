"""Gathers what the doctor's checks judge."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import confluent_kafka
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from offsetmgr.admin.commit_log import TOPIC, read_commits
from offsetmgr.admin.doctor import Facts, GroupFacts, deletions
from offsetmgr.admin.history import steps
from offsetmgr.coordinator.answers import failure_of_exception
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.lag.cluster import ClusterReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future as Pending

    from offsetmgr.admin.commit_log import CommitRecord
    from offsetmgr.admin.history import CommitStep
    from offsetmgr.admin.service import ServiceReader

_RETENTION: Final = "offsets.retention.minutes"

_T = TypeVar("_T")


def gather(
    config: Mapping[str, object],
    groups: Iterable[str] | None,
    service: ServiceReader | None,
    *,
    version: str,
    stuck_after_s: float = 600.0,
    timeout_s: float = 10.0,
) -> Facts:
    """Return the facts of ``groups``, of all groups of the cluster where None.

    What could not be learned stands in them as an error.  ``config`` is librdkafka's, ``version``
    that of this product.  Raises InvalidValueError where librdkafka does not take a setting.
    """
    versions = {
        "offsetmgr": version,
        "confluent-kafka": str(confluent_kafka.version()),
        "librdkafka": confluent_kafka.libversion()[0],
        "Python": sys.version.split()[0],
    }
    with ClusterReader(config, timeout_s=timeout_s) as reader:
        cluster = _tried(lambda: _cluster(reader))
        asked = None if service is None else _tried(service.facts)
        if isinstance(cluster, OffsetManagerError):
            return Facts(time.time(), versions, cluster, service=asked)
        names = [each.name for each in reader.groups()] if groups is None else list(groups)
        found = _groups(reader, names)
        history, now_s = _tried(lambda: _history(config, names)), time.time()
        partitions = {
            where
            for each in found.values()
            if not isinstance(each.committed, OffsetManagerError)
            for where in each.committed
        }
        topics = {where.topic for where in partitions}
        if not isinstance(history, OffsetManagerError):
            partitions.update(*(deletions(each, now_s) for each in history.values()))
        return Facts(
            now_s=now_s,
            versions=versions,
            cluster=cluster,
            stuck_after_s=stuck_after_s,
            retention_s=_tried(lambda: _retention_s(reader)),
            groups=found,
            logs=reader.log_ranges(partitions),
            topic_rights=_topic_rights(reader, topics),
            history=history,
            service=asked,
        )


def _tried(ask: Callable[[], _T]) -> _T | OffsetManagerError:
    try:
        return ask()
    except OffsetManagerError as error:
        return error


def _cluster(reader: ClusterReader) -> str:
    began_s = time.monotonic()
    try:
        found = reader.admin.list_topics(TOPIC, timeout=reader.timeout_s)
    except KafkaException as error:
        raise KafkaRequestError("connection to Kafka", *failure_of_exception(error)) from None
    took_ms = (time.monotonic() - began_s) * 1_000
    brokers = ", ".join(f"{each.host}:{each.port}" for each in found.brokers.values())
    return f"cluster {found.cluster_id} ({brokers}) answered in {took_ms:.0f} ms"


def _groups(reader: ClusterReader, names: list[str]) -> dict[str, GroupFacts]:
    if not names:
        return {}
    descriptions, committed = reader.describe(names), reader.committed(names)
    sent = reader.admin.describe_consumer_groups(names, include_authorized_operations=True)
    return {
        name: GroupFacts(
            descriptions[name], committed[name], _rights(sent[name], f"group {name}", reader)
        )
        for name in names
    }


def _topic_rights(
    reader: ClusterReader, topics: set[str]
) -> dict[str, frozenset[str] | OffsetManagerError]:
    if not topics:
        return {}
    asked = TopicCollection(sorted(topics))
    sent = reader.admin.describe_topics(asked, include_authorized_operations=True)
    return {name: _rights(each, f"topic {name}", reader) for name, each in sent.items()}


def _rights(
    pending: Pending[Any], what: str, reader: ClusterReader
) -> frozenset[str] | OffsetManagerError:
    def ask() -> frozenset[str]:
        found = reader.result(pending, f"rights on {what}")
        return frozenset(each.name for each in found.authorized_operations or ())

    return _tried(ask)


def _retention_s(reader: ClusterReader) -> float:
    broker = next(iter(reader.admin.list_topics(TOPIC, timeout=reader.timeout_s).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    sent = reader.admin.describe_configs([resource])[resource]
    found = reader.result(sent, f"setting {_RETENTION} of the brokers")
    return float(found[_RETENTION].value) * 60.0


def _history(config: Mapping[str, object], groups: list[str]) -> dict[str, list[CommitStep]]:
    records: dict[str, list[CommitRecord]] = {group: [] for group in groups}
    for record in read_commits(config, records.keys()):
        records[record.key.group].append(record)
    return {group: steps(each) for group, each in records.items()}
