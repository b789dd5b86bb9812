"""The managers' promises on a real Kafka: external commits, ends of logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr.config import CommitSettings
from offsetmgr.stores.broker import BrokerOffsetStore
from offsetmgr.types import OffsetAndMetadata
from tests.faults.support import committing
from tests.kafka.messages import produce
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

LOOKING: Final = CommitSettings(commit_interval_s=0.05, verify_interval_s=0.5)


@pytest.mark.fault(7, 24)
def test_commits_behind_a_manager_are_reported_and_followed(
    kafka: DevKafka, group: str, topic: str
) -> None:
    """Those of a second service without a fence, and of a tool; and an offset outside the log.

    What another one has committed counts as committed: the next submit goes over a lower one.
    """
    servers = kafka.bootstrap_servers
    with committing(servers, LOOKING) as first, committing(servers, LOOKING) as second:
        produce(kafka, topic, range(40), partitions=1)
        one = first.spawn(group, topic=topic)
        one.submit(10)
        assert first.flush(one) is None
        other = second.spawn(group, topic=topic)
        assert other.initial_offset(timeout=WAIT_S) == OffsetAndMetadata(10)
        other.submit(20)
        assert second.flush(other) is None
        told = first.error(one, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 10: somebody else changed it: it is 20 now" in told
        one.submit(30)
        assert first.flush(one) is None
        told = second.error(other, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 20: somebody else changed it: it is 30 now" in told

        tool = BrokerOffsetStore(servers)  # as kafka-consumer-groups --reset-offsets
        tool.commit_offset(group, topic, 0, 7)
        tool.close()
        for service, manager in ((first, one), (second, other)):
            assert "it is 7 now" in service.error(manager, "OFFSET_CHANGED_EXTERNALLY")
            assert manager.status().committed == OffsetAndMetadata(7)
        one.submit(9)
        assert first.flush(one) is None
        assert second.in_kafka(group, topic=topic) == 9

        one.submit(1000)  # Kafka itself would take any offset
        assert first.flush(one) is None
        assert "which holds 0 to 40" in first.error(one, "OFFSET_OUTSIDE_LOG")
        assert first.in_kafka(group, topic=topic) == 1000
