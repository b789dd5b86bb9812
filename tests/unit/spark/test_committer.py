"""From snapshots to a group, through the real client and the real service in memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.spark import inbox
from offsetmgr.spark.committer import Committer, Notices
from offsetmgr.spark.groups import OneGroup
from offsetmgr.spark.inbox import Run
from offsetmgr.spark.progress import Snapshot, SourceOffsets
from offsetmgr.types import TopicPartition
from tests.service.support import WAIT_S, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.support import Running

PLACE = TopicPartition("orders", 0)


@pytest.fixture
def service() -> Iterator[Running]:
    """The real service around a coordinator in memory."""
    with running() as here:
        yield here


@pytest.fixture
def client(service: Running) -> Iterator[OffsetClient]:
    """A client of it."""
    with OffsetClient(service.address, name="driver") as made:
        yield made


@pytest.fixture
def committer(client: OffsetClient) -> Iterator[Committer]:
    """A committer for group etl, closed in the end."""
    made = Committer(client, OneGroup("etl"), Notices())
    made.start()
    yield made
    assert made.close(time.monotonic() + WAIT_S)


def snapshot(offset: int, run: str = "r1", batch: int = 0, second: int = 0) -> Snapshot:
    """A query of one partition."""
    sources = (SourceOffsets("KafkaV2[...]", {PLACE: offset}),)
    return Snapshot("q", run, "orders", f"2026-01-01T00:00:0{second}.000Z", batch, sources, {})


def submit(committer: Committer, what: Snapshot) -> None:
    """Submit a snapshot and wait until it is handed over."""
    assert committer.wait(committer.submit(what), time.monotonic() + WAIT_S)


def at(client: OffsetClient) -> int:
    """Where the group stands."""
    return client.committed("etl")[PLACE].offset


def test_snapshots_reach_the_group(committer: Committer, client: OffsetClient) -> None:
    """What is submitted is committed as it is."""
    submit(committer, snapshot(5))
    submit(committer, snapshot(9, batch=1))
    assert client.flush(WAIT_S).uncommitted == {}
    assert at(client) == 9
    assert committer.counts.submitted == 2


def test_a_new_run_takes_back_what_somebody_committed(
    committer: Committer, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that starts behind its group goes back, counted and told with both offsets."""
    client.submit("etl", {PLACE: 500}, sync=True, timeout=WAIT_S)
    client.stop_managers(WAIT_S)
    submit(committer, snapshot(5))
    assert client.flush(WAIT_S).uncommitted == {}
    assert at(client) == 5
    assert committer.counts.rewinds == 1
    assert "etl/orders/0 from 500 to 5" in caplog.text


def test_going_back_within_a_run_is_refused(
    committer: Committer, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A lower offset of the same run is not committed, but counted and told."""
    submit(committer, snapshot(9))
    submit(committer, snapshot(5, batch=1))
    client.flush(WAIT_S)
    assert at(client) == 9
    assert committer.counts.refused == 1
    assert "etl/orders/0 at 9, not 5" in caplog.text


def test_the_end_of_a_run_releases_its_managers(
    service: Running, committer: Committer, client: OffsetClient
) -> None:
    """What was read last is committed, and nothing is kept alive for a query that is gone."""
    submit(committer, snapshot(9))
    assert committer.wait(committer.end(Run("q", "r1")), time.monotonic() + WAIT_S)
    assert at(client) == 9
    with service.http() as http:
        assert http.get("/v1/managers").json()["managers"] == []


def test_a_silent_run_is_asked(
    committer: Committer, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it can say how far it is; one that cannot be asked any more holds up nobody."""
    monkeypatch.setattr(inbox, "ASK_S", 0.01)
    answers = [snapshot(9), None, None]
    said = threading.Event()
    failures = []

    def gone() -> Snapshot:
        failures.append("the session is stopped")
        raise ConnectionError(failures[-1])

    def ask() -> Snapshot | None:
        answer = answers.pop()
        if answer is not None:
            committer.heard(Run("q", "r1"))
            said.set()
        return answer

    committer.expect(Run("p", "r1"), gone)
    committer.expect(Run("q", "r1"), ask)
    assert said.wait(WAIT_S)
    # What was said is handed over before what comes after it.
    submit(committer, Snapshot("another", "r1", None, "", 0, (), {}))
    assert client.flush(WAIT_S).uncommitted == {}
    assert at(client) == 9
    assert len(failures) == 1


def test_a_run_that_ends_in_silence_is_asked(
    service: Running, committer: Committer, client: OffsetClient
) -> None:
    """What it says is committed, and its managers are released after that."""
    committer.expect(Run("q", "r1"), lambda: snapshot(9))
    assert committer.wait(committer.end(Run("q", "r1")), time.monotonic() + WAIT_S)
    assert at(client) == 9
    with service.http() as http:
        assert http.get("/v1/managers").json()["managers"] == []


def test_a_restarted_query_goes_on(committer: Committer, client: OffsetClient) -> None:
    """After its managers were released, the next run of a query has them again."""
    submit(committer, snapshot(9))
    committer.end(Run("q", "r1"))
    submit(committer, snapshot(12, run="r2", second=1))
    assert client.flush(WAIT_S).uncommitted == {}
    assert at(client) == 12


def test_a_closed_client_is_told_once(
    committer: Committer, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the client takes nothing more, that is told once and counted each time."""
    submit(committer, snapshot(1))
    client.close()
    submit(committer, snapshot(2, batch=1))
    submit(committer, snapshot(3, batch=2))
    assert committer.counts.refused == 2
    assert len([each for each in caplog.messages if each.startswith("not committed")]) == 1
