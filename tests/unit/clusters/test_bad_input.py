"""Bad input of readers and writers is refused at the door, before anything is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.clusters import (
    MultiClusterAckConsumer,
    MultiClusterReader,
    MultiClusterWriter,
    ProducerRecord,
    WriterSettings,
)
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable

DEAD = {"west": "127.0.0.1:9"}

WRONG: dict[str, Callable[[], object]] = {
    "clusters 'dict' is no mapping with a cluster": lambda: MultiClusterReader({}, "orders"),
    "clusters 'str' is no mapping": lambda: MultiClusterWriter("west:9092"),  # type: ignore[arg-type]
    "clusters 'a\\\\nb' is no name": lambda: MultiClusterWriter({"a\nb": "west:9092"}),
    "bootstrap.servers None is missing": lambda: MultiClusterWriter({"west": {}}),
    "no.such.setting": lambda: MultiClusterReader(
        {"west": {"bootstrap.servers": "west:1", "no.such.setting": "1"}}, "orders"
    ),
    "enable.idempotence False is set by offsetmgr itself": lambda: MultiClusterWriter(
        {"west": {"bootstrap.servers": "west:1", "enable.idempotence": False}}
    ),
    "topic 'a b' is not a legal": lambda: MultiClusterReader(DEAD, "a b"),
    "partitions .* cannot be chosen with a group": lambda: MultiClusterReader(
        DEAD, "orders", group="etl", partitions=[0]
    ),
    "group '' is empty": lambda: MultiClusterAckConsumer(DEAD, "", ["orders"]),
    "topics .* is empty": lambda: MultiClusterAckConsumer(DEAD, "etl", []),
    "mode 'both' is unknown": lambda: WriterSettings(mode="both"),  # type: ignore[arg-type]
    "fail_over_s 2 is not possible; give seconds from 3": lambda: WriterSettings(fail_over_s=2),
    "fail_back_s -1 is not possible": lambda: WriterSettings(fail_back_s=-1),
}


@pytest.mark.parametrize("message", WRONG)
def test_the_message_names_the_value_and_the_fix(message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        WRONG[message]()


def test_a_bad_record_is_refused_with_all_others_of_its_write() -> None:
    with MultiClusterWriter(DEAD) as writer:
        for record, problem in (
            (ProducerRecord("text"), "has no topic"),
            (ProducerRecord("text", topic="a b"), "is not a legal Kafka topic name"),
            (ProducerRecord(5, topic="orders"), "cannot be written"),  # type: ignore[arg-type]
            ("text", "is no record"),
        ):
            with pytest.raises(InvalidValueError, match=problem):
                writer.write_messages([ProducerRecord("good", topic="orders"), record])  # type: ignore[list-item]
        assert writer.stats()["west"] == (True, False, 0, 0)
