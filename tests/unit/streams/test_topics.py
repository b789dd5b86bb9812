"""The check of a group's topics, against topics in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams import (
    TopicManager,
    TopicsError,
    codecs,
    define_group,
    input,
    join,
    lookup,
    loop,
    output,
    persist,
)
from offsetmgr.streams.topics import TopicSettings, prepare_topics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.streams import GroupGraph

C = codecs.String()
GRAPH = define_group(
    "g",
    input("clicks", C, print),
    join("names", C),
    lookup("rates", C),
    output("out", C),
    loop(C, print),
    persist(C),
)


class Cluster:
    def __init__(self, **topics: list[int]) -> None:
        self.topics = topics
        self.created: list[tuple[Any, ...]] = []

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        return {topic: self.topics[topic] for topic in topics if topic in self.topics}

    def ensure_table(self, topic: str, partitions: int) -> int:
        self.created.append((topic, "table", partitions))
        return partitions

    def ensure_stream(self, topic: str, partitions: int) -> int:
        self.created.append((topic, "stream", partitions))
        return partitions


def prepared(cluster: Cluster, graph: GroupGraph = GRAPH) -> dict[str, int]:
    return prepare_topics(cast("TopicManager", cluster), graph)


def test_loop_and_table_are_created_like_the_inputs() -> None:
    """Only these two; a lookup may have another number of partitions, an output may be missing."""
    cluster = Cluster(clicks=[0, 1, 2], names=[0, 1, 2], rates=[0])
    counts = prepared(cluster)
    assert counts == {"clicks": 3, "names": 3, "rates": 1, "g-loop": 3, "g-table": 3}
    assert cluster.created == [("g-loop", "stream", 3), ("g-table", "table", 3)]
    # Those that exist stay as they are, whatever the inputs have.
    cluster = Cluster(clicks=[0], names=[0, 1], rates=[0], **{"g-table": [0, 1, 2]})
    assert prepared(cluster)["g-table"] == 3
    assert cluster.created == [("g-loop", "stream", 2), ("g-table", "table", 3)]
    cluster = Cluster(clicks=[0, 1], out=[0, 1, 2, 3])
    graph = define_group("g", input("clicks", C, print), output("out", C))
    assert prepared(cluster, graph) == {"clicks": 2, "out": 4}
    assert cluster.created == []


def test_all_mistakes_are_listed_and_nothing_is_created() -> None:
    """Topics that are missing or have gaps."""
    cluster = Cluster(clicks=[0, 1], names=[0, 1, 3])
    with pytest.raises(TopicsError) as failed:
        prepared(cluster)
    assert str(failed.value) == (
        "group g cannot start: topic names has a gap: its partitions are [0, 1, 3]; "
        "topic rates (lookup) does not exist: create it"
    )
    assert cluster.created == []
    with pytest.raises(TopicsError, match=r"clicks \(input\) does not exist.*names \(join\)"):
        prepared(Cluster(rates=[0]))


def test_settings_are_checked() -> None:
    """An unknown policy is refused."""
    with pytest.raises(InvalidValueError, match="mismatch 'stop' is unknown; give 'ignore'"):
        TopicSettings(mismatch="stop")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 0, True, 2.0])
def test_a_number_of_partitions_below_one_is_refused(number: Any) -> None:
    """Before Kafka is asked, as -1 would be its own number, which is not known here."""
    with TopicManager("127.0.0.1:1") as topics, pytest.raises(InvalidValueError, match="partition"):
        topics.ensure_topic("t", number, {})
