"""Committed offsets of a group, as its coordinator answers now."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

_ANSWER_S: Final = 2.0
_PAUSE_S: Final = 0.1
_READ_S: Final = 90.0


def read_committed(
    bootstrap_servers: str, group: str, topic: str, partitions: Iterable[int]
) -> dict[int, int]:
    """The offset of each partition as the group's coordinator answers it now.

    A partition with nothing committed is absent.  Raises TimeoutError.  The metadata is left
    alone: librdkafka reads on behind its end where no NUL stands there.
    """
    wanted = [TopicPartition(topic, number) for number in partitions]
    deadline = time.monotonic() + _READ_S
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    try:
        while time.monotonic() < deadline:
            # It fails while the coordinator is being looked for.
            with contextlib.suppress(KafkaException):
                answers = consumer.committed(wanted, timeout=_ANSWER_S)
                if all(each.error is None for each in answers):
                    return {each.partition: each.offset for each in answers if each.offset >= 0}
            time.sleep(_PAUSE_S)
    finally:
        consumer.close()
    raise TimeoutError(f"the coordinator of group {group} did not answer within {_READ_S} s")
