"""Settings of topics that are refused before Kafka is asked."""

from __future__ import annotations

from typing import Any

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams import TopicManager
from offsetmgr.streams.topics import TopicSettings


def test_settings_are_checked() -> None:
    """An unknown policy, and no replicas, are refused."""
    with pytest.raises(InvalidValueError, match="mismatch 'stop' is unknown; give 'ignore'"):
        TopicSettings(mismatch="stop")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="replication 0 is not possible"):
        TopicSettings(replication=0)


@pytest.mark.parametrize("number", [-1, 0, True, 2.0])
def test_a_number_of_partitions_below_one_is_refused(number: Any) -> None:
    """Before Kafka is asked, as -1 would be its own number, which is not known here."""
    with TopicManager("127.0.0.1:1") as topics, pytest.raises(InvalidValueError, match="partition"):
        topics.ensure_topic("t", number, {})
