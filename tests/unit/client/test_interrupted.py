"""Ctrl-C, or a signal handler that closes the client, at any place of a call of the client."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import core
from offsetmgr.errors import ManagerExistsError, ManagerStoppedError
from offsetmgr.types import FlushResult, ManagerKey, OffsetAndMetadata, OffsetManagerHandle
from tests.interrupted import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAIT_S = 60.0
STEP = 7
"""Every place would take long; which ones are taken differs with each version of Python."""


def test_a_stop_that_is_interrupted_anywhere(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Its manager can be stopped and spawned again, and the offset before it is not lost.

    The kind: what a call notes before it is done, and nobody takes back.
    """
    for at in count(1, STEP):
        key = ManagerKey(f"g{at}", "orders", 3)
        client.spawn(*key).submit(5)
        was_interrupted = interrupted(lambda: client.stop_managers(group=key.group), at)  # noqa: B023
        assert client.stop_managers(group=key.group, timeout=WAIT_S).ok
        service.wait_for(lambda: service.kafka.get(key) == OffsetAndMetadata(5))  # noqa: B023
        manager = client.spawn(*key)
        manager.submit(6)
        assert manager.stop(timeout=WAIT_S).committed == OffsetAndMetadata(6)
        if not was_interrupted:
            return


def test_a_close_that_is_interrupted_anywhere(
    make_client: Callable[[str], OffsetClient],
) -> None:
    """The next close ends the client, and returns what is committed."""
    for at in count(1, 4 * STEP):
        client = make_client(f"etl-{at}")
        client.submit("g", {("orders", at): 5})
        was_interrupted = interrupted(client.close, at)
        result = client.close(timeout=WAIT_S)
        assert result == ({ManagerKey("g", "orders", at): OffsetAndMetadata(5)}, {})
        assert f"offsetmgr-etl-{at}" not in {each.name for each in threading.enumerate()}
        if not was_interrupted:
            return


def test_a_claim_that_is_interrupted_is_given_back(client: OffsetClient) -> None:
    """Nobody else could: the caller has no handle of it."""
    reached = 0
    for at in count(1, STEP):
        group = f"g{at}"
        was_interrupted = interrupted(lambda: client.claim(group, [("orders", 3)]), at)  # noqa: B023
        try:
            client.claim(group, [("orders", 3)], timeout=WAIT_S)
        except ManagerExistsError:  # it was interrupted behind its end
            reached += 1
        if not was_interrupted:
            break
    assert reached <= 2  # the last place of all, and one of the few before it


CALLS: dict[str, Callable[[OffsetClient], object]] = {
    "spawn": lambda client: client.spawn("g", "orders", 4),
    "claim": lambda client: client.claim("g", [("orders", 4)], timeout=600),
    "submit": lambda client: client.submit("g", {("orders", 4): 6}),
    "flush": lambda client: client.flush(timeout=600),
    "stop": lambda client: client.stop_managers(timeout=600),
    "read": lambda client: client.committed("g", timeout=600),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_a_close_interrupts_anywhere(
    service: ScriptedService,
    make_client: Callable[[str], OffsetClient],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """It returns, or raises that the client is closed, and leaves nothing behind.

    The kind: a step behind a check that a close in a signal handler has overtaken.
    """
    monkeypatch.setattr(core, "LOOK_S", 0.01)
    for at in count(1):
        client = make_client(f"etl-{at}")
        client.submit("g", {("orders", 3): at})
        ended: list[object] = []

        def call(client: OffsetClient = client, ended: list[object] = ended) -> None:
            try:
                ended.append(CALLS[name](client))
            except ManagerStoppedError as error:
                ended.append(error)

        was_interrupted = interrupted(call, at, client.close, within="/offsetmgr/client/")
        closed = client.close()
        assert closed.ok
        (end,) = ended
        if isinstance(end, OffsetManagerHandle):
            assert end.stop(timeout=0).error is None
        elif isinstance(end, FlushResult):
            assert end.ok
        elif name == "submit" and end is None:
            assert ManagerKey("g", "orders", 4) in closed.committed
        assert service.kafka[ManagerKey("g", "orders", 3)].offset == at
        assert not service.managers
        assert not client.core.session._idle
        if not was_interrupted:
            return
