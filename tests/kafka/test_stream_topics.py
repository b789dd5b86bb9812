"""Topics of stream processors on a real Kafka."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from offsetmgr.streams import (
    TopicsError,
    codecs,
    define_group,
    input,
    loop,
    persist,
)
from offsetmgr.streams.topics import TopicManager, TopicSettings, prepare_topics

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

C = codecs.String()
TABLE = {"cleanup.policy": "compact"}


def test_loop_and_table_are_created_once(
    kafka: DevKafka, new_topic: TopicFactory, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With their settings, which a second start finds as they should be."""
    topic = new_topic(3)
    graph = define_group(group, input(topic, C, print), loop(C, print), persist(C))
    fail = TopicSettings(mismatch="fail")
    with TopicManager(kafka.bootstrap_servers, fail, timeout_s=60) as manager:
        counts = prepare_topics(manager, graph)
        assert counts == {topic: 3, f"{group}-loop": 3, f"{group}-table": 3}
        assert prepare_topics(manager, graph) == counts
        assert manager.log_ranges(f"{group}-table") == dict.fromkeys(range(3), (0, 0))
        assert manager.log_ranges(f"{group}-none") == {}
        with pytest.raises(
            TopicsError, match=r"cleanup.policy=delete, not compact.*mismatch='warn'"
        ):
            manager.ensure_table(f"{group}-loop", 3)
        with pytest.raises(TopicsError, match="has 3 partitions, not 4: alter or delete"):
            manager.ensure_stream(f"{group}-loop", 4)
    with TopicManager(kafka.bootstrap_servers, timeout_s=60) as manager:
        assert manager.ensure_topic(f"{group}-table", 5, {"retention.ms": "1"}) == 3
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "has 3 partitions, not 5; retention.ms=604800000, not 1" in warning.getMessage()


def test_nothing_is_created_where_that_is_forbidden(kafka: DevKafka, unique_name: str) -> None:
    """The error has what to create."""
    settings = TopicSettings(create=False)
    with (
        TopicManager(kafka.bootstrap_servers, settings, timeout_s=60) as manager,
        pytest.raises(TopicsError, match=r"create it with 2 partitions and cleanup.policy=compact"),
    ):
        manager.ensure_table(unique_name, 2)
