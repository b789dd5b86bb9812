"""Burrow's HTTP answers of watched groups.

The paths and the JSON of ``/v3/kafka`` are those of Burrow's ``core/internal/httpserver``, so that
tools that read Burrow can read this.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.lag.burrow import INTERVALS, ObservedCommit, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.lag.measure import GroupLag, PartitionLag

_NO_CLUSTER: Final = "cluster not found"


class BurrowApi:
    """Answers of one cluster's watched groups.

    Each is the values of a JSON object without its ``request``, or a text for what is not found.
    """

    def __init__(self, cluster: str, view: Mapping[str, GroupLag]) -> None:
        self._cluster = cluster
        self._view = view

    def clusters(self) -> dict[str, Any] | str:
        """Return the answer of ``/v3/kafka``."""
        return {"message": "cluster list returned", "clusters": [self._cluster]}

    def consumers(self, cluster: str) -> dict[str, Any] | str:
        """Return the answer of ``.../consumer``."""
        if cluster != self._cluster:
            return _NO_CLUSTER
        return {"message": "consumer list returned", "consumers": sorted(self._view)}

    def consumer(self, cluster: str, consumer: str) -> dict[str, Any] | str:
        """Return the answer of ``.../consumer/GROUP``: windows of partitions that exist."""
        group = self._group(cluster, consumer)
        if group is None:
            return "cluster or consumer not found"
        found: dict[str, dict[int, PartitionLag]] = defaultdict(dict)
        for each in group.partitions:
            found[each.partition.topic][each.partition.partition] = each
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, windows in found.items():
            # The place in the list is the number of the partition.  One that does not exist may be
            # committed as well: 1,000,000 of a topic must not make a list of a million windows.
            existing = [number for number, each in windows.items() if each.end is not None]
            limit = max(len(windows), max(existing, default=-1) + 1)
            last = max((number for number in windows if number < limit), default=-1)
            if last >= 0:
                topics[topic] = [_window(windows.get(number)) for number in range(last + 1)]
        return {"message": "consumer detail returned", "topics": topics}

    def status(self, cluster: str, consumer: str) -> dict[str, Any]:
        """Return the answer of ``.../status``: a group that may not exist, its bad partitions."""
        found = self.full_status(cluster, consumer)
        partitions = found["status"]["partitions"]
        bad = [each for each in partitions if each["status"] != Status.OK.name]
        found["status"]["partitions"] = bad
        return found

    def full_status(self, cluster: str, consumer: str) -> dict[str, Any]:
        """Return the answer of ``.../lag``: the same with all partitions."""
        group = self._group(cluster, consumer)
        partitions = [_partition(each) for each in group.partitions] if group else []
        full = sum(1 for each in partitions if each["complete"] == 1)
        status = {
            "cluster": cluster,
            "group": consumer,
            "status": _word(group.status) if group else Status.NOTFOUND.name,
            "complete": full / len(partitions) if partitions else float(group is None),
            "partitions": partitions,
            "partition_count": len(partitions),
            "maxlag": max(partitions, key=lambda each: each["current_lag"], default=None),
            "totallag": sum(each["current_lag"] for each in partitions),
        }
        return {"message": "consumer status returned", "status": status}

    def topics(self, cluster: str) -> dict[str, Any] | str:
        """Return the answer of ``.../topic``: topics that a watched group reads."""
        if cluster != self._cluster:
            return _NO_CLUSTER
        return {"message": "topic list returned", "topics": sorted(self._ends())}

    def topic(self, cluster: str, topic: str) -> dict[str, Any] | str:
        """Return the answer of ``.../topic/TOPIC``: the ends of its logs, by partition."""
        ends = self._ends().get(topic)
        if cluster != self._cluster or not ends:
            return "cluster or topic not found"
        offsets = [ends.get(number, 0) for number in range(max(ends) + 1)]
        return {"message": "topic offsets returned", "offsets": offsets}

    def _group(self, cluster: str, consumer: str) -> GroupLag | None:
        group = self._view.get(consumer) if cluster == self._cluster else None
        return None if group is None or group.status is None else group

    def _ends(self) -> dict[str, dict[int, int]]:
        ends: dict[str, dict[int, int]] = {}
        for group in self._view.values():
            for each in group.partitions:
                if each.end is not None:
                    ends.setdefault(each.partition.topic, {})[each.partition.partition] = each.end
        return ends


def _word(status: Status | None) -> str:
    return Status.ERR.name if status is Status.OUT_OF_RANGE else (status or Status.OK).name


def _partition(each: PartitionLag) -> dict[str, Any]:
    member, commits = each.member, each.commits
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "owner": member.host if member else "",
        "client_id": member.client_id if member else "",
        "status": _word(each.status),
        "start": _commit(commits[0]) if commits else None,
        "end": _commit(commits[-1]) if commits else None,
        "current_lag": each.lag or 0,
        "complete": len(commits) / INTERVALS,
    }


def _window(each: PartitionLag | None) -> dict[str, Any]:
    member = each.member if each else None
    offsets: list[dict[str, Any] | None] = []
    if each is not None and each.commits:
        offsets = [None] * (INTERVALS - len(each.commits)) + [_commit(c) for c in each.commits]
    return {
        "offsets": offsets,
        "owner": member.host if member else "",
        "client_id": member.client_id if member else "",
        "current-lag": (each.lag or 0) if each else 0,
    }


def _commit(commit: ObservedCommit) -> dict[str, Any]:
    return dict(zip(("offset", "timestamp", "observedAt", "lag"), commit, strict=True))
