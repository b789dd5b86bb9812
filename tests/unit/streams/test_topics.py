"""Settings of topics that are refused before Kafka is asked."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.errors import InvalidValueError, ManagerStoppedError
from offsetmgr.streams import TopicManager
from offsetmgr.streams.topics import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Callable


def test_settings_are_checked() -> None:
    """An unknown policy, and no replicas, are refused."""
    with pytest.raises(InvalidValueError, match="mismatch 'stop' is unknown; give one of ignore"):
        TopicSettings(mismatch="stop")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="replication 0 is not possible"):
        TopicSettings(replication=0)


@pytest.mark.parametrize("number", [-1, 0, True, 2.0])
def test_a_number_of_partitions_below_one_is_refused(number: Any) -> None:
    """Before Kafka is asked, as -1 would be its own number, which is not known here."""
    with TopicManager("127.0.0.1:1") as topics, pytest.raises(InvalidValueError, match="partition"):
        topics.ensure_topic("t", number, {})


ASKING: dict[str, Callable[[TopicManager], object]] = {
    "partitions": lambda topics: topics.partitions(["t"]),
    "ensure_table": lambda topics: topics.ensure_table("t", 1),
    "ensure_stream": lambda topics: topics.ensure_stream("t", 1),
    "ensure_topic": lambda topics: topics.ensure_topic("t", 1, {}),
    "logs": lambda topics: topics.logs(["t"]),
    "offsets_at": lambda topics: topics.offsets_at(["t"], datetime.now(timezone.utc)),
    "max_bytes": lambda topics: topics.max_bytes(["t"]),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_closed_manager_of_topics_says_so(name: str) -> None:
    """Each method, as of every reader of a cluster; they raised AttributeError."""
    topics = TopicManager("127.0.0.1:1")
    topics.close()
    topics.close()
    with pytest.raises(ManagerStoppedError, match="the connections to Kafka are closed"):
        ASKING[name](topics)


@pytest.mark.parametrize("names", ["orders", None, 5])
def test_a_name_is_not_taken_for_a_list_of_names(names: Any) -> None:
    """Text was asked for letter by letter, and its topic did not exist; None was a TypeError."""
    with TopicManager("127.0.0.1:1") as topics:
        for ask in (topics.partitions, topics.logs, topics.max_bytes):
            with pytest.raises(InvalidValueError, match=r'give one such as \["orders"\]'):
                ask(names)


def test_names_that_end_the_process_are_refused() -> None:
    """A name with a lone surrogate ended the process."""
    with TopicManager("127.0.0.1:1") as topics:
        with pytest.raises(InvalidValueError, match=r"topic 'a.ud800' is not a legal"):
            topics.logs(["a\ud800"])
        with pytest.raises(InvalidValueError, match=r"config 'a.ud800' is not the name of a sett"):
            topics.ensure_topic("t", 1, {"a\ud800": "1"})
        with pytest.raises(InvalidValueError, match="at 5 is not a point in time"):
            topics.offsets_at(["t"], 5)  # type: ignore[arg-type]
