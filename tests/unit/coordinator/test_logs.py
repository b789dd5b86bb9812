"""Looks at topics by a coordinator whose client fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import Future, Timers
from actors.testing import ManualClock
from offsetmgr.coordinator.logs import TopicLooks
from offsetmgr.coordinator.memory import MemoryCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable


def raises_at_once(*_: object) -> Future[Any]:
    raise RuntimeError("no more threads")


def raises_later(*_: object) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(RuntimeError("no more threads"))
    return failed


def leaves_all_out(*_: object) -> Future[Any]:
    empty: Future[Any] = Future()
    empty.set({})
    return empty


@pytest.mark.parametrize("method", ["topic_logs", "topic_ids"])
@pytest.mark.parametrize("fails", [raises_at_once, raises_later, leaves_all_out])
def test_a_failing_client_is_an_answer_and_not_a_hang(
    method: str, fails: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is answered, however the client fails, and so is the next one."""
    memory, clock = MemoryCoordinator(), ManualClock()
    memory.broker.create_topic("t", 1)
    looks = TopicLooks(memory, clock, Timers(clock), 5.0)

    def ask() -> str:
        clock.advance(60.0)
        asked: Any = looks.ids(["t"], 0.0)
        if method == "topic_logs":
            asked = looks.ends("t", shared=False)
        assert asked.done()
        error = asked.exception()
        return str(asked.get()) if error is None else repr(error)

    answer = ask()
    with monkeypatch.context() as broken:
        broken.setattr(memory, method, fails)
        left_out = "KeyError" if method == "topic_logs" else "leaves it out"
        why = left_out if fails is leaves_all_out else "no more threads"
        assert why in ask()
    assert ask() == answer
