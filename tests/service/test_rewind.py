"""An operator's requests to a service: list managers, and set their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from offsetmgr.admin.service import LiveManager, ServiceReader
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import OffsetCommitError, OffsetRegressionError
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from tests.service.support import Running

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_the_offsets_of_a_live_job_are_set_and_the_job_goes_on(service: Running) -> None:
    """Nothing is seen as a foreign commit; a higher offset stands until the job has passed it."""
    operator, broker = ServiceReader(service.address), service.coordinator.broker
    with OffsetClient(service.address, "etl") as job:
        job.submit("g", {P0: 50}, sync=True)
        assert operator.rewind("g", {P0: OffsetAndMetadata(10, "by hand")}) == {}
        assert broker.committed("g") == {P0: OffsetAndMetadata(10, "by hand")}
        job.submit("g", {P0: 51}, sync=True)
        assert operator.rewind("g", {P0: OffsetAndMetadata(100)}) == {}
        with pytest.raises(OffsetRegressionError):
            job.submit("g", {P0: 52}, sync=True)
        job.submit("g", {P0: 101}, sync=True)
        assert broker.committed("g") == {P0: OffsetAndMetadata(101)}
        assert not job.flush().uncommitted


def test_a_partition_without_a_manager_is_refused_alone(service: Running) -> None:
    """It is reset past the service."""
    with OffsetClient(service.address, "etl") as job:
        job.submit("g", {P0: 50}, sync=True)
        failures = ServiceReader(service.address).rewind(
            "g", {P0: OffsetAndMetadata(10), P1: OffsetAndMetadata(10)}
        )
        assert failures == {P1: "no client of this service holds g/orders/1"}
        assert service.coordinator.broker.committed("g") == {P0: OffsetAndMetadata(10)}


def test_the_service_reports_owners_and_failing_commits(service: Running) -> None:
    """The doctor's findings about it."""
    service.coordinator.inject("commit", *[Refuse(30)] * 1_000)
    with OffsetClient(service.address, "etl") as job:
        job.claim("g", [P0])
        reader = ServiceReader(service.address)
        facts = reader.facts()
        assert (facts.draining, facts.fenced_groups) == (False, 0)
        assert facts.managers == [LiveManager("g", P0, "etl", "")]
        with pytest.raises(OffsetCommitError):
            job.submit("g", {P0: 50}, sync=True)
        (failing,) = reader.facts().managers
        assert "GROUP_AUTHORIZATION_FAILED" in failing.error
        assert reader.managers("another") == []
