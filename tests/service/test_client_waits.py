"""The client against the real service: what one partition waits for holds up no other."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from offsetmgr import OffsetClient
from offsetmgr.client import wire
from offsetmgr.client.core import Core
from offsetmgr.client.transport import Unreachable
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import ManagerExistsError, OffsetTimeoutError, OverloadedError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.service.support import Running, running
from tests.waiting import until

KEY = ManagerKey("g", "t", 0)
PEER = ManagerKey("g", "t", 1)
NEW = ManagerKey("other", "t", 7)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, no stop reaches the service."""
    away = threading.Event()
    ask = Core.ask

    def over_a_link(self: Core, path: str, *more: Any) -> dict[str, Any]:
        if path == "/v1/stop" and away.is_set():
            raise Unreachable("the link is cut")
        return ask(self, path, *more)

    monkeypatch.setattr(Core, "ask", over_a_link)
    return away


def owner(service: Running, key: ManagerKey) -> str | None:
    handle = service.service.assembly.factory.get(key)
    return None if handle is None else handle.owner


def test_a_manager_beyond_the_limit_holds_up_no_other() -> None:
    """Offsets of the managers that are there are committed; new ones are made when these go."""
    with running(limits__managers=2) as service, OffsetClient(service.address, "etl") as client:
        client.submit("g", {KEY.topic_partition: 1, PEER.topic_partition: 1}, sync=True)
        new = client.spawn(*NEW)
        with pytest.raises(OffsetTimeoutError, match=r"limits\.managers"):
            new.initial_offset(timeout=1)
        with pytest.raises(OverloadedError, match=r"limits\.managers"):
            client.submit("g", {("t", 5): 1}, sync=True)
        with pytest.raises(OverloadedError, match=r"limits\.managers"):
            client.claim("g", [("t", 6)])
        client.submit("g", {("t", 0): 2, ("t", 1): 2})
        value = OffsetAndMetadata(2)
        committed, uncommitted = client.flush(timeout=60)
        assert committed == {KEY: value, PEER: value}
        assert all("limits.managers" in str(left.error) for left in uncommitted.values())
        client.stop_managers(group="g", partitions=[("t", 0), ("t", 1)])
        freed = {ManagerKey("g", "t", 5): OffsetAndMetadata(1)}
        # An answer from before the stop may still be on its way, and end a flush as well.
        until(lambda: client.flush(timeout=60) == (freed, {}))
        assert new.initial_offset(timeout=60) is None
        assert owner(service, NEW) == "etl"


def claimed(client: OffsetClient) -> bool:
    """Return False while another client holds the partition."""
    try:
        client.claim("g", [("t", 0)], timeout=60)
    except ManagerExistsError:
        return False
    return True


def test_an_unanswered_stop_frees_its_partition(cut: threading.Event) -> None:
    """A stop that never reached the service ends when it can be reached, and not with the lease."""
    with running(lease_s=600) as service, OffsetClient(service.address, "etl") as client:
        client.submit("g", {("t", 0): 1, ("t", 1): 1}, sync=True)
        cut.set()
        client.stop_managers(timeout=0.2, group="g", partitions=[("t", 0)])
        with OffsetClient(service.address, "heir") as heir:
            with pytest.raises(ManagerExistsError):
                heir.claim("g", [("t", 0)], timeout=60)
            cut.clear()
            until(lambda: claimed(heir))
        assert owner(service, PEER) == "etl"


def test_a_close_releases_partitions_of_a_partly_refused_claim(service: Running) -> None:
    """A client that is closed at once leaves no partition to its lease."""
    with OffsetClient(service.address, "owner") as owner:
        owner.claim("g", [("t", 0)])
        with OffsetClient(service.address, "late") as late, pytest.raises(ManagerExistsError):
            late.claim("g", [("t", 0), ("t", 1)])
        owner.claim("g", [("t", 1)])


def test_an_offset_overtaken_by_a_stop(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that a restarted service gets before the offsets holds none of them back."""
    ask, number = Core.ask, iter([0])

    def overtaken(self: Core, path: str, *more: Any) -> object:
        if path == wire.OFFSETS and next(number, None) is not None:
            with self.lock:
                version = self.partitions.stop_version()
            stop = wire.flush_body("g", [KEY.topic_partition], 60, version)
            self.session.ask(wire.STOP, Deadline(60), dict, stop)
        return ask(self, path, *more)

    monkeypatch.setattr(Core, "ask", overtaken)
    with OffsetClient(service.address, "etl") as client:
        client.submit("g", {("t", 0): 1}, sync=True, timeout=60)
        assert owner(service, KEY) == "etl"


def test_a_new_manager_outlives_the_stop_of_its_predecessor(
    service: Running, cut: threading.Event
) -> None:
    """Offsets left by an unanswered stop have a lower version than those of the new manager."""
    with OffsetClient(service.address, "etl") as client:
        client.submit("g", {("t", 0): 1, ("t", 1): 1}, sync=True)
        cut.set()
        client.stop_managers(timeout=0.2)
        client.submit("g", {("t", 0): 2}, sync=True)
        cut.clear()
        client.submit("h", {("t", 0): 1})
        until(lambda: owner(service, PEER) is None)
        assert owner(service, KEY) == "etl"
