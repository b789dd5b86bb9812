"""Clients, their leases, what they own, and the order of their requests."""

from __future__ import annotations

import pytest

from offsetmgr.errors import ClientFencedError, OverloadedError
from offsetmgr.service import sessions
from offsetmgr.service.messages import Caller
from offsetmgr.service.sessions import Registry

LEASE_S = 30.0
GROUP = "orders-etl"


def registry_of(clients: int = 10, managers: int = 100) -> Registry:
    """An empty registry."""
    return Registry(lease_s=LEASE_S, clients=clients, managers=managers)


@pytest.mark.fault(8)
def test_a_fence_outlives_the_lease() -> None:
    """A zombie that wakes after its successor is gone too does not get the group back."""
    registry = registry_of()
    registry.enter(Caller("etl", 2), 0.0)
    assert registry.lapse(LEASE_S + 1) == [("etl", [])]
    with pytest.raises(ClientFencedError):
        registry.enter(Caller("etl", 1), LEASE_S + 2)


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
    """Names that come once and never again do not fill the memory."""
    monkeypatch.setattr(sessions, "FENCES_KEPT", 3)
    registry = registry_of()
    for number in range(6):
        registry.enter(Caller(f"client-{number}", 9), number * 100.0)
        registry.lapse(number * 100.0 + LEASE_S + 1)
    registry.enter(Caller("client-0", 1), 1_000.0)
    with pytest.raises(ClientFencedError):
        registry.enter(Caller("client-5", 1), 1_000.0)
