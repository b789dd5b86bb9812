"""A flush or a stop that is crossed by something else: another stop, Ctrl-C, a slow service."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import wire
from offsetmgr.client.offsets import Deadline
from offsetmgr.client.waits import Wait
from offsetmgr.errors import OffsetCommitError, OffsetTimeoutError
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult
from tests.unit.client.scripted import Fault

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

KEY = ManagerKey("g", "orders", 3)
PEER = ManagerKey("g", "orders", 4)


def test_a_flush_waits_for_no_manager_that_was_spawned_anew(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A manager that is stopped and spawned anew beside a flush holds up none of the others."""
    service.down()
    client.submit("g", {PEER.topic_partition: 7, KEY.topic_partition: 5})
    flush = Wait(client.core, [PEER, KEY], Deadline(5), all_of_it=True)
    client.stop_managers(timeout=0.01, group="g", partitions=[KEY.topic_partition])
    client.spawn(*KEY)
    service.up()
    result = flush.run()
    assert result.committed == {PEER: OffsetAndMetadata(7)}
    assert list(result.uncommitted) == [KEY]


def test_an_interrupted_stop_is_undone(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C in a stop its managers live on: they take offsets, and can be stopped again.

    So they do where the service has heard of the stop: then they are asked for anew.
    """
    idle, manager = client.spawn(*PEER), client.spawn(*KEY)
    manager.submit(5)
    post = client.core.post

    def interrupted(path: str, *more: Any) -> dict[str, Any]:
        answer = post(path, *more)
        if path == wire.STOP:
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(client.core, "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.stop_managers(timeout=10)
    service.wait_for(lambda: {KEY, PEER} <= set(service.managers))
    manager.submit(6)
    assert client.flush().committed[KEY] == OffsetAndMetadata(6)
    assert manager.stop() == StopResult(OffsetAndMetadata(6))
    assert idle.stop() == StopResult(None)
    assert not service.managers


def test_the_same_offset_after_a_flush_that_was_refused(
    service: ScriptedService, client: OffsetClient
) -> None:
    """An offset that a flush called refused for good is handed over again when it is submitted."""
    denied = {"code": "GROUP_AUTHORIZATION_FAILED", "message": "denied", "kafka_code": 30}
    service.commits, service.commit_error = False, {**denied, "offset": 5}
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
