"""Clients, their leases, what they own, and the order of their requests."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offsetmgr.errors import ClientFencedError, OverloadedError
from offsetmgr.service import sessions
from offsetmgr.service.sessions import NEVER, Caller, Registry
from offsetmgr.types import ManagerKey, TopicPartition

LEASE_S = 30.0
GROUP = "orders-etl"
PLACES = [TopicPartition("orders", number) for number in range(4)]


def registry_of(clients: int = 10, managers: int = 100) -> Registry:
    """An empty registry."""
    return Registry(lease_s=LEASE_S, clients=clients, managers=managers)


def key(place: TopicPartition) -> ManagerKey:
    """The place in the one group of these tests."""
    return ManagerKey(GROUP, *place)


class Owned:
    """What the model knows of one manager."""

    def __init__(self, client: str, version: int) -> None:
        self.client = client
        self.version = version


class RegistryMachine(RuleBasedStateMachine):
    """Any order of requests, take-overs, silences and clocks, against a plain model."""

    names = st.sampled_from(["a", "b"])
    incarnations = st.integers(0, 3)
    versions = st.dictionaries(st.sampled_from(PLACES), st.integers(0, 6), min_size=1)

    def __init__(self) -> None:
        super().__init__()
        self.registry = registry_of()
        self.now = 0.0
        self.newest: dict[str, int] = {}
        self.renewed: dict[str, float] = {}
        self.owned: dict[TopicPartition, Owned] = {}
        self.stopped: dict[tuple[str, TopicPartition], int] = {}
        self.under_way: list[tuple[sessions.Client, Caller]] = []

    def enter(self, caller: Caller) -> sessions.Client | None:
        """Enter both; None where the caller is fenced, which the model foresees."""
        fenced = caller.incarnation < self.newest.get(caller.name, 0)
        try:
            client = self.registry.enter(caller, self.now)
        except ClientFencedError:
            assert fenced
            return None
        assert not fenced
        if caller.incarnation > self.newest.get(caller.name, 0) or caller.name not in self.renewed:
            self.forget_versions(caller.name)
        self.newest[caller.name] = caller.incarnation
        self.renewed[caller.name] = self.now
        return client

    def forget_versions(self, name: str) -> None:
        """A newer incarnation counts from the start."""
        for owned in self.owned.values():
            if owned.client == name:
                owned.version = NEVER
        self.stopped = {k: v for k, v in self.stopped.items() if k[0] != name}

    @rule(name=names, incarnation=incarnations, versions=versions)
    def submit(self, name: str, incarnation: int, versions: dict[TopicPartition, int]) -> None:
        """Free ones become the client's, late ones are told apart, others' are named."""
        client = self.enter(Caller(name, incarnation))
        if client is None:
            return
        sorting = self.registry.sort(client, GROUP, versions)
        for place, version in versions.items():
            owned = self.owned.get(place)
            if owned is not None and owned.client == name:
                assert place in (sorting.mine if owned.version < version else sorting.late)
            elif self.stopped.get((name, place), NEVER) >= version:
                assert place in sorting.stopped
            elif owned is not None:
                assert sorting.foreign[place] == owned.client
            else:
                assert place in sorting.new
        newer = sorting.mine == list(versions)
        assert self.registry.are_newer(client, GROUP, versions) == newer
        taken = {place: versions[place] for place in (*sorting.new, *sorting.mine)}
        self.registry.own(client, GROUP, taken)
        for place, version in taken.items():
            self.owned[place] = Owned(name, version)
            self.stopped.pop((name, place), None)

    @rule(name=names, incarnation=incarnations, versions=versions)
    def stop(self, name: str, incarnation: int, versions: dict[TopicPartition, int]) -> None:
        """What a client stops is nobody's; what it touched since, and others', stays."""
        client = self.enter(Caller(name, incarnation))
        if client is None:
            return
        version = min(versions.values())
        stopped = self.registry.stop(client, map(key, versions), version)
        for place in versions:
            owned = self.owned.get(place)
            mine = owned is not None and owned.client == name
            goes_on = owned is not None and mine and owned.version > version
            assert (key(place) in stopped) == (mine and not goes_on)
            if not goes_on:
                self.stopped[name, place] = max(version, self.stopped.get((name, place), NEVER))
                if mine:
                    del self.owned[place]

    @rule(name=names, incarnation=incarnations)
    def begin(self, name: str, incarnation: int) -> None:
        """A request comes that will take its time."""
        caller = Caller(name, incarnation)
        client = self.enter(caller)
        if client is not None:
            client.begin()
            self.under_way.append((client, caller))

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        """One of them is over: the newest incarnation's lease begins anew."""
        client, caller = self.under_way.pop(which % len(self.under_way))
        client.end(caller.incarnation, self.now)
        if caller.incarnation == self.newest[caller.name] and caller.name in self.renewed:
            self.renewed[caller.name] = self.now

    def is_heard(self, name: str) -> bool:
        """True if the newest incarnation of that name waits for an answer."""
        callers = [caller for _, caller in self.under_way]
        return Caller(name, self.newest[name]) in callers

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @precondition(lambda self: self.renewed)
    @rule()
    def lapse(self) -> None:
        """Exactly those that were silent for longer than a lease go, with all they own."""
        silent = {name for name, at in self.renewed.items() if self.now - at > LEASE_S}
        gone = {name for name in silent if not self.is_heard(name)}
        lapsed = dict(self.registry.lapse(self.now))
        assert set(lapsed) == gone
        for name, keys in lapsed.items():
            mine = {place for place, owned in self.owned.items() if owned.client == name}
            assert {each.topic_partition for each in keys} == mine
            self.owned = {p: o for p, o in self.owned.items() if o.client != name}
            del self.renewed[name]

    @invariant()
    def owners_agree(self) -> None:
        """A manager has the one owner that the model has, and the count is right."""
        for place in PLACES:
            owned = self.owned.get(place)
            assert self.registry.owner(key(place)) == (None if owned is None else owned.client)
        assert self.registry.manager_count == len(self.owned)
        assert self.registry.client_count == len(self.renewed)
        held = [each for name in self.renewed for each in self.registry.held(name)]
        assert sorted(held) == sorted(key(place) for place in self.owned)


