"""The simulation of the whole product finds bugs of service and client, each within a few seeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from actors import Future
from offsetmgr.client.core import Core
from offsetmgr.client.partitions import Partitions
from offsetmgr.manager import Factory
from offsetmgr.manager.offset_manager import Waiter
from offsetmgr.service.sessions import Client, Registry, Sorting
from offsetmgr.types import StopResult
from tests.sim.run import SERVICE_SEEDS
from tests.sim.test_planted_bugs import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

MOST_SEEDS = 150


def reported(likely: int = SERVICE_SEEDS[0]) -> str:
    return found(likely, SERVICE_SEEDS[:MOST_SEEDS])


def answered_early(
    factory: Factory, keys: Iterable[ManagerKey], timeout_s: float
) -> Future[dict[ManagerKey, StopResult]]:
    """Answer a flush before Kafka has anything."""
    del timeout_s
    handles = {key: factory.get(key) for key in keys}
    done: Future[dict[ManagerKey, StopResult]] = Future()
    done.set({k: StopResult(h.status().submitted) for k, h in handles.items() if h})
    return done


@pytest.mark.parametrize(
    ("where", "method", "wrong", "told", "likely"),
    [
        pytest.param(
            *(Partitions, "next_version", lambda _: 1, "; at last|was flushed; called", 9),
            id="versions",
        ),
        pytest.param(
            Registry, "check_fence", lambda *_: None, "fenced incarnation", 594, id="fence"
        ),
        pytest.param(
            Partitions,
            "_forgotten",
            lambda *_: None,
            "; at last|still waits for",
            439,
            id="nothing resent",
        ),
        pytest.param(Factory, "flush", answered_early, "is committed, and", 9, id="flush"),
        pytest.param(Waiter, "answer", lambda *_: None, "still waits for", 9, id="no answer"),
        pytest.param(
            Registry, "disown", lambda *_: True, "the service keeps them|; at last", 9, id="taken"
        ),
    ],
)
def test_a_method_that_does_not_do_its_work(
    monkeypatch: pytest.MonkeyPatch,
    where: type[object],
    method: str,
    wrong: object,
    told: str,
    likely: int,
) -> None:
    """Versions used again, a fence that lets in, a client that trusts a new service, and so on."""
    monkeypatch.setattr(where, method, wrong)
    assert re.search(told, reported(likely))


def test_late_requests_that_undo_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not look at the version of an offset is found."""
    sort = Registry.sort

    def newest(self: Registry, client: Client, group: str, given: Iterable[Any]) -> Sorting:
        return sort(self, client, group, [(where, None) for where, _ in given])

    monkeypatch.setattr(Registry, "sort", newest)
    fallen = "committed offset fell from|committed after a newer submit|was flushed; called"
    assert re.search(f"{fallen}|nothing went wrong, yet this was left", reported(204))


def test_submits_that_pile_up_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps each submit until the service is back, and none after that, is found."""
    submit, succeeded = Core.submit, Core.succeeded

    def keep(
        self: Core, values: Mapping[ManagerKey, OffsetAndMetadata], *, rewind: bool = False
    ) -> dict[ManagerKey, OffsetManagerError]:
        refused = submit(self, values, rewind=rewind)
        if self.link_error is not None:
            vars(self).setdefault("unsent", []).extend(values)
        return refused

    def send(self: Core) -> None:
        succeeded(self)
        vars(self).pop("unsent", None)

    monkeypatch.setattr(Core, "submit", keep)
    monkeypatch.setattr(Core, "succeeded", send)
    assert "entries in Core.unsent" in reported()


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
    assert "would wait" in reported()
