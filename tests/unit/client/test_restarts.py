"""The service goes away, comes back, forgets, or loses a request in the middle."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient, core
from offsetmgr.errors import (
    ClientFencedError,
    ManagerExistsError,
    OffsetRegressionError,
    OffsetTimeoutError,
    ServiceUnavailableError,
)
from offsetmgr.types import OffsetAndMetadata, StopResult
from tests.unit.client.scripted import CUT, DROP, KEY, Fault, error_body
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.types import FlushResult
    from tests.unit.client.scripted import ScriptedService


def test_killed_after_a_rewind(service: ScriptedService, client: OffsetClient) -> None:
    """A rewind that was taken but not committed is still a rewind for the successor."""
    client.submit("g", {("orders", 3): 100}, sync=True)
    client.submit("g", {("orders", 3): 40}, rewind=True)
    service.commits = False
    assert client.flush(timeout=0.2).uncommitted
    with service.lock:
        service.restart()
        service.commits = True
    client.submit("g", {("orders", 3): 41}, sync=True, timeout=WAIT_S)
    assert service.kafka[KEY] == OffsetAndMetadata(41)


def test_a_committed_rewind_is_over(service: ScriptedService, client: OffsetClient) -> None:
    """After a rewind is committed, a successor is given plain offsets: nothing is undone twice."""
    client.submit("g", {("orders", 3): 100}, sync=True)
    client.submit("g", {("orders", 3): 40}, rewind=True, sync=True)
    service.restart()
    with service.lock:
        service.kafka[KEY] = OffsetAndMetadata(70)  # an operator's reset
    with pytest.raises(OffsetRegressionError):
        client.submit("g", {("orders", 3): 41}, sync=True, timeout=WAIT_S)


@pytest.mark.parametrize("fault", [CUT, DROP], ids=["cut", "drop"])
@pytest.mark.fault(16)
def test_a_lost_answer(service: ScriptedService, client: OffsetClient, fault: Fault) -> None:
    """A request whose answer was lost is repeated with its version, so it counts once."""
    client.committed("g")  # no request below is on a connection that was kept
    service.script("/v1/offsets", fault, fault)
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: len(service.of("/v1/offsets")) == 3)
    client.submit("g", {("orders", 3): 6})
    assert client.flush().committed == {KEY: OffsetAndMetadata(6)}
    sent = [each for seen in service.of("/v1/offsets") for each in seen.body["offsets"]]
    versions = [each["version"] for each in sent]
    assert versions[0] == versions[1] == versions[2] < versions[3]


def test_a_lost_answer_to_stop(service: ScriptedService, client: OffsetClient) -> None:
    """A stop whose answer was lost still learns what was committed."""
    service.script("/v1/stop", CUT, CUT, CUT)
    manager = client.spawn("g", "orders", 3)
    manager.submit(5)
    assert manager.stop(timeout=WAIT_S) == StopResult(OffsetAndMetadata(5))
    assert not service.managers


@pytest.mark.parametrize("ask", [OffsetClient.flush, OffsetClient.stop_managers])
def test_an_offset_of_a_lost_manager_is_sent_again(
    service: ScriptedService, client: OffsetClient, ask: Callable[..., FlushResult]
) -> None:
    """A flush or a stop of a manager that the same service has lost commits its offset."""
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: KEY in service.taken)
    client.committed("g")
    with service.lock:
        service.managers.clear()
        service.taken.clear()
    assert ask(client, timeout=WAIT_S) == ({KEY: OffsetAndMetadata(5)}, {})
    assert service.kafka == {KEY: OffsetAndMetadata(5)}


def test_stop_beside_a_draining_service_is_patient(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A stop that is refused is asked for again at a times, also where all is committed already."""
    client.submit("g", {("orders", 3): 5}, sync=True)
    service.script("/v1/stop", *[Fault(act=False, status=503, body=error_body("draining"))] * 1_000)
    assert client.stop_managers(timeout=3).uncommitted == {}
    assert 1 < len(service.of("/v1/stop")) < 50


def test_a_lapsed_lease(service: ScriptedService, client: OffsetClient) -> None:
    """After a silence longer than the lease, everything is registered again."""
    manager = client.spawn("g", "orders", 3)
    manager.initial_offset(timeout=WAIT_S)
    with service.lock:
        service.managers.clear()
    core = client.core
    with core.lock:
        core.heard_at = -1e9
        core.wake.notify()
    service.wait_for(lambda: KEY in service.managers)


def test_the_lease_of_the_service_is_kept(service: ScriptedService, client: OffsetClient) -> None:
    """Heartbeats follow the lease that the service names."""
    service.lease_s = 0.3
    client.spawn("g", "orders", 3)
    service.wait_for(lambda: len(service.of("/v1/heartbeat")) >= 4)


def test_not_found_means_forgotten(service: ScriptedService, client: OffsetClient) -> None:
    """A 404 makes the client register and send everything again."""
    idle = client.spawn("h", "orders", 0)
    idle.initial_offset(timeout=WAIT_S)
    with service.lock:
        service.managers.clear()
    service.script("/v1/offsets", Fault(act=False, status=404, body=error_body("not_found")))
    client.submit("g", {("orders", 3): 5})
    assert client.flush().committed == {KEY: OffsetAndMetadata(5)}
    service.wait_for(lambda: idle.key in service.managers)


