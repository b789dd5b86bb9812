"""Committed offsets expire in a real Kafka, except those of a live manager."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr.config import CommitSettings
from offsetmgr.devkafka import DevKafka
from offsetmgr.types import OffsetAndMetadata
from tests.faults.support import committing
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

_FORGETFUL: Final = {
    "offsets.retention.minutes": "1",  # the shortest there is
    "offsets.retention.check.interval.ms": "1000",
    # One partition, so that each look at what has expired is at all groups together.
    "offsets.topic.num.partitions": "1",
}
_EXPIRED_S: Final = 60.0 + WAIT_S

_CARING: Final = CommitSettings(
    commit_interval_s=0.01, recommit_interval_s=5.0, verify_interval_s=0.0
)


@pytest.mark.chaos
@pytest.mark.fault(34)
def test_an_offset_outlives_retention_as_long_as_its_manager_lives(
    new_topic: TopicFactory, group: str
) -> None:
    """It is kept alive; one that was left alone is gone, and reads as none rather than as 0."""
    kept, left = f"{group}-kept", f"{group}-left"
    with (
        DevKafka(properties=_FORGETFUL) as kafka,
        committing(kafka.bootstrap_servers, _CARING) as managers,
    ):
        topic = new_topic(on=kafka)
        living = managers.spawn(kept, topic=topic)
        living.submit(7)
        assert managers.flush(living) is None
        # Committed later: when it has expired the other one would have, but for its manager.
        leaving = managers.spawn(left, topic=topic)
        leaving.submit(8)
        assert leaving.stop(timeout=WAIT_S).committed == OffsetAndMetadata(8)
        assert managers.in_kafka(left, topic=topic) == 8
        deadline = time.monotonic() + _EXPIRED_S
        while (found := managers.in_kafka(left, topic=topic)) is not None:
            assert found == 8
            assert time.monotonic() < deadline, f"not expired after {_EXPIRED_S} s"
            time.sleep(0.1)  # a minute of bare requests is a busy broker
        assert managers.in_kafka(kept, topic=topic) == 7
        assert managers.factory.spawn(left, topic, 0).initial_offset(timeout=WAIT_S) is None
