"""Sync submits over lost answers and restarts of the service."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from offsetmgr.client import blocking
from offsetmgr.errors import OffsetManagerError, OffsetRegressionError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import CUT, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.client import OffsetClient
    from offsetmgr.client.core import Core
    from tests.unit.client.scripted import ScriptedService

KEY = ManagerKey("g", "orders", 3)


@contextmanager
def alone(client: OffsetClient) -> Iterator[None]:
    """Callers alone send meanwhile; else it is luck whose request is the first, theirs or not."""
    with mock.patch.object(client._core.partitions, "take", return_value=None):
        yield


def syncing(client: OffsetClient, offset: int) -> tuple[threading.Thread, list[BaseException]]:
    """A thread for a sync submit, to be started, and what that raises."""
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            client.submit("g", {("orders", 3): offset}, sync=True, timeout=20)
        except OffsetManagerError as error:
            failures.append(error)

    return threading.Thread(target=wait), failures


def test_a_lost_answer_to_sync(service: ScriptedService, client: OffsetClient) -> None:
    """A sync submit whose answer was lost repeats its version and gets the answer."""
    service.script("/v1/offsets", CUT, CUT, CUT)
    client.submit("g", {("orders", 3): 5}, sync=True, timeout=20)
    sent = [each["version"] for seen in service.of("/v1/offsets") for each in seen.body["offsets"]]
    assert len(set(sent)) == 1


def test_sync_over_a_restart(service: ScriptedService, client: OffsetClient) -> None:
    """A sync submit waits out a restart of the service and commits with its successor."""
    service.down()
    waiting = threading.Thread(
        target=lambda: client.submit("g", {("orders", 3): 5}, sync=True, timeout=20)
    )
    waiting.start()
    service.restart()
    service.up()
    waiting.join()
    assert service.kafka == {KEY: OffsetAndMetadata(5)}


def test_a_late_sync_that_is_lower_than_what_stands(
    service: ScriptedService, client: OffsetClient
) -> None:
    """The service has dropped it for a newer one, which it refused: that is no success."""
    stands = {"topic": "orders", "partition": 3, "offset": 60, "metadata": "", "leader_epoch": None}
    answer = {"accepted": 1, "refused": [], "committed": [stands], "uncommitted": []}
    service.script("/v1/offsets", Fault(act=False, status=200, body=json.dumps(answer).encode()))
    with pytest.raises(OffsetRegressionError, match="offset 16 is lower than 60"):
        client.submit("g", {("orders", 3): 16}, sync=True, timeout=600)


def test_an_outdated_sync_over_a_restart(service: ScriptedService, client: OffsetClient) -> None:
    """What was sent before a newer offset is not given to a service that never heard of that."""
    client.submit("g", {("orders", 3): 5}, sync=True)
    answer = threading.Event()
    service.script("/v1/offsets", Fault(act=False, cut=True, hold=answer))
    waiting = threading.Thread(
        target=lambda: client.submit("g", {("orders", 3): 8}, sync=True, timeout=20)
    )
    with alone(client):
        waiting.start()
        service.wait_for(lambda: len(service.of("/v1/offsets")) == 2)
    client.submit("g", {("orders", 3): 6}, rewind=True)
    service.wait_for(lambda: service.taken.get(KEY, {}).get("offset") == 6)
    service.restart()
    answer.set()
    waiting.join()
    assert service.kafka == {KEY: OffsetAndMetadata(6)}
    outdated = [
        seen.headers.get("offsetmgr-instance")
        for seen in service.of("/v1/offsets")
        if seen.body["offsets"][0]["offset"] == 8
    ]
    assert len(outdated) > 1
    assert set(outdated) == {"instance-1"}


def test_a_late_refusal_of_what_was_passed_is_no_failure(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A newer offset was committed meanwhile, and its manager is gone."""
    client.submit("g", {("orders", 3): 5}, sync=True)
    answer = threading.Event()
    error = {"code": "manager_stopped", "message": "it was stopped by a newer request"}
    refused = {"topic": "orders", "partition": 3, "error": error}
    body = {"accepted": 0, "refused": [refused], "committed": [], "uncommitted": []}
    late = Fault(act=False, status=200, body=json.dumps(body).encode(), hold=answer)
    service.script("/v1/offsets", late)
    waiting, failures = syncing(client, 8)
    with alone(client):
        waiting.start()
        service.wait_for(lambda: len(service.of("/v1/offsets")) == 2)
        client.submit("g", {("orders", 3): 9}, sync=True)
    answer.set()
    waiting.join()
    assert failures == []


def test_a_sync_whose_manager_was_forgotten_believes_its_own_answer(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A stop without time to be answered forgets the manager; Kafka has the offset all the same."""
    answer = threading.Event()
    service.script("/v1/offsets", Fault(hold=answer))
    waiting, failures = syncing(client, 5)
    with alone(client):
        waiting.start()
        service.wait_for(lambda: len(service.of("/v1/offsets")) == 1)
        client.stop_managers(timeout=0.0)
    answer.set()
    waiting.join()
    assert failures == []
    assert service.kafka == {KEY: OffsetAndMetadata(5)}


def test_nobody_comes_between_a_submit_and_the_wait_for_it(
    client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stopped and forgotten in between would not be waited for."""
    real, free = blocking.Commit, []

    def commit(core: Core, *args: Any) -> blocking.Commit:
        def look() -> None:
            if core.lock.acquire(blocking=False):
                core.lock.release()
                free.append(1)

        other = threading.Thread(target=look)
        other.start()
        other.join()
        return real(core, *args)

    monkeypatch.setattr(blocking, "Commit", commit)
    client.submit("g", {("orders", 3): 5}, sync=True)
    assert free == []
