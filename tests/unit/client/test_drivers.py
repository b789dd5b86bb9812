"""Programs of users that interrupt clients by signals on each release, or break their logging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.types import OffsetAndMetadata
from tests.interpreters import INTERPRETERS, THIS, releases_with, run
from tests.unit.client.scripted import CUT, DROP, KEY

if TYPE_CHECKING:
    from tests.unit.client.scripted import ScriptedService

LOCAL_RELEASES = releases_with("pykka", "structlog")
EACH = pytest.mark.parametrize("release", sorted(INTERPRETERS))
EACH_LOCAL = pytest.mark.parametrize("release", LOCAL_RELEASES)
EACH_WAY = pytest.mark.parametrize(
    ("way", "release"),
    [("service", release) for release in sorted(INTERPRETERS)]
    + [("process", release) for release in LOCAL_RELEASES],
)

SERVICE = """
    import atexit, random, signal, sys, threading, time
    from offsetmgr import OffsetClient
    from offsetmgr.errors import ManagerStoppedError, OffsetRegressionError, OffsetTimeoutError

    def make():
        return OffsetClient(sys.argv[1], "etl"), None
"""

PROCESS = """
    import atexit, random, signal, sys, time
    from actors import ActorSystem
    from offsetmgr.client import offsets
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.memory import MemoryCoordinator, Refuse
    from offsetmgr.errors import ManagerStoppedError, OffsetRegressionError, OffsetTimeoutError
    from offsetmgr.local import LocalOffsets

    system = ActorSystem(name="timers")

    def make():
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        made = LocalOffsets.__new__(LocalOffsets)
        made._use(coordinator, "kafka://", "etl", CommitSettings(commit_interval_s=0.01))
        return made, coordinator

    def at(coordinator):
        return [value.offset for value in coordinator.broker.committed("g").values()]
"""

MAKES = {"service": SERVICE, "process": PROCESS}

RAISES = """
    import logging

    class Raises(logging.Handler):
        def handle(self, record):
            raise [ValueError, SystemExit, BaseException][len(record.msg) % 3]("of a log handler")

    logging.getLogger().addHandler(Raises())
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger("offsetmgr.client").addFilter(lambda record: 1 / 0 if lines else True)
    lines = []

    def watch(key, error):
        lines.append(error)
        raise SystemExit("of a watcher")

    client, coordinator = make()
    client.watch_errors(watch)
    if coordinator is not None:
        coordinator.inject("commit", Refuse(14))
    handle = client.spawn("g", "orders", 3)
    for offset in range(1, 6):
        handle.submit(offset)
        assert client.flush(timeout=60).ok
    try:
        client.submit("g", {("orders", 3): 2}, sync=True)
    except OffsetRegressionError:
        pass
    result = client.close(timeout=60)
    assert result.ok
    (committed,) = result.committed.values()
    assert committed.offset == 5
"""


@pytest.mark.parametrize("way", MAKES)
def test_raising_log_handlers_and_watchers_stop_nothing(service: ScriptedService, way: str) -> None:
    """Offsets are sent, retried and flushed though every log call of the run raises."""
    service.script("/v1/offsets", DROP, CUT)
    service.script("/v1/heartbeat", DROP)
    done = run(THIS, MAKES[way] + RAISES, service.url, packages=way == "process")
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTS = """
    client, coordinator = make()
    manager = client.spawn("g", "orders", 3)
    newest, taken = 0, 0

    def handle(*_):
        global newest, taken
        taken += 1
        if taken % 2:
            client.flush(timeout=60)
        else:
            newest += 1
            submit[taken % 4 == 0](newest)
        if taken < 60:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))

    submit = manager.submit, lambda offset: client.submit("g", {("orders", 3): offset})
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while taken < 60:
        newest += 1
        offset = newest
        try:
            submit[offset % 2](offset)
        except OffsetRegressionError:
            pass  # a signal came before the call, and submitted a higher one
    result = client.close(timeout=60)
    assert result.ok, result
    (committed,) = result.committed.values()
    assert committed.offset == newest, (committed, newest)
    assert coordinator is None or at(coordinator) == [newest], (at(coordinator), newest)
    print(committed.offset)
