"""Programs that interrupt LocalOffsets by signals, or end, on each release of Python."""

from __future__ import annotations

import pytest

from tests.interpreters import THIS, releases_with, run

EACH = pytest.mark.parametrize("release", releases_with("pykka", "structlog"))

MAKES = """
    import atexit, random, signal, sys, time
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
    manager = client.spawn("g", "orders", 3)
    newest, taken = 0, 0

    def handle(*_):
        global newest, taken
        taken += 1
        if taken % 2:
            client.flush(timeout=20)
        else:
            newest += 1
            submit[taken % 4 == 0](newest)
        if taken < 200:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))

    submit = manager.submit, lambda offset: client.submit("g", {{("orders", 3): offset}})
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while taken < 200:
        newest += 1
        offset = newest
        try:
            submit[offset % 2](offset)
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
    from offsetmgr.errors import OffsetTimeoutError

    def submitted(offset, *, sync):
        global last
        client.submit("g", {{("orders", 3): offset}}, sync=sync, timeout=60)
        last = offset

    for _ in range(40):
        client, coordinator = make()
        results, offset, last = [], 0, 0
        manager = client.spawn("g", "orders", 3)
        calls = [
            lambda: submitted(offset, sync=False),
            lambda: submitted(offset, sync=True),
            lambda: manager.submit(offset),
            lambda: client.flush(timeout=60),
            lambda: client.committed("g", timeout=60),
            lambda: client.spawn("g", "other", offset).stop(timeout=60),
        ]
        signal.signal(signal.SIGALRM, lambda *_: results.append(client.close(timeout=60)))
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.01))
        try:
            while True:
                offset += 1
                random.choice(calls)()
        except (ManagerStoppedError, OffsetTimeoutError):
            while not results:
                time.sleep(0.001)
        final = client.close(timeout=60)
        assert final.ok, final
        (interrupting,) = results
        # In the middle of a call the close waits until that returns.
        assert interrupting is final or not interrupting.ok, interrupting
        committed = coordinator.broker.committed("g").get(("orders", 3))
        assert committed.offset >= last if last else True, (committed, last, offset)
"""


@EACH
def test_a_signal_handler_closes_local_offsets(release: str) -> None:
    """At any moment of any call: nothing hangs, and the offset submitted last is committed."""
    done = run(release, CLOSES, packages=True)
    assert done.returncode == 0, done.stderr


RAISES = f"""{MAKES}
    import logging
    from offsetmgr.coordinator.memory import Refuse

    class Raises(logging.Handler):
        def handle(self, record):
            raise [ValueError, SystemExit, BaseException][len(record.msg) % 3]("of a log handler")

    logging.getLogger().addHandler(Raises())
    logging.getLogger().setLevel(logging.DEBUG)

    def watch(key, error):
        raise SystemExit("of a watcher")

    client, coordinator = make()
    client.watch_errors(watch)
    coordinator.inject("commit", Refuse(14))
    for offset in range(1, 6):
        client.submit("g", {{("orders", 3): offset}})
        assert client.flush(timeout=60).ok
    try:
        client.submit("g", {{("orders", 3): 2}}, sync=True)
    except OffsetRegressionError:
        pass
    assert client.close(timeout=60).ok
    assert at(coordinator) == [5], at(coordinator)
"""


def test_raising_log_handlers_and_watchers_stop_nothing() -> None:
    """Refused commits are tried again though every log call of the run raises."""
    done = run(THIS, RAISES, packages=True)
    assert (done.returncode, done.stderr) == (0, "")


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
