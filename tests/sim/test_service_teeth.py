"""The simulation of the whole product finds bugs of service and client, each within a few seeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from actors import Future
from offsetmgr.client.core import Core
from offsetmgr.client.partitions import Partitions
from offsetmgr.manager import Factory
from offsetmgr.manager.partition_state import Waiter
from offsetmgr.service.core import OffsetService
from offsetmgr.service.sessions import Caller, Client, Registry
from offsetmgr.types import StopResult
from tests.sim.run import SERVICE_SEEDS, SeedError, run_seed, silence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.client.partitions import ClientPartition
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

MOST_SEEDS = 150


def found(since: int = 0) -> str:
    """What the simulation says of the planted bug; seeds before ``since`` only take time."""
    with silence():
        for number in range(since, since + MOST_SEEDS):
            try:
                run_seed(SERVICE_SEEDS[number])
            except SeedError as error:
                return str(error)
    pytest.fail(f"{MOST_SEEDS} seeds did not find the bug")


def test_late_requests_that_undo_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not look at the version of an offset is found."""
    versions = Client.versions

    def newest(self: Client, given: Mapping[Any, int | None]) -> dict[Any, int]:
        return versions(self, dict.fromkeys(given))

    monkeypatch.setattr(Client, "versions", newest)
    fallen = "committed offset fell from|committed after a newer submit|was flushed; called"
    assert re.search(fallen, found())


def test_versions_that_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose offsets all have the same version is found."""
    monkeypatch.setattr(Partitions, "next_version", lambda _self: 1)
    assert re.search("; at last|was flushed; called committed", found())


def test_fenced_clients_that_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not look at the incarnation of a client is found."""
    monkeypatch.setattr(Registry, "_check_fence", _let_in)
    assert "fenced incarnation" in found()


def _let_in(self: Registry, caller: Caller) -> None:
    del self, caller


def test_lapsed_leases_that_drop_what_is_dirty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that stops the managers of a dead client without committing is found."""
    sweep, stop_managers = OffsetService.sweep, Factory.stop_managers

    def drop(
        self: Factory, keys: Sequence[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        asked = list(keys)
        for handle in filter(None, map(self.get, asked)):
            submits = handle._state.submits
            submits.settle(0 if submits.newest is None else submits.newest.number)
        return stop_managers(self, asked, timeout_s)

    def hasty(self: OffsetService) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Factory, "stop_managers", drop)
            sweep(self)

    monkeypatch.setattr(OffsetService, "sweep", hasty)
    assert "; at last" in found(since=180)


def test_clients_that_trust_a_new_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not send again what a killed service had taken is found."""

    def trusting(self: Partitions, key: ManagerKey, held: ClientPartition) -> None:
        del self, key, held

    monkeypatch.setattr(Partitions, "_forgotten", trusting)
    assert "; at last" in found()


def test_acknowledgements_before_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that is answered before Kafka has anything is found."""

    def early(
        self: Factory, keys: Iterable[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        del timeout_s
        handles = {key: self.get(key) for key in keys}
        done: Future[dict[ManagerKey, StopResult]] = Future()
        done.set({k: StopResult(h.status().submitted) for k, h in handles.items() if h})
        return done

    monkeypatch.setattr(Factory, "flush", early)
    assert "is committed, and" in found()


def test_answers_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that lets whoever flushes or stops wait for the whole of their time is found."""
    monkeypatch.setattr(Waiter, "answer", lambda *_: None)
    assert "still waits for an answer" in found()


def test_stopped_managers_that_stay_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that never gives a partition free again is found."""
    monkeypatch.setattr(Registry, "disown", lambda *_: True)
    assert re.search("any more, and the service keeps them|; at last", found())


def test_submits_that_pile_up_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps each submit until the service is back, and none after that, is found."""
    submit, recovered = Core.submit, Core._recovered

    def keep(
        self: Core, values: Mapping[ManagerKey, OffsetAndMetadata], *, rewind: bool = False
    ) -> dict[ManagerKey, OffsetManagerError]:
        refused = submit(self, values, rewind=rewind)
        if self.link_error is not None:
            vars(self).setdefault("unsent", []).extend(values)
        return refused

    def send(self: Core) -> None:
        recovered(self)
        vars(self).pop("unsent", None)

    monkeypatch.setattr(Core, "submit", keep)
    monkeypatch.setattr(Core, "_recovered", send)
    assert "entries in Core.unsent" in found()


def test_a_submit_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose submit waits for its sender, and so for the service, is found."""
    submit = Core.submit

    def patient(
        self: Core, values: Mapping[ManagerKey, OffsetAndMetadata], *, rewind: bool = False
    ) -> dict[ManagerKey, OffsetManagerError]:
        refused = submit(self, values, rewind=rewind)
        with self.lock:
            self.changed.wait(0.1)
        return refused

    monkeypatch.setattr(Core, "submit", patient)
    assert "would wait" in found()
