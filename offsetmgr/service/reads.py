"""Reads of Kafka: committed offsets, topics and their logs."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from offsetmgr.client.offsets import LogEnds
from offsetmgr.codes import NO_SUCH_PARTITION
from offsetmgr.errors import shown
from offsetmgr.http.answers import page_of
from offsetmgr.http.errors import ErrorAnswer, ErrorBody, HttpStatusError, error_body
from offsetmgr.service.access import Requester, names_in, no_names
from offsetmgr.service.errors import kafka_error
from offsetmgr.service.messages import (
    CommittedQuery,
    OffsetEntry,
    OffsetsAnswer,
    PartitionEnds,
    StartingOffsetsAnswer,
    StartingOffsetsQuery,
    TopicNamesAnswer,
    TopicNamesQuery,
    TopicsAnswer,
    TopicsQuery,
    TopicState,
    read_cursor,
)
from offsetmgr.service.openapi import operation
from offsetmgr.spark.starting import resuming
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.coordinator.base import Coordinator, Failure, TopicLog


@dataclass(eq=False)
class Reads:
    coordinator: Coordinator
    most_s: float
    """Time that Kafka has for each answer, in seconds."""

    @operation(
        "GET", "/v1/offsets", CommittedQuery, OffsetsAnswer, needs=names_in("group", "topic")
    )
    async def committed(self, by: Requester, query: CommittedQuery) -> OffsetsAnswer:
        """Return the offsets that are committed in Kafka now.  Raises KafkaRequestError."""
        timeout_s = self._timeout_s(query.timeout_s)
        result = await self.coordinator.fetch(query.group, None, timeout_s)
        what = f"fetch of the committed offsets of group {query.group!r}"
        if result.group_failure is not None:
            raise kafka_error(what, result.group_failure, timeout_s)

        def is_asked(where: TopicPartition) -> bool:
            return (not query.topic or where.topic in query.topic) and by.sees(None, where.topic)

        for where, failure in result.failures.items():
            if is_asked(where):
                raise kafka_error(f"{what}, partition {where}", failure, timeout_s)
        after = None if query.after is None else read_cursor(query.after).topic_partition
        entries = (
            OffsetEntry(where.topic, where.partition, *value)
            for where, value in sorted(result.offsets.items())
            if value is not None and is_asked(where) and (after is None or where > after)
        )
        page, following = page_of(entries, query.limit)
        last = None if following is None else str(ManagerKey(query.group, *page[-1].where))
        return OffsetsAnswer(query.group, page, last)

    @operation("GET", "/v1/topics", TopicsQuery, TopicsAnswer, needs=names_in(topics="topic"))
    async def topics(self, _: Requester, query: TopicsQuery) -> TopicsAnswer:
        """Return partitions of topics, the ends of their logs, and their offsets at a time."""
        timeout_s = self._timeout_s(query.timeout_s)
        logs = await self.coordinator.topic_logs(
            query.topic, timeout_s, query.at_ms, stable=query.stable
        )
        return TopicsAnswer([_topic(name, logs[name], timeout_s) for name in query.topic])

    @operation(
        "GET",
        "/v1/starting-offsets",
        StartingOffsetsQuery,
        StartingOffsetsAnswer,
        needs=names_in("group", "topic"),
        others={404: ErrorAnswer},
    )
    async def starting_offsets(
        self, by: Requester, query: StartingOffsetsQuery
    ) -> StartingOffsetsAnswer:
        """Return the JSON with which a Spark query resumes from the group.

        Partitions without a committed offset start at the earliest record; topics that do not exist
        any more are omitted.  Raises KafkaRequestError.
        """
        timeout_s = self._timeout_s(query.timeout_s)
        committed = await self.committed(by, CommittedQuery(query.group, query.topic, timeout_s))
        offsets = {value.where: value.offset for value in committed.offsets}
        topics = sorted(set(query.topic) or {where.topic for where in offsets})
        found = await self.coordinator.topic_logs(topics, timeout_s) if topics else {}
        logs: dict[TopicPartition, LogEnds] = {}
        for topic, log in found.items():
            for failure in (log.failure, *(ends.failure for ends in log.partitions.values())):
                is_gone = failure is not None and failure.info.code in NO_SUCH_PARTITION
                if failure is not None and (query.topic or not is_gone):
                    raise kafka_error(f"the ends of topic {topic!r}", failure, timeout_s)
            for number, ends in log.partitions.items():
                if ends.failure is None:
                    logs[TopicPartition(topic, number)] = LogEnds(*ends[:2])
        if not logs:
            text = f"group {shown(query.group)} has no offsets; name the topics of the job"
            raise HttpStatusError(HTTPStatus.NOT_FOUND, "not_found", text)
        return StartingOffsetsAnswer(query.group, resuming(query.group, logs, offsets))

    @operation("GET", "/v1/topic-names", TopicNamesQuery, TopicNamesAnswer, needs=no_names)
    async def topic_names(self, by: Requester, query: TopicNamesQuery) -> TopicNamesAnswer:
        """Return the topics of the cluster.  Raises KafkaRequestError."""
        timeout_s = self._timeout_s(query.timeout_s)
        found = await self.coordinator.topic_names(timeout_s)
        if found.failure is not None:
            raise kafka_error("list of the topics", found.failure, timeout_s)
        return TopicNamesAnswer([each for each in found.names if by.sees(None, each)])

    def _timeout_s(self, asked_s: float | None) -> float:
        return self.most_s if asked_s is None else min(asked_s, self.most_s)


def _topic(name: str, log: TopicLog, timeout_s: float) -> TopicState:
    def told(failure: Failure | None) -> ErrorBody | None:
        if failure is None:
            return None
        return error_body(kafka_error(f"the ends of topic {name!r}", failure, timeout_s))

    ends = [
        PartitionEnds(number, *each[:2], told(each.failure), *each[3:])
        for number, each in sorted(log.partitions.items())
    ]
    return TopicState(name, told(log.failure), ends, log.topic_id)
