"""Clients, their leases, what they own, and the order of their requests."""

from __future__ import annotations

import pytest

from offsetmgr.errors import ClientFencedError
from offsetmgr.service import sessions
from offsetmgr.service.errors import ClientExistsError
from offsetmgr.service.messages import Caller
from offsetmgr.service.sessions import Registry
from offsetmgr.types import ManagerKey, TopicPartition

LEASE_S = 30.0
GROUP = "orders-etl"


def registry_of(clients: int = 10, managers: int = 100) -> Registry:
    return Registry(lease_s=LEASE_S, clients=clients, managers=managers)


def listen(registry: Registry, since_s: int, until_s: int) -> dict[str, int]:
    """Look for silent clients each second, as the service does; return who was, and when."""
    return {
        each.name: now
        for now in range(since_s, until_s + 1)
        for each, _ in registry.lapse(float(now))
    }


@pytest.mark.fault(8)
@pytest.mark.parametrize("successor", [2, 0], ids=["in order", "clock set back"])
def test_a_replaced_client_stays_fenced(successor: int) -> None:
    """A zombie that wakes after its successor is gone as well does not get the group back."""
    registry = registry_of()
    registry.enter(Caller("etl", 1), 0.0)
    listen(registry, 0, 31)
    registry.enter(Caller("etl", successor), 32.0)
    with pytest.raises(ClientFencedError):
        registry.enter(Caller("etl", 1), 33.0)
    assert listen(registry, 34, 90) == {"etl": 63}
    with pytest.raises(ClientFencedError):
        registry.renew(Caller("etl", 1), 91.0)
    registry.enter(Caller("etl", successor), 120.0)


def test_a_fast_clock_locks_no_successor_out() -> None:
    """A client whose clock is behind takes over when the old lease has ended, not before."""
    registry = registry_of()
    fast, slow = Caller("etl", 900), Caller("etl", 500)
    client = registry.enter(fast, 0.0)
    registry.own(client, GROUP, [TopicPartition("orders", 0)])
    listen(registry, 0, 19)
    with pytest.raises(ClientExistsError, match="its lease ends in 10 s"):
        registry.enter(slow, 20.0)
    registry.renew(slow, 22.0)  # it may read meanwhile, which keeps no lease
    listen(registry, 23, 30)
    assert registry.enter(slow, 30.1).holds(ManagerKey(GROUP, "orders", 0))
    with pytest.raises(ClientFencedError):
        registry.enter(fast, 31.0)


@pytest.mark.parametrize("standstill_s", [LEASE_S + 1, 3600.0])
def test_a_standstill_of_the_service_ends_no_lease(standstill_s: float) -> None:
    """A client that could not be heard was not silent (paused service, suspended machine).

    After it whoever comes first would take over from a client that is alive.
    """
    registry = registry_of()
    alive, former = Caller("etl", 2), Caller("etl", 1)
    registry.enter(alive, 0.0)
    listen(registry, 0, 20)
    later = 20 + standstill_s
    assert registry.lease_left_s("etl", later) == pytest.approx(10 - sessions.LISTENS_S)
    with pytest.raises(ClientExistsError):
        registry.enter(former, later)
    assert registry.lapse(later) == []
    registry.enter(alive, later)
    assert listen(registry, int(later) + 1, int(later) + 40) == {"etl": later + 31}


def test_a_request_from_before_a_stop_of_everything_gets_no_manager() -> None:
    """The kind: a request that is overtaken by the last of several stops of its manager."""
    registry = registry_of()
    client = registry.enter(Caller("etl", 1), 0.0)
    orders = TopicPartition("orders", 0)
    registry.stop(client, [ManagerKey(GROUP, *orders)], 2)
    client.stopped_all = 5
    assert registry.sort(client, GROUP, [(orders, 3)]).stopped == {orders: 3}
    assert registry.sort(client, GROUP, [(orders, 6)]).new == {orders: 6}


def test_a_waiting_client_is_reported_for_a_lease() -> None:
    """Operators see it while it tries, and no longer."""
    registry = registry_of()
    registry.enter(Caller("etl", 900), 0.0)
    with pytest.raises(ClientExistsError) as refused:
        registry.enter(Caller("etl", 500), 20.0)
    registry.renew(Caller("etl", 900), 40.0)
    assert registry.refusal("etl", 45.0) is refused.value
    assert registry.refusal("etl", 20.1 + LEASE_S) is None
    assert registry.refusal("other", 20.0) is None


def test_a_request_of_the_one_before_keeps_no_lease() -> None:
    """A client that has taken over is kept alive only by its own requests."""
    registry = registry_of()
    registry.enter(Caller("etl", 1), 0.0, wait_s=100 * LEASE_S)
    registry.enter(Caller("etl", 2), 1.0)
    assert listen(registry, 1, 40) == {"etl": 32}


def test_fences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences end with their time, and names that come once and never again need no memory."""
    monkeypatch.setattr(sessions, "FENCES_KEPT", 3)
    registry = registry_of()

    def replace(name: str, now: int) -> None:
        for incarnation in (1, 2):
            registry.enter(Caller(name, incarnation), float(now))
        listen(registry, now, now + 31)

    for number in range(6):
        replace(f"client-{number}", number * 100)
    registry.enter(Caller("client-0", 1), 1_000.0)
    with pytest.raises(ClientFencedError):
        registry.check_fence(Caller("client-5", 1))
    registry.lapse(1_000.0 + sessions.FENCE_S)
    registry.check_fence(Caller("client-5", 1))
