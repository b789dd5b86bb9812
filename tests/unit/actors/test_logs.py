"""Log lines of the runtime."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from actors import Future
from tests.unit.actors.conftest import Recorder
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    import pytest

    from actors import ActorSystem


class Raising(logging.Handler):
    """A handler of the application that fails at each line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        raise SystemExit(3)


def test_a_raising_log_handler_ends_no_thread(
    system: ActorSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool, the timers, the callbacks of futures and the failed actor all go on."""
    handler = Raising()
    monkeypatch.setattr(logging.getLogger("actors"), "handlers", [handler])
    failed = threading.Event()
    refs = [system.spawn(Recorder, [], name=f"r{number}") for number in range(8)]
    for ref in refs:  # more than there are threads
        ref.tell(ValueError("boom"))
        system.timers.call_after(0.0, lambda: 1 // 0)
        future: Future[int] = Future()
        future.add_done_callback(lambda _: 1 // 0)
        future.set(1)
    system.timers.call_after(0.0, failed.set)
    assert failed.wait(WAIT_S)
    assert [ref.ask("a", timeout=WAIT_S) for ref in refs] == [1] * len(refs)
    kinds = {line.split(" of a ")[-1].split(" at ")[0] for line in handler.lines}
    failed_actors = {f"actor /r{number} failed" for number in range(8)}
    assert kinds == {*failed_actors, "timer failed", "future failed"}