"""


@EACH_WAY
def test_signal_handlers_submit_and_flush_in_a_hot_loop(
    service: ScriptedService, way: str, release: str
) -> None:
    """60 signals at random moments: nothing hangs, and the highest submitted is committed."""
    program = MAKES[way] + INTERRUPTS
    done = run(release, program, service.url, packages=way == "process")
    assert done.returncode == 0, done.stderr
    if way == "service":
        assert service.kafka == {KEY: OffsetAndMetadata(int(done.stdout))}


CLOSES = """
    def submitted(offset, *, sync):
        global last
        client.submit(group, {("orders", 3): offset}, sync=sync, timeout=60)
        last = offset

    for number in range(12):
        client, coordinator = make()
        group, results, offset, last = f"g{number}", [], 0, 0
        manager = client.spawn(group, "orders", 3)
        calls = [
            lambda: submitted(offset, sync=False),
            lambda: submitted(offset, sync=True),
            lambda: manager.submit(offset),
            lambda: client.flush(timeout=60),
            lambda: client.committed(group, timeout=60),
            lambda: client.spawn(group, "other", offset).stop(timeout=60),
        ]
        signal.signal(signal.SIGALRM, lambda *_: results.append(client.close(timeout=60)))
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.01))
        try:
            # Of a client also in the middle of a close, or before it.
            while coordinator is not None or number % 3 or not offset:
                offset += 1
                random.choice(calls)()
        except (ManagerStoppedError, OffsetTimeoutError):
            pass
        final = client.close(timeout=60)
        assert final.ok, final
        while not results:
            time.sleep(0.001)
        (interrupting,) = results
        # In the middle of a call in process the close waits until that returns.
        waits = coordinator is not None and not interrupting.ok
        assert interrupting is final or waits, interrupting
        committed = final.committed.get((group, "orders", 3))
        assert not last or committed.offset >= last, (committed, last, offset)
"""


@EACH_WAY
def test_a_signal_handler_closes_the_client(
    service: ScriptedService, way: str, release: str
) -> None:
    """At any moment of any call: nothing hangs, and the offset submitted last is committed."""
    done = run(release, MAKES[way] + CLOSES, service.url, packages=way == "process")
    assert done.returncode == 0, done.stderr


@EACH
def test_a_submit_that_comes_too_late_for_a_thread_is_reported(
    service: ScriptedService, release: str
) -> None:
    """The first submit at the interpreter's exit is sent, or the log says why it cannot be."""
    program = """
    import atexit, sys
    from offsetmgr import OffsetClient
    from offsetmgr.client import offsets
    offsets.AT_EXIT_S = 60.0  # however slow the machine is
    client = OffsetClient(sys.argv[1], "etl")
    atexit.register(lambda: client.submit("g", {("orders", 3): 5}))
    """
    done = run(release, program, service.url)
    assert done.returncode == 0
    if service.kafka:
        assert (service.kafka, done.stderr) == ({KEY: OffsetAndMetadata(5)}, "")
    else:
        assert "not committed: g/orders/3 at 5; reason: cannot start a thread" in done.stderr
        assert "service" not in done.stderr.replace("OffsetClient('http", "")


WITHOUT_THREADS = """
    import sys, threading
    from offsetmgr import OffsetClient

    threading.stack_size(2**46)  # no thread can have so much
    client = OffsetClient(sys.argv[1], "etl")
    client.watch_errors(lambda key, error: None)
    client.submit("g", {("orders", 3): 5})
    left = client.flush(timeout=0.1).uncommitted
    assert "cannot start a thread" in str(left), left
    threading.stack_size(0)
    assert client.flush(timeout=60).ok
    names = {thread.name for thread in threading.enumerate()}
    assert {"offsetmgr-etl", "offsetmgr-events-etl"} <= names, names
    assert client.close(timeout=60).ok
"""


def test_threads_are_started_once_there_is_room(service: ScriptedService) -> None:
    """A flush tries to start the sender again, and the reader of events."""
    done = run(THIS, WITHOUT_THREADS, service.url)
    assert done.returncode == 0, done.stderr
    assert service.kafka == {KEY: OffsetAndMetadata(5)}


@EACH_LOCAL
def test_the_first_submit_before_the_interpreter_exits_is_committed(release: str) -> None:
    """The threads that commit are there before: later releases can start none by then."""
    program = f"""{PROCESS}
    client, coordinator = make()
    offsets.AT_EXIT_S = 60.0  # however slow the machine is
    atexit.unregister(offsets.close_all)
    atexit.register(lambda: print(at(coordinator)))
    atexit.register(offsets.close_all)
    client.submit("g", {{("orders", 3): 5}})
    """
    done = run(release, program, packages=True)
    assert (done.stdout, done.stderr) == ("[5]\n", "")
