"""Managers that the service has still after the client has given them up: it is asked to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import left, sender
from offsetmgr.client.left import Left
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import DROP, Fault, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

KEY = ManagerKey("g", "orders", 3)
PEER = ManagerKey("g", "orders", 4)
BUSY = Fault(act=False, status=503, body=error_body("draining"))


def test_a_stop_that_is_never_answered_is_made_good(
    service: ScriptedService, client: OffsetClient, make_client: Callable[[str], OffsetClient]
) -> None:
    """When the service is back, it has nothing that the living client has given up."""
    client.submit("g", {KEY.topic_partition: 5, PEER.topic_partition: 1}, sync=True)
    service.down()
    client.stop_managers(0.05, group="g", partitions=[KEY.topic_partition])
    assert KEY in service.managers
    service.up()
    service.wait_for(lambda: KEY not in service.managers)
    assert PEER in service.managers
    make_client("other").claim("g", [KEY.topic_partition], timeout=20)


def test_what_a_stop_could_not_commit_is_committed(
    service: ScriptedService, client: OffsetClient
) -> None:
    """What the service had taken is not dropped with the manager."""
    client.submit("g", {KEY.topic_partition: 5})
    service.wait_for(lambda: KEY in service.taken)
    service.script("/v1/stop", *[DROP] * 4)
    assert client.stop_managers(0.05).uncommitted
    service.wait_for(lambda: KEY not in service.managers)
    assert service.kafka == {KEY: OffsetAndMetadata(5)}


def test_stops_take_turns_with_what_else_is_to_be_sent(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for them: however many there are, an offset waits for one at most."""
    monkeypatch.setattr(sender, "LEFT_STOP_S", 20.0)
    holds = [threading.Event() for _ in range(4)]
    for number in range(len(holds)):
        client.submit(f"g{number}", {KEY.topic_partition: 5}, sync=True)
    service.down()
    client.stop_managers(0.05)
    service.script("/v1/stop", *[Fault(hold=hold) for hold in holds])
    service.requests.clear()
    service.up()
    for number, hold in enumerate(holds, 1):
        service.wait_for(
            lambda: service.paths().count("/v1/stop") > sum(each.is_set() for each in holds)
        )
        client.submit("live", {KEY.topic_partition: number})
        hold.set()
    assert client.flush().committed == {ManagerKey("live", *KEY[1:]): OffsetAndMetadata(4)}
    sent = [path for path in service.paths() if path != "/v1/flush"]
    assert sent == ["/v1/stop", "/v1/offsets"] * len(holds)


def test_a_stop_is_repeated_as_it_was(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes longer than the sender waits for it is asked about again, by its sequence."""
    monkeypatch.setattr(sender, "LEFT_STOP_S", 0.05)
    monkeypatch.setattr(sender, "LEFT_PAUSE_S", 0.05)
    client.submit("g", {KEY.topic_partition: 5}, sync=True)
    hold = threading.Event()
    service.script("/v1/stop", Fault(hold=hold), BUSY)
    client.stop_managers(0.0)
    service.wait_for(lambda: len(service.of("/v1/stop")) == 3)
    monkeypatch.setattr(sender, "LEFT_STOP_S", 20.0)
    hold.set()
    client.submit("h", {("orders", 0): 1})
    assert client.flush().committed
    with (core := client._core).lock:
        assert core.changed.wait_for(lambda: not core.outbox.left, 20)
    assert len({(seen.sequence, str(seen.body)) for seen in service.of("/v1/stop")}) == 1


def test_what_is_wanted_again_is_not_stopped(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A manager that was spawned anew before the service was back stays; its peer goes."""
    client.submit("g", {KEY.topic_partition: 5, PEER.topic_partition: 1}, sync=True)
    service.down()
    client.stop_managers(0.05)
    client.submit("g", {KEY.topic_partition: 6})
    service.up()
    service.wait_for(lambda: PEER not in service.managers)
    assert client.flush().committed == {KEY: OffsetAndMetadata(6)}
    named = [
        each["partition"] for seen in service.of("/v1/stop") for each in seen.body["partitions"]
    ]
    assert named == [PEER.partition]


def test_a_stop_is_older_than_what_is_spawned_after_it(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated late, it is known by its sequence to mean an earlier manager."""
    monkeypatch.setattr(sender, "LEFT_STOP_S", 0.05)
    client.submit("g", {KEY.topic_partition: 5}, sync=True)
    hold = threading.Event()
    service.script("/v1/stop", Fault(hold=hold, act=False, cut=True))
    client.stop_managers(0.0)
    service.wait_for(lambda: len(service.of("/v1/stop")) == 1)
    client.submit("g", {KEY.topic_partition: 6}, sync=True)
    stop, submit = service.of("/v1/stop")[0], service.of("/v1/offsets")[-1]
    hold.set()
    assert stop.sequence is not None
    assert submit.sequence is not None
    assert stop.sequence < submit.sequence


def test_a_manager_that_is_made_after_its_stop_is_given_back(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A request for it that arrives late leaves nothing behind."""
    hold = threading.Event()
    service.script("/v1/managers", Fault(hold=hold))
    manager = client.spawn(*KEY)
    service.wait_for(lambda: KEY in service.managers)
    manager.stop()
    with service.lock:
        service.managers[KEY] = "etl"
    hold.set()
    service.wait_for(lambda: KEY not in service.managers)


def test_a_new_service_has_nothing_to_stop(service: ScriptedService, client: OffsetClient) -> None:
    """It is not asked for what was left with its predecessor, once it is known to be another."""
    for group in "ghi":
        client.submit(group, {KEY.topic_partition: 5}, sync=True)
    service.down()
    client.stop_managers(0.05, group="g")
    client.stop_managers(0.05, group="h")
    service.restart()
    service.up()
    client.submit("i", {KEY.topic_partition: 6}, sync=True)
    assert not client._core.outbox.left
    assert len(service.of("/v1/stop")) <= 1


@pytest.mark.parametrize("fault", [BUSY, Fault(act=False, status=403, body=error_body("no"))])
def test_a_refused_stop(service: ScriptedService, client: OffsetClient, fault: Fault) -> None:
    """It is asked for again where that may help, and not where it is called bad."""
    client.submit("g", {KEY.topic_partition: 5}, sync=True)
    service.script("/v1/stop", fault)
    client.stop_managers(0.0)
    service.wait_for(lambda: bool(service.of("/v1/stop")))
    client.submit("h", {("orders", 0): 1}, sync=True)
    if fault is BUSY:
        service.wait_for(lambda: KEY not in service.managers)
    assert len(service.of("/v1/stop")) == (2 if fault is BUSY else 1)


def test_what_is_left_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many stops go unanswered, so many managers are remembered and so many asked for."""
    monkeypatch.setattr(left, "LEFT_LIMIT", 5)
    monkeypatch.setattr(left, "STOP_LIMIT", 2)
    kept = Left()
    for number in range(9):
        kept.add(ManagerKey("g", "orders", number))
    kept.discard(ManagerKey("g", "orders", 0))
    sizes: list[int] = []
    while stop := kept.stop(lambda: len(sizes)):
        assert kept.stop(lambda: -1) is stop
        sizes.append(len(stop.partitions))
        kept.answered(stop)
    assert sizes == [2, 2]
    assert not kept