TestRegistry = RegistryMachine.TestCase


@pytest.mark.fault(8)
def test_a_newer_incarnation_takes_over_and_the_older_is_fenced() -> None:
    """A restarted driver gets its managers at once, and what it replaced can do nothing more."""
    registry = registry_of()
    old = registry.enter(Caller("etl", 1), 0.0)
    registry.own(old, GROUP, dict.fromkeys(PLACES, 50))
    new = registry.enter(Caller("etl", 2), 1.0)
    assert registry.sort(new, GROUP, dict.fromkeys(PLACES, 0)).mine == PLACES
    with pytest.raises(ClientFencedError, match="newer incarnation \\(2\\)"):
        registry.enter(Caller("etl", 1), 2.0)
    with pytest.raises(ClientFencedError):
        registry.renew(Caller("etl", 1), 2.0)


@pytest.mark.fault(8)
def test_a_fence_outlives_the_lease() -> None:
    """A zombie that wakes after its successor is gone too does not get the group back."""
    registry = registry_of()
    registry.enter(Caller("etl", 2), 0.0)
    assert registry.lapse(LEASE_S + 1) == [("etl", [])]
    with pytest.raises(ClientFencedError):
        registry.enter(Caller("etl", 1), LEASE_S + 2)


def test_reading_renews_a_lease() -> None:
    """A client that only looks is alive."""
    registry = registry_of()
    registry.enter(Caller("etl", 1), 0.0)
    registry.renew(Caller("etl", 1), 20.0)
    assert registry.lapse(LEASE_S + 1) == []


def test_a_request_under_way_keeps_the_lease() -> None:
    """However long it takes; the lease begins anew with its answer."""
    registry = registry_of()
    client = registry.enter(Caller("etl", 1), 0.0)
    client.begin()
    assert registry.lapse(10 * LEASE_S) == []
    client.end(1, 10 * LEASE_S)
    assert registry.lapse(11 * LEASE_S) == []
    assert registry.lapse(11 * LEASE_S + 1) == [("etl", [])]


def test_a_request_of_the_one_before_keeps_no_lease() -> None:
    """Who has taken over is alive by its own requests, and by those alone."""
    registry = registry_of()
    client = registry.enter(Caller("etl", 1), 0.0)
    client.begin()
    registry.enter(Caller("etl", 2), 1.0)
    client.begin()
    client.end(1, 20.0)
    assert registry.lapse(10 * LEASE_S) == []
    client.end(2, 10 * LEASE_S)
    client = registry.enter(Caller("etl", 2), 10 * LEASE_S)
    client.begin()
    registry.enter(Caller("etl", 3), 10 * LEASE_S)
    assert registry.lapse(11 * LEASE_S + 1) == [("etl", [])]


def test_too_many_clients_are_refused() -> None:
    """The limit is named, and those that are there stay."""
    registry = registry_of(clients=1)
    registry.enter(Caller("a"), 0.0)
    with pytest.raises(OverloadedError, match=r"limits\.clients"):
        registry.enter(Caller("b"), 0.0)
    registry.enter(Caller("a"), 1.0)


def test_too_many_managers_are_refused() -> None:
    """The limit is named."""
    registry = registry_of(managers=2)
    registry.check_room(2, 0)
    with pytest.raises(OverloadedError, match=r"limits\.managers"):
        registry.check_room(3, 0)
    with pytest.raises(OverloadedError, match="wait until the 1 that are being stopped"):
        registry.check_room(2, 1)


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
