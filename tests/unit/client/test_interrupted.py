"""Ctrl-C, or a signal handler that closes the client, at any place of a call of the client."""

from __future__ import annotations

import threading
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import client as calls
from offsetmgr.client import core
from offsetmgr.errors import ManagerExistsError, ManagerStoppedError
from offsetmgr.types import FlushResult, ManagerKey, OffsetAndMetadata, OffsetManagerHandle
from tests.interrupted import interrupted
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STEP = 7
"""Every place would take long; which ones are taken differs with each version of Python."""


def test_a_stop_that_is_interrupted_anywhere(
    service: ScriptedService, client: OffsetClient
) -> None:
    """Its manager can be stopped and spawned again, and the offset before it is not lost.

    The kind: what a call notes before it is done, and nobody takes back.
    """
    for at in count(1, 2 * STEP):
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
        until(lambda: f"offsetmgr-etl-{at}" not in {one.name for one in threading.enumerate()})  # noqa: B023
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


CALLS: dict[str, Callable[[OffsetClient, OffsetManagerHandle], object]] = {
    "spawn": lambda client, _: client.spawn("g", "orders", 4),
    "claim": lambda client, _: client.claim("g", [("orders", 4)], timeout=600),
    "submit": lambda client, _: client.submit("g", {("orders", 4): 6}),
    "flush": lambda client, _: client.flush(timeout=600),
    "stop": lambda client, _: client.stop_managers(timeout=600),
    "stop of one": lambda _, manager: manager.stop(timeout=600),
    "read": lambda client, _: client.committed("g", timeout=600),
    "close": lambda client, _: client.close(timeout=600),
}
CROSSED = [(name, "close", 1) for name in ("spawn", "claim", "submit")]
CROSSED += [(name, "close", STEP) for name in ("flush", "stop", "read")]
CROSSED += [("submit", "stop", 1), ("close", "stop of one", STEP), ("close", "flush", STEP)]


@pytest.mark.parametrize(("name", "handler", "step"), CROSSED)
def test_a_call_that_a_signal_handler_with_another_interrupts_anywhere(
    service: ScriptedService,
    make_client: Callable[[str], OffsetClient],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    handler: str,
    step: int,
) -> None:
    """Neither waits for the other, and what they return is true.

    The kind: a step behind a check that a signal handler has overtaken.
    """
    monkeypatch.setattr(core, "LOOK_S", 0.01)
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.001)
    old, new = (ManagerKey("g", "orders", partition) for partition in (3, 4))
    for at in count(1, step):
        client = make_client(f"etl-{at}")
        manager = client.spawn(*old)
        manager.submit(at)
        service.kafka.pop(new, None)
        ended: list[object] = []

        def call(*given: Any, ended: list[object] = ended) -> None:
            try:
                ended.append(CALLS[name](*given))
            except ManagerStoppedError as error:
                ended.append(error)

        crossing, handle = (partial(do, client, manager) for do in (call, CALLS[handler]))
        was_interrupted = interrupted(crossing, at, handle, within="/offsetmgr/client/")
        assert client.close().ok
        assert service.kafka[old].offset == at
        (end,) = ended
        if isinstance(end, OffsetManagerHandle):
            assert end.stop(timeout=0).error is None
        elif isinstance(end, FlushResult):
            assert end.ok
        elif name == "submit" and end is None:
            assert new in service.kafka
        assert not service.managers
        assert not client.core.session._idle
        if not was_interrupted:
            return