def test_a_stranger_on_the_port_is_called_so(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Something else than the service on its port is named as the reason."""
    stranger = Fault(act=False, status=200, body=b"hi", headers=(("Offsetmgr-Instance", ""),))
    service.script("/v1/heartbeat", *[stranger] * 50)
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: len(service.of("/v1/heartbeat")) > 1)  # so one answer was read
    error = client.flush(timeout=0.3).uncommitted[KEY].error
    assert "is not offsetmgr" in str(error)


def test_a_stalled_service(service: ScriptedService, client: OffsetClient) -> None:
    """A service that accepts and never answers costs a caller no more than its timeout."""
    hold = threading.Event()
    service.script("/v1/heartbeat", Fault(hold=hold))
    service.script("/v1/offsets", Fault(hold=hold), Fault(hold=hold))
    with pytest.raises(OffsetTimeoutError, match=r"did not answer within 0.3 s"):
        client.submit("g", {("orders", 3): 5}, sync=True, timeout=0.3)
    hold.set()
    assert client.flush(timeout=WAIT_S).committed == {KEY: OffsetAndMetadata(5)}


def test_a_regression_is_reported_once(
    service: ScriptedService, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that starts below what is committed hears of it once, not with each submit.

    The log calls it over when the newest offset is committed, not when a higher one is.
    """
    service.kafka[KEY] = OffsetAndMetadata(100)
    manager = client.spawn("g", "orders", 3)
    for offset in range(5, 8):
        manager.submit(offset)
        client.submit("g", {("orders", 1): offset})
        assert isinstance(client.flush().uncommitted[KEY].error, OffsetRegressionError)
    assert "is over" not in caplog.text
    manager.submit(100)
    assert client.flush().committed[KEY] == OffsetAndMetadata(100)
    manager.stop()
    assert [type(error) for error in manager.errors()] == [OffsetRegressionError]


def test_somebody_elses_manager(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager of another client is told once, tried at a slow pace, and taken when it is free."""
    service.managers[KEY] = "rival"
    monkeypatch.setattr(core, "RETRY_S", 0.05)
    manager = client.spawn("g", "orders", 3)
    manager.submit(5)
    error = client.flush(timeout=600).uncommitted[KEY].error
    assert isinstance(error, ManagerExistsError)
    assert error.owner == "rival"
    tried = len(service.paths())
    service.wait_for(lambda: len(service.paths()) >= tried + 3)
    with service.lock:
        del service.managers[KEY]
    service.wait_for(lambda: KEY in service.taken)
    assert client.flush(timeout=WAIT_S).committed == {KEY: OffsetAndMetadata(5)}
    manager.stop()
    assert [type(each) for each in manager.errors()] == [ManagerExistsError]


def test_fenced(service: ScriptedService, make_client: Callable[[str], OffsetClient]) -> None:
    """A newer incarnation takes over; the older one is told, and can submit nothing more."""
    old, new = make_client("etl"), make_client("etl")
    manager = old.spawn("g", "orders", 3)
    manager.submit(5)
    old.flush()
    new.submit("g", {("orders", 3): 50}, sync=True)
    with suppress(ClientFencedError):  # it may hear of it by a heartbeat, before the submit
        manager.submit(6)
    assert isinstance(old.flush(timeout=600).uncommitted[KEY].error, ClientFencedError)
    with pytest.raises(ClientFencedError):
        manager.submit(7)
    with pytest.raises(ClientFencedError):
        old.submit("g", {("orders", 3): 7})
    assert isinstance(manager.errors().get(timeout=WAIT_S), ClientFencedError)
    with pytest.raises(ClientFencedError):
        old.submit("g", {("orders", 3): 8}, sync=True, timeout=600)
    with pytest.raises(ClientFencedError):
        old.spawn("g", "orders", 4).initial_offset(timeout=600)
    with pytest.raises(ClientFencedError):
        old.committed("g")
    incarnation = service.requests[0].incarnation
    before = sum(each.incarnation == incarnation for each in service.requests)
    result = manager.stop(timeout=600)
    assert (result.committed, result.uncommitted) == (OffsetAndMetadata(5), OffsetAndMetadata(6))
    assert isinstance(result.error, ClientFencedError)
    old.close()
    # The newer one's first heartbeat may come at any moment: only the older one must be silent.
    assert sum(each.incarnation == incarnation for each in service.requests) == before
    assert service.kafka[KEY] == OffsetAndMetadata(50)


def test_a_short_time_out_is_not_an_outage(
    service: ScriptedService, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller's own short time-out is not logged as a failure of the service."""
    hold = threading.Event()
    service.script("/v1/offsets", Fault(hold=hold))
    with pytest.raises(ServiceUnavailableError):
        client.committed("g", timeout=0.1)
    hold.set()
    assert not caplog.records
