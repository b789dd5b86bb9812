"""A member's client of librdkafka: its errors, start and end, and when only another one reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from offsetmgr.consumer.settings import log
from offsetmgr.deadlines import POLL_S, Deadline
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from confluent_kafka import Consumer

    from offsetmgr.types import TopicPartition

END: Final = -191
"""librdkafka's _PARTITION_EOF."""

FATAL: Final = -150
"""librdkafka's _FATAL, of a client that can do no more."""

OUT_OF_RANGE: Final = frozenset({-140, -139})
"""librdkafka's _AUTO_OFFSET_RESET and _LOG_TRUNCATION."""

REFUSING: Final = frozenset({-169, -181, -187, -193})
"""librdkafka's _AUTHENTICATION, _SSL, _ALL_BROKERS_DOWN and _RESOLVE: errors of connections that
are reported.  Others are followed by one of these, or by none."""

_FETCH_S: Final = 3.0
"""A fetch of a new log is answered within this time, as topics are looked up each second."""


class Unfetched:
    """Partitions of which nothing was fetched since their reading began; for one thread at a time.

    librdkafka (2.16, issue 4898) takes no leader whose epoch is lower than the one that it knows.
    The epochs of a recreated topic begin with 0 again, so after a fail-over of the former topic it
    asks the former leader forever, in silence.  Only another client reads the new log.
    """

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int | None, float]] = {}
        """The end of the log at its last fetch before, and the time."""

    def begin(
        self, partitions: Collection[TopicPartition], end_of: Callable[[TopicPartition], int | None]
    ) -> None:
        """Reading begins; ``end_of`` returns the end of a log at its last fetch, None before."""
        now_s = time.monotonic()
        self._since.update((each, (end_of(each), now_s)) for each in partitions)

    def fetched(self, topic_partition: TopicPartition) -> None:
        """Take in that a message or the end of a partition was received."""
        self._since.pop(topic_partition, None)

    def found(
        self, ends: Mapping[TopicPartition, int], counted: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Return partitions that this client does not read.

        ``ends`` are the ends of the logs at their last fetches.  The time of partitions that are
        not ``counted`` begins anew.
        """
        now_s = time.monotonic()
        for each, (end, _) in list(self._since.items()):
            if ends.get(each) != end:
                del self._since[each]
            elif each not in counted:
                self._since[each] = end, now_s
        return sorted(each for each, (_, at_s) in self._since.items() if now_s - at_s >= _FETCH_S)


def leave(consumer: Consumer, group: str, least_s: float, is_cut_off: Callable[[], bool]) -> None:
    """Leave the group; librdkafka waits for a coordinator that is away."""
    question, deadline = Question(consumer.close), Deadline(least_s)
    while not question.wait(POLL_S):
        if deadline.over and is_cut_off():
            log.warning("group %s: left without an answer of its coordinator", group)
            break
