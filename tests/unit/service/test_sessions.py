"""Clients, their leases, what they own, and the order of their requests."""

from __future__ import annotations

import pytest

from offsetmgr.errors import ClientFencedError, OverloadedError
from offsetmgr.service import sessions
from offsetmgr.service.errors import ClientExistsError
from offsetmgr.service.messages import Caller
from offsetmgr.service.sessions import Registry
from offsetmgr.types import ManagerKey, TopicPartition

LEASE_S = 30.0
GROUP = "orders-etl"


def registry_of(clients: int = 10, managers: int = 100) -> Registry:
    """An empty registry."""
    return Registry(lease_s=LEASE_S, clients=clients, managers=managers)


@pytest.mark.fault(8)
@pytest.mark.parametrize("successor", [2, 0], ids=["in order", "clock set back"])
def test_a_replaced_client_stays_fenced(successor: int) -> None:
    """A zombie that wakes after its successor is gone as well does not get the group back."""
    registry = registry_of()
    registry.enter(Caller("etl", 1), 0.0)
    registry.lapse(LEASE_S + 1)
    registry.enter(Caller("etl", successor), LEASE_S + 2)
    with pytest.raises(ClientFencedError):
        registry.enter(Caller("etl", 1), LEASE_S + 3)
    registry.lapse(3 * LEASE_S)
    with pytest.raises(ClientFencedError):
        registry.renew(Caller("etl", 1), 3 * LEASE_S)
    registry.enter(Caller("etl", successor), 4 * LEASE_S)


def test_a_fast_clock_locks_no_successor_out() -> None:
    """A client whose clock is behind takes over when the old lease has ended, not before."""
    registry = registry_of()
    fast, slow = Caller("etl", 900), Caller("etl", 500)
    client = registry.enter(fast, 0.0)
    registry.own(client, GROUP, [TopicPartition("orders", 0)])
    with pytest.raises(ClientExistsError, match="its lease ends in 10 s"):
        registry.enter(slow, LEASE_S - 10)
    registry.renew(slow, LEASE_S - 5)  # it may read meanwhile, which keeps no lease
    assert registry.enter(slow, LEASE_S + 0.1).holds(ManagerKey(GROUP, "orders", 0))
    with pytest.raises(ClientFencedError):
        registry.enter(fast, LEASE_S + 1)


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_closed_client_is_followed_at_once(*, lapsed: bool) -> None:
    """After a clean close the number of the next incarnation does not matter."""
    registry = registry_of()
    client = registry.enter(Caller("etl", 900), 0.0)
    client.stopped_all = client.version(None)
    if lapsed:
        registry.lapse(LEASE_S + 1)
    registry.enter(Caller("etl", 500), LEASE_S + 2 if lapsed else 1.0)


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
    assert registry.lapse(LEASE_S + 0.9) == []
    assert registry.lapse(LEASE_S + 1.1) == [("etl", [])]


def test_too_many_clients_are_refused() -> None:
    """The limit is named, and those that are there stay."""
    registry = registry_of(clients=1)
    registry.enter(Caller("a"), 0.0)
    with pytest.raises(OverloadedError, match=r"limits\.clients"):
        registry.enter(Caller("b"), 0.0)
    registry.enter(Caller("a"), 1.0)


def test_fences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences end with their time, and names that come once and never again need no memory."""
    monkeypatch.setattr(sessions, "FENCES_KEPT", 3)
    registry = registry_of()

    def replace(name: str, now: float) -> None:
        for incarnation in (1, 2):
            registry.enter(Caller(name, incarnation), now)
        registry.lapse(now + LEASE_S + 1)

    for number in range(6):
        replace(f"client-{number}", number * 100.0)
    registry.enter(Caller("client-0", 1), 1_000.0)
    with pytest.raises(ClientFencedError):
        registry.check_fence(Caller("client-5", 1))
    registry.lapse(1_000.0 + sessions.FENCE_S)
    registry.check_fence(Caller("client-5", 1))
