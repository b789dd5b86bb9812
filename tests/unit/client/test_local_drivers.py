"""Programs that interrupt LocalOffsets by signals, or end, on each release of Python."""

from __future__ import annotations

import pytest

from tests.interpreters import releases_with, run

EACH = pytest.mark.parametrize("release", releases_with("pykka", "structlog"))

MAKES = """
    import atexit, random, signal, sys
    from actors import ActorSystem
    from offsetmgr.client import offsets
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.memory import MemoryCoordinator
    from offsetmgr.errors import ManagerStoppedError, OffsetRegressionError
    from offsetmgr.local import LocalOffsets

    system = ActorSystem(name="timers")

    def make():
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        made = LocalOffsets.__new__(LocalOffsets)
        made._start(coordinator, "memory", "etl", CommitSettings(commit_interval_s=0.01))
        return made, coordinator

    def at(coordinator):
        return [value.offset for value in coordinator.broker.committed("g").values()]
"""

INTERRUPTS = f"""{MAKES}
    client, coordinator = make()
    newest, taken = 0, 0

    def handle(*_):
        global newest, taken
        taken += 1
        if taken % 2:
            client.flush(timeout=20)
        else:
            newest += 1
            client.submit("g", {{("orders", 3): newest}})
        if taken < 200:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while taken < 200:
        newest += 1
        offset = newest
        try:
            client.submit("g", {{("orders", 3): offset}})
        except OffsetRegressionError:
            pass  # a signal came before the call, and submitted a higher one
    result = client.close(timeout=20)
    assert result.ok, result
    assert at(coordinator) == [newest], (at(coordinator), newest)
"""


@EACH
def test_signal_handlers_submit_and_flush_in_a_hot_loop(release: str) -> None:
    """200 signals at random moments: nothing hangs, and the highest submitted is committed."""
    done = run(release, INTERRUPTS, packages=True)
    assert done.returncode == 0, done.stderr


CLOSES = f"""{MAKES}
    for _ in range(30):
        client, coordinator = make()
        results, offset, last = [], 0, 0
        signal.signal(signal.SIGALRM, lambda *_: results.append(client.close(timeout=60)))
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.01))
        try:
            while True:
                offset += 1
                client.submit("g", {{("orders", 3): offset}})
                last = offset
        except ManagerStoppedError:
            pass
        final = client.close(timeout=60)
        assert final.ok, final
        (interrupting,) = results
        # In the middle of a submit the close waits until that returns.
        assert interrupting is final or not interrupting.ok, interrupting
        assert at(coordinator) in ([last], [offset]) or not last, (at(coordinator), last, offset)
"""


@EACH
def test_a_signal_handler_closes_local_offsets(release: str) -> None:
    """At any moment of a hot loop: the offset that was submitted last is committed at once."""
    done = run(release, CLOSES, packages=True)
    assert done.returncode == 0, done.stderr


@EACH
def test_the_first_submit_before_the_interpreter_exits_is_committed(release: str) -> None:
    """The threads that commit are there before: later releases can start none by then."""
    program = f"""{MAKES}
    client, coordinator = make()
    atexit.unregister(offsets.close_all)
    atexit.register(lambda: print(at(coordinator)))
    atexit.register(offsets.close_all)
    client.submit("g", {{("orders", 3): 5}})
    """
    done = run(release, program, packages=True)
    assert (done.stdout, done.stderr) == ("[5]\n", "")
