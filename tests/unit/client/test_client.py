"""The client as its user sees it, against a service over real HTTP."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import (
    ManagerStoppedError,
    OffsetCommitError,
    OffsetRegressionError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from offsetmgr.workers import Question
from tests.unit.client.scripted import DENIED, KEY, Fault
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from offsetmgr import OffsetClient
    from tests.unit.client.scripted import ScriptedService


def test_only_the_newest_is_sent(service: ScriptedService, client: OffsetClient) -> None:
    """Offsets that are replaced before they are sent never travel: memory and traffic are flat."""
    hold = threading.Event()
    manager = client.spawn("g", "orders", 3)
    service.script("/v1/offsets", Fault(hold=hold))
    manager.submit(0)
    service.wait_for(lambda: len(service.of("/v1/offsets")) == 1)
    for offset in range(1, 1000):
        manager.submit(offset)
    hold.set()
    assert client.flush().committed == {KEY: OffsetAndMetadata(999)}
    sent = [each["offset"] for seen in service.of("/v1/offsets") for each in seen.body["offsets"]]
    assert sent == [0, 999]


def test_initial_offset_names_the_reason_of_its_time_out(
    service: ScriptedService, client: OffsetClient
) -> None:
    """When Kafka does not tell the initial offset in time, the error carries Kafka's reason."""
    service.fetches = False
    manager = client.spawn("g", "orders", 3)

    def reason() -> str:
        with pytest.raises(OffsetTimeoutError, match="g/orders/3") as caught:
            manager.initial_offset(timeout=0.05)
        return str(caught.value)

    until(lambda: "still loading" in reason())


def test_initial_offset_survives_a_service_that_forgot(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A manager that the service does not know is asked for again."""
    manager = client.spawn("g", "orders", 3)
    service.wait_for(lambda: bool(service.of("/v1/managers")))
    client.committed("g")  # a later request: the manager's answer is certainly in
    with service.lock:
        service.initial.clear()
        service.managers.clear()
    assert manager.initial_offset(timeout=WAIT_S) is None


def test_stop_when_one_manager_of_several_is_gone(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A manager that was stopped is not stopped again because another one is missing."""
    other = ManagerKey("h", "orders", 3)
    client.submit("g", {("orders", 3): 5})
    client.submit("h", {("orders", 3): 6})
    service.wait_for(lambda: {KEY, other} <= service.taken.keys())
    with service.lock:
        del service.managers[other], service.taken[other]
    assert client.close(timeout=600) == (
        {KEY: OffsetAndMetadata(5), other: OffsetAndMetadata(6)},
        {},
    )
    assert len(service.of("/v1/stop")) == 2
    assert not service.managers


@pytest.mark.parametrize("commits", [True, False])
def test_a_flush_ends_with_a_concurrent_stop(
    service: ScriptedService, client: OffsetClient, *, commits: bool
) -> None:
    """With what the stop ended with, and without asking for its managers again."""
    service.commits = commits
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: KEY in service.taken)
    answer = threading.Event()
    service.script("/v1/stop", Fault(hold=answer))
    stopping = Question(client.stop_managers)
    service.wait_for(lambda: KEY not in service.managers)
    flushing = Question(lambda: client.flush(timeout=600))
    service.wait_for(lambda: len(service.of("/v1/flush")) >= 2)  # it asks, and learns nothing
    answer.set()
    stopping.answer.result(WAIT_S)
    committed, uncommitted = flushing.answer.result(WAIT_S)
    assert not service.managers
    if commits:
        assert (committed, uncommitted) == ({KEY: OffsetAndMetadata(5)}, {})
    else:
        assert (committed, uncommitted[KEY].offset) == ({}, OffsetAndMetadata(5))
        assert isinstance(uncommitted[KEY].error, ManagerStoppedError)


def test_flush_tells_that_kafka_had_more(service: ScriptedService, client: OffsetClient) -> None:
    """An offset that the service dropped for a higher one in Kafka is never called committed."""
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: KEY in service.taken)
    with service.lock:
        service.taken.clear()
        service.kafka[KEY] = OffsetAndMetadata(100)
    result = client.flush(timeout=600)
    assert not result.committed
    error = result.uncommitted[KEY].error
    assert isinstance(error, OffsetRegressionError)
    assert (error.offset, error.floor) == (5, 100)


def test_sync_refused(service: ScriptedService, client: OffsetClient) -> None:
    """Refusals that only people can end are raised at once, with all of them in one error."""
    service.commits = False
    service.commit_error = {**DENIED, "hint": "no READ", "offset": 7}
    with pytest.raises(OffsetCommitError, match="no READ"):
        client.submit("g", {("orders", 3): 7}, sync=True, timeout=600)
    with pytest.raises(OffsetsUncommittedError, match="offset 6 is lower") as caught:
        client.submit("g", {("orders", 3): 6, ("orders", 4): 7}, sync=True, timeout=600)
    lower, denied = (caught.value.errors[ManagerKey("g", "orders", n)] for n in (3, 4))
    assert (type(lower), type(denied)) == (OffsetRegressionError, OffsetCommitError)
    result = client.flush(timeout=600)
    assert not result
    with pytest.raises(OffsetsUncommittedError, match=r"not committed: g/orders/\d, g/orders/\d;"):
        result.raise_for_uncommitted()


def test_topics(client: OffsetClient) -> None:
    """Ranges of all topics, however many requests that takes."""
    names = [f"t{number}" for number in range(120)]
    found = client.topics([*names, "t0"])
    assert list(found) == names
    assert found["t0"] == {0: (0, 10), 1: (1, 11)}


def test_an_answer_about_another_topic_is_refused(
    service: ScriptedService, client: OffsetClient
) -> None:
    """The topic that was asked for would look like one without partitions."""
    body = json.dumps({"topics": [{"topic": "other", "error": None, "partitions": []}]}).encode()
    service.script("/v1/topics", Fault(status=200, body=body))
    with pytest.raises(ServiceError, match="cannot be read"):
        client.topics(["orders"])


def test_reads_wait_for_a_service_that_starts(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A read asks again until its timeout: the service may just be starting."""
    service.script("/v1/offsets", Fault(status=503, body=b"{}"), Fault(act=False, cut=True))
    assert client.committed("g", timeout=WAIT_S) == {}
    service.down()
    with pytest.raises(ServiceUnavailableError, match="cannot be reached: connection refused"):
        client.committed("g", timeout=0.2)


def test_a_client_that_was_never_used_closes_in_silence(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Without managers there is nothing to ask the service."""
    client.close()
    assert not service.requests
