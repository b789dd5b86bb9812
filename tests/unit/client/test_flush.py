"""Waits that are crossed by something else: a stop, Ctrl-C, a slow service."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import wire
from offsetmgr.client.client import Wait
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetCommitError, OffsetTimeoutError
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult
from offsetmgr.workers import Question
from tests.unit.client.scripted import DENIED, KEY, Fault
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

PEER = ManagerKey("g", "orders", 4)


def test_a_flush_does_not_wait_for_a_respawned_manager(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A manager that is stopped and spawned again during a flush delays none of the others."""
    service.down()
    client.submit("g", {PEER.topic_partition: 7, KEY.topic_partition: 5})
    flush = Wait(client.core, [PEER, KEY], Deadline(WAIT_S), all_of_it=True)
    client.stop_managers(timeout=0.01, group="g", partitions=[KEY.topic_partition])
    client.spawn(*KEY)
    service.up()
    flush.run()
    result = flush.result()
    assert result.committed == {PEER: OffsetAndMetadata(7)}
    assert list(result.uncommitted) == [KEY]


def test_an_interrupted_stop_ends(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C in a stop the service is asked to stop the managers, and nobody waits for it."""
    manager = client.spawn(*KEY)
    manager.submit(5)
    service.wait_for(lambda: KEY in service.taken)
    ask = client.core.ask

    def interrupted(path: str, *more: Any) -> dict[str, Any]:
        if path == wire.STOP and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return ask(path, *more)

    monkeypatch.setattr(client.core, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.stop(timeout=WAIT_S)
    assert manager.stop().uncommitted == OffsetAndMetadata(5)
    client.submit("h", {("orders", 0): 1})
    service.wait_for(lambda: KEY not in service.managers)
    assert service.kafka[KEY] == OffsetAndMetadata(5)


def test_a_stop_goes_on_where_a_later_one_is_interrupted(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that takes a manager over, and is given up by Ctrl-C, hands it back."""
    run = Wait.run

    def interrupted(wait: Wait) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        run(wait)

    monkeypatch.setattr(Wait, "run", interrupted)
    service.down()
    client.submit("g", {KEY.topic_partition: 5})
    stopping = Question(lambda: client.stop_managers(timeout=600, group="g"))
    until(lambda: (held := client.core.partitions.get(KEY)) is not None and held.stopping)
    with pytest.raises(KeyboardInterrupt):
        client.stop_managers()
    service.up()
    assert stopping.answer.result(WAIT_S) == ({KEY: OffsetAndMetadata(5)}, {})


def test_a_stop_that_another_takes_over_ends_with_it(
    service: ScriptedService, client: OffsetClient
) -> None:
    """The first of two stops returns the result, when the manager can be spawned again."""
    manager = client.spawn(*KEY)
    manager.submit(5)
    service.wait_for(lambda: KEY in service.taken)
    first, second = threading.Event(), threading.Event()
    service.script("/v1/stop", Fault(hold=first), Fault(hold=second))
    stops = [lambda: manager.stop(timeout=600), lambda: client.stop_managers(timeout=600)]
    stopping = []
    for number, stop in enumerate(stops, 1):
        stopping.append(Question(stop))
        service.wait_for(lambda: len(service.of("/v1/stop")) == number)  # noqa: B023
    first.set()
    assert not stopping[0].wait(0.1)
    second.set()
    assert stopping[0].answer.result(WAIT_S) == StopResult(OffsetAndMetadata(5))
    assert stopping[1].answer.result(WAIT_S) == ({KEY: OffsetAndMetadata(5)}, {})
    client.spawn(*KEY)


def test_the_same_offset_after_a_flush_that_was_refused(
    service: ScriptedService, client: OffsetClient
) -> None:
    """An offset that a flush called refused for good is handed over again when it is submitted."""
    service.commits, service.commit_error = False, {**DENIED, "offset": 5}
    client.submit("g", {KEY.topic_partition: 5})
    assert isinstance(client.flush(timeout=600).uncommitted[KEY].error, OffsetCommitError)
    client.submit("g", {KEY.topic_partition: 5})
    service.wait_for(lambda: len(service.of("/v1/offsets")) == 2)


@pytest.mark.parametrize("way", ["stop", "claim"])
def test_a_manager_that_is_being_asked_for_is_given_back(
    service: ScriptedService, client: OffsetClient, way: str
) -> None:
    """A stop while the answer about a new manager is on its way leaves none with the service."""
    hold = threading.Event()
    service.script("/v1/managers", Fault(hold=hold))
    if way == "claim":
        with pytest.raises(OffsetTimeoutError):
            client.claim("g", [KEY.topic_partition], timeout=0.2)
    else:
        manager = client.spawn(*KEY)
        service.wait_for(lambda: KEY in service.managers)
        assert manager.stop() == StopResult(None)
    hold.set()
    client.submit("h", {("orders", 0): 1}, sync=True)
    assert KEY not in service.managers


def test_partitions_that_kafka_does_not_take_hold_up_no_other(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names them alone."""
    stuck = [ManagerKey("g", "orders", number) for number in range(2)]
    commit = service._commit
    monkeypatch.setattr(service, "_commit", lambda key: key in stuck or commit(key))
    offsets = {("orders", number): 5 for number in range(7)}
    client.submit("g", offsets)
    until(lambda: len(client.flush(timeout=0.1).committed) == 5)
    with pytest.raises(OffsetTimeoutError, match=r"orders-[01], orders-[01] of group g within"):
        client.submit("g", offsets, sync=True, timeout=0.1)
    assert len(service.kafka) == 5
