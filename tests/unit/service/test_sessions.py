"""Clients, their leases, what they own, and the order of their requests."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offsetmgr.errors import ClientFencedError, OverloadedError
from offsetmgr.service import sessions
from offsetmgr.service.sessions import ANSWERS_KEPT, Answers, Caller, Registry
from offsetmgr.types import ManagerKey, TopicPartition

LEASE_S = 30.0
GROUP = "orders-etl"
PLACES = [TopicPartition("orders", number) for number in range(4)]


def registry_of(clients: int = 10, managers: int = 100) -> Registry[str]:
    """An empty registry."""
    return Registry(lease_s=LEASE_S, clients=clients, managers=managers)


def key(place: TopicPartition) -> ManagerKey:
    """The place in the one group of these tests."""
    return ManagerKey(GROUP, *place)


class Owned:
    """What the model knows of one manager."""

    def __init__(self, client: str, sequence: int) -> None:
        self.client = client
        self.sequence = sequence


class RegistryMachine(RuleBasedStateMachine):
    """Any order of requests, take-overs, silences and clocks, against a plain model."""

    names = st.sampled_from(["a", "b"])
    incarnations = st.integers(0, 3)
    sequences = st.integers(0, 6)
    places = st.lists(st.sampled_from(PLACES), min_size=1, unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.registry = registry_of()
        self.now = 0.0
        self.newest: dict[str, int] = {}
        self.renewed: dict[str, float] = {}
        self.owned: dict[TopicPartition, Owned] = {}
        self.released: dict[tuple[str, TopicPartition], int] = {}
        self.under_way: list[tuple[sessions.Client[str], Caller]] = []

    def enter(self, caller: Caller) -> sessions.Client[str] | None:
        """Enter both; None where the caller is fenced, which the model foresees."""
        fenced = caller.incarnation < self.newest.get(caller.name, 0)
        try:
            client = self.registry.enter(caller, self.now)
        except ClientFencedError:
            assert fenced
            return None
        assert not fenced
        if caller.incarnation > self.newest.get(caller.name, 0) or caller.name not in self.renewed:
            self.forget_sequences(caller.name)
        self.newest[caller.name] = caller.incarnation
        self.renewed[caller.name] = self.now
        return client

    def forget_sequences(self, name: str) -> None:
        """A newer incarnation counts from the start."""
        for owned in self.owned.values():
            if owned.client == name:
                owned.sequence = -1
        self.released = {k: v for k, v in self.released.items() if k[0] != name}

    @rule(name=names, incarnation=incarnations, sequence=sequences, places=places)
    def submit(
        self, name: str, incarnation: int, sequence: int, places: list[TopicPartition]
    ) -> None:
        """Free ones become the client's, late ones are told apart, others' are named."""
        client = self.enter(Caller(name, incarnation, sequence))
        if client is None:
            return
        if self.registry.touch_known(client, GROUP, places, sequence):
            for place in places:
                known = self.owned[place]
                assert (known.client, known.sequence <= sequence) == (name, True)
                known.sequence = sequence
            return
        sorting = self.registry.sort(client, GROUP, places, sequence)
        for place in places:
            owned = self.owned.get(place)
            if owned is None:
                late = self.released.get((name, place), -1) > sequence
                assert place in (sorting.late if late else sorting.new)
            elif owned.client != name:
                assert sorting.foreign[place] == owned.client
            else:
                late = owned.sequence > sequence
                assert place in (sorting.late if late else sorting.mine)
        taken = [*sorting.new, *sorting.mine]
        self.registry.touch(client, GROUP, taken, sequence)
        for place in taken:
            self.owned[place] = Owned(name, sequence)
            self.released.pop((name, place), None)

    @rule(name=names, incarnation=incarnations, sequence=sequences, places=places)
    def release(
        self, name: str, incarnation: int, sequence: int, places: list[TopicPartition]
    ) -> None:
        """What a client gives back is nobody's, and nobody else's is touched."""
        client = self.enter(Caller(name, incarnation, sequence))
        if client is None:
            return
        self.registry.release(client, [key(place) for place in places], sequence)
        for place in places:
            owned = self.owned.get(place)
            if owned is not None and owned.client == name:
                del self.owned[place]
                self.released[name, place] = sequence

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
        """Whether the newest incarnation of that name waits for an answer."""
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
    old = registry.enter(Caller("etl", 1, 50), 0.0)
    registry.touch(old, GROUP, PLACES, 50)
    new = registry.enter(Caller("etl", 2, 0), 1.0)
    assert registry.sort(new, GROUP, PLACES, 0).mine == PLACES
    with pytest.raises(ClientFencedError, match="newer incarnation \\(2\\)"):
        registry.enter(Caller("etl", 1, 51), 2.0)
    with pytest.raises(ClientFencedError):
        registry.renew(Caller("etl", 1), 2.0)


def test_what_a_client_holds_is_touched_in_one_go() -> None:
    """The steady state: the newest request for partitions that are all the client's own."""
    registry = registry_of()
    client = registry.enter(Caller("etl", 0, 1), 0.0)
    registry.touch(client, GROUP, PLACES[:2], 1)
    registry.enter(Caller("etl", 0, 2), 0.0)
    assert not registry.touch_known(client, GROUP, PLACES, 2)
    assert registry.touch_known(client, GROUP, PLACES[:2], 2)
    assert registry.sort(client, GROUP, PLACES[:2], 1).late == PLACES[:2]


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


def test_without_a_sequence_a_request_is_the_newest() -> None:
    """Curl needs no sequence; what it sends stands above what was sent before."""
    registry = registry_of()
    client = registry.enter(Caller("etl", 0, 7), 0.0)
    registry.touch(client, GROUP, PLACES, 7)
    client = registry.enter(Caller("etl"), 1.0)
    assert registry.sort(client, GROUP, PLACES, client.highest).mine == PLACES


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


def test_answers_are_bounded_by_number() -> None:
    """The newest answers are kept, whatever order they come in."""
    answers: Answers[str] = Answers()
    for sequence in [*range(0, 40, 2), *range(1, 40, 2)]:
        answers.put(sequence, f"answer {sequence}")
    assert len(answers) == ANSWERS_KEPT
    assert answers.get(39) == "answer 39"
    assert answers.get(39 - ANSWERS_KEPT) is None


def test_answers_are_bounded_by_weight() -> None:
    """Heavy answers push older ones out, never the newest itself."""
    answers: Answers[str] = Answers()
    for sequence in range(4):
        answers.put(sequence, "heavy", sessions.ANSWER_ENTRIES_KEPT)
    assert [each for each in range(4) if answers.get(each)] == [2, 3]


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
