"""The topics that a consumer reads, by name and pattern, and where it begins in new ones."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.codes import UNKNOWN_TOPIC, error_info
from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.kafka.errors import does_not_exist, known
from offsetmgr.stores.base import as_store_error
from offsetmgr.types import TopicPartition
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.stores import OffsetStore

INTERNAL: Final = "__"  # begins the names of Kafka's own topics
_RETRY_S: Final = 1.0

_INTERVAL_S: Final = 30.0
"""Interval at which patterns are matched, where librdkafka's setting names no other."""


@dataclass(frozen=True)
class Subscription:
    """Names of topics, and patterns that match anywhere in a name."""

    names: Sequence[str]
    include: str | None = None
    """A regular expression of further topics."""
    exclude: str | None = None
    """A regular expression of topics that ``include`` leaves out."""
    own: str | None = None
    """A regular expression of topics that ``include`` never matches: retries and dead letters."""
    retries: Sequence[str] = ()
    """Retry topics, which are read too."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a bad pattern."""
        given: dict[str, object] = {"include": self.include, "exclude": self.exclude}
        for field, pattern in given.items():
            if pattern is None:
                continue
            problem = "is not a regular expression"
            try:
                good = isinstance(pattern, str) and bool(pattern) and bool(re.compile(pattern))
            except (re.error, RecursionError, OverflowError) as error:
                good, problem = False, f"{problem}: {error}"
            if not good:
                raise InvalidValueError(field, pattern, problem, 'give one, such as "^orders"')
        if self.exclude is not None and self.include is None:
            hint = "give include too, or leave topics out of the list"
            raise InvalidValueError("exclude", self.exclude, "has nothing to leave out", hint)

    def of(self, existing: Iterable[str]) -> list[str]:
        """Return the topics to read, where ``existing`` ones may match."""
        found = [each for each in sorted(existing) if self.include and self._matches(each)]
        return list(dict.fromkeys([*self.names, *found, *self.retries]))

    def _matches(self, topic: str) -> bool:
        include = self.include or ""
        if topic.startswith(INTERNAL) and INTERNAL not in include:
            return False
        if self.own is not None and re.fullmatch(self.own, topic):
            return False
        excluded = self.exclude is not None and re.search(self.exclude, topic)
        return not excluded and re.search(include, topic) is not None


class Discovery:
    """Finds the topics to subscribe to, in the background; for one thread."""

    def __init__(
        self,
        subscription: Subscription,
        reader: ClusterReader,
        store: OffsetStore,
        group: str,
        report: Callable[[OffsetManagerError, str], None],
        kafka: Mapping[str, Any],
        *,
        latest: bool,
    ) -> None:
        """With ``latest`` topics that were not read before begin where they end now."""
        self.topics: list[str] = []
        """Topics as of the last discovery."""
        self.firsts: dict[TopicPartition, int] = {}
        """With ``latest``: where the logs ended that the group had not read, at the first one."""
        self.subscription: Final = subscription
        self._reader = reader
        self._store = store
        self._group = group
        self._report = report
        refresh_ms = float(kafka.get("topic.metadata.refresh.interval.ms", 0))
        self._interval_s = max(_RETRY_S, refresh_ms / 1000) if refresh_ms > 0 else _INTERVAL_S
        self._latest = latest
        self._due_s = -inf
        self._question: Question[tuple[list[str], dict[TopicPartition, int]]] | None = None

    def changed(self) -> bool:
        """Return True if ``topics`` are others since the last call."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        if self.subscription.include is None and not self._latest:
            self.topics, self._due_s = self.subscription.of(()), inf
            return True
        if self._question is None:
            self._question = Question(self._discover)
        if not self._question.wait():
            return False
        question, self._question = self._question, None
        try:
            topics, firsts = question.result()
        except Exception as error:  # noqa: BLE001 -- of a user's store, too
            what = f"topics of group {self._group}"
            self._report(as_store_error(what, error), "could not look up topics; tries again")
            self._due_s = now_s + _RETRY_S
            return False
        self.firsts |= firsts
        self._latest = False
        self._due_s = inf if self.subscription.include is None else now_s + self._interval_s
        if not topics:
            text = f"no topic matches {self.subscription.include!r}; tries again"
            what = f"include of group {self._group}"
            nothing = KafkaRequestError(what, error_info(UNKNOWN_TOPIC), text)
            self._report(nothing, "there is nothing to read")
        before, self.topics = self.topics, topics
        return topics != before

    def _discover(self) -> tuple[list[str], dict[TopicPartition, int]]:
        existing = self._reader.topic_names() if self.subscription.include is not None else ()
        topics = self.subscription.of(existing)
        if not self._latest:
            return topics, {}
        return topics, first_positions(self._reader, self._store, self._group, topics)


def first_positions(
    reader: ClusterReader, store: OffsetStore, group: str, topics: Collection[str]
) -> dict[TopicPartition, int]:
    """Return where the logs end of topics that ``group`` has not read yet.

    A topic of which a partition is committed was read before: partitions of it that are not
    committed are new.  Raises what Kafka or the store raises.
    """
    described = reader.partitions_of(topics)
    partitions = [
        TopicPartition(topic, number)
        for topic, numbers in described.items()
        if not does_not_exist(numbers)
        for number in known(numbers)
    ]
    committed = store.fetch(group, partitions) if partitions else {}
    read = {each.topic for each in partitions if committed.get(each) is not None}
    return ends_of(reader, [each for each in partitions if each.topic not in read])


def ends_of(
    reader: ClusterReader, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return where the logs of ``partitions`` end.  Raises KafkaRequestError."""
    found = reader.log_ranges(partitions)
    return {each: known(log).high_watermark for each, log in found.items()}
