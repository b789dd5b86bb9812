"""Gathers what the doctor's checks judge."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, TypeVar

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from offsetmgr.admin.doctor import Facts, GroupFacts, deletions
from offsetmgr.admin.history import steps
from offsetmgr.coordinator.clients import failure_of_exception
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.lag.cluster import ClusterReader
from offsetmgr.lag.commit_log import TOPIC, read_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.admin.history import CommitStep
    from offsetmgr.admin.service import ServiceReader
    from offsetmgr.lag.commit_log import CommitRecord

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
        described, committed = reader.describe(names), reader.committed(names)
        history, now_s = _tried(lambda: _history(config, names)), time.time()
        partitions = {
            where
            for each in committed.values()
            if not isinstance(each, OffsetManagerError)
            for where in each
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
            groups={name: GroupFacts(described[name], committed[name]) for name in names},
            logs=reader.log_ranges(partitions),
            topic_rights=reader.topic_rights(topics),
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
    return {group: list(steps(each)) for group, each in records.items()}
