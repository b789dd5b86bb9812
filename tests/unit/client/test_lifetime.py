"""Clients that are pickled, forked, forgotten, or overtaken by the end of the interpreter."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import OffsetClient, offsets
from offsetmgr.errors import ManagerStoppedError, OffsetsUncommittedError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from offsetmgr.workers import Question
from tests.fork import in_child
from tests.interpreters import THIS, run
from tests.unit.client.scripted import KEY, Fault
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr import FlushResult, OffsetManagerHandle
    from tests.unit.client.scripted import ScriptedService


@pytest.mark.parametrize("name", ["etl", None, "n" * 255], ids=["named", "unnamed", "long"])
def test_a_pickled_client_is_another(service: ScriptedService, name: str | None) -> None:
    """An unpickled client works, under a name of its own, and fences nobody."""
    client = OffsetClient(service.url, name)
    client.submit("g", {("orders", 3): 1}, sync=True)
    arrived = [pickle.loads(pickle.dumps(client)) for _ in range(2)]  # noqa: S301
    again = pickle.loads(pickle.dumps(arrived[0]))  # noqa: S301
    everybody = [client, *arrived, again, copy.copy(client)]
    assert len({each.name for each in everybody}) == 5
    assert len(again.name) <= 255
    for number, each in enumerate(everybody):
        each.submit("h", {("orders", number): 1}, sync=True)
    client.submit("g", {("orders", 3): 2}, sync=True)
    for each in everybody:
        assert not each.close().uncommitted


def test_a_forked_child_must_make_its_own_client(service: ScriptedService) -> None:
    """Neither the client nor its handles work there, whatever its parent was at; close does."""
    with OffsetClient(service.url, "etl") as client:
        handle = client.spawn("g", "orders", 3)
        handle.submit(5)
        with client.core.lock:  # as another thread of the parent may have it
            in_child(lambda: _use_in_child(client, handle))
        assert client.flush(timeout=WAIT_S).ok
        assert set(service.managers.values()) == {"etl"}


def _use_in_child(client: OffsetClient, handle: OffsetManagerHandle) -> None:
    for ask in (
        client.flush,
        client.stop_managers,
        handle.stop,
        handle.initial_offset,
        handle.errors,
        lambda: handle.submit(6),
        lambda: client.submit("g", {("orders", 3): 6}),
        lambda: client.committed("g"),
    ):
        with pytest.raises(ManagerStoppedError, match="make one in each process"):
            ask()
    client.close()


def test_a_close_beside_a_stop(service: ScriptedService, client: OffsetClient) -> None:
    """A close waits for what another thread stops, which may need the client's own thread."""
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: KEY in service.taken)
    answer = threading.Event()
    service.script("/v1/stop", Fault(act=False, cut=True, hold=answer))
    stopping = Question(lambda: client.stop_managers(timeout=600))
    service.wait_for(lambda: len(service.of("/v1/stop")) == 1)
    closing = Question(lambda: client.close(timeout=600))
    while not closing.wait() and not client.core.changed._waiters:  # type: ignore[attr-defined]
        pass  # until the close waits, or the test run's guard ends it
    service.restart()  # it has to be given the offset again
    answer.set()
    for call in (stopping, closing):
        assert call.answer.result(WAIT_S) == ({KEY: OffsetAndMetadata(5)}, {})


def test_a_close_beside_an_answered_stop(service: ScriptedService, client: OffsetClient) -> None:
    """A close ends, though the service no longer knows some of the managers that it waits for."""
    other = ManagerKey("h", "orders", 3)
    client.submit("g", {("orders", 3): 5})
    client.submit("h", {("orders", 3): 6})
    service.wait_for(lambda: {KEY, other} <= service.taken.keys())
    answers = [threading.Event(), threading.Event()]
    service.script("/v1/stop", *(Fault(hold=answer) for answer in answers))
    stopping = Question(lambda: client.stop_managers(timeout=1, group="g"))
    service.wait_for(lambda: KEY not in service.managers)
    closing = Question(lambda: client.close(timeout=600))
    service.wait_for(lambda: other not in service.managers)
    answers[0].set()
    stopping.answer.result(WAIT_S)
    answers[1].set()
    both = {KEY: OffsetAndMetadata(5), other: OffsetAndMetadata(6)}
    assert closing.answer.result(WAIT_S) == (both, {})
    assert not service.managers


def test_a_close_beside_an_interrupted_stop(
    service: ScriptedService, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later of two calls that stop a manager ends it, however the first one ends."""
    client.submit("g", {("orders", 3): 5})
    service.wait_for(lambda: KEY in service.taken)
    answer = threading.Event()
    service.script("/v1/stop", Fault(hold=answer))
    closed: list[FlushResult] = []
    closing = threading.Thread(target=lambda: closed.append(client.close(timeout=600)), daemon=True)
    ask = client.core.ask

    def interrupted(target: str, *more: Any) -> object:
        if target == "/v1/stop" and not closing.is_alive():
            closing.start()
            until(lambda: client.closed)
            raise KeyboardInterrupt
        return ask(target, *more)

    monkeypatch.setattr(client.core, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.stop_managers(timeout=600)
    answer.set()
    closing.join(WAIT_S)
    assert closed == [({KEY: OffsetAndMetadata(5)}, {})]


def test_a_sync_submit_beside_a_close(service: ScriptedService, client: OffsetClient) -> None:
    """One that the end of its client overtakes says so then, not at its own deadline."""
    answer = threading.Event()
    service.script("/v1/offsets", Fault(hold=answer))
    submitting = Question(lambda: client.submit("g", {("orders", 3): 5}, sync=True, timeout=600))
    service.wait_for(lambda: len(service.of("/v1/offsets")) == 1)
    client.close(timeout=0)
    failure = submitting.answer.exception(WAIT_S)
    answer.set()
    assert "client was closed" in str(failure)
    assert "g/orders/3" in str(failure)


@pytest.mark.parametrize("path", ["/v1/offsets", "/v1/flush", "/v1/initial-offsets"])
def test_a_close_ends_a_request_of_another_thread(
    service: ScriptedService, client: OffsetClient, path: str
) -> None:
    """Its caller does not wait for the answer of a service that hangs."""
    manager = client.spawn(*KEY)
    manager.submit(5)
    service.wait_for(lambda: KEY in service.taken)
    calls: dict[str, Callable[[], object]] = {
        "/v1/offsets": lambda: client.committed("g", timeout=600),
        "/v1/flush": lambda: client.flush(timeout=600).raise_for_uncommitted(),
        "/v1/initial-offsets": lambda: manager.initial_offset(timeout=600),
    }
    answer = threading.Event()
    service.script(path, Fault(act=False, hold=answer))
    asked = len(service.requests)
    asking = Question(calls[path])
    service.wait_for(lambda: path in {seen.path for seen in service.requests[asked:]})
    client.close(timeout=0)
    failure = asking.answer.exception(WAIT_S)
    answer.set()
    assert isinstance(failure, (ManagerStoppedError, OffsetsUncommittedError))
    assert "closed" in str(failure) or "stopped" in str(failure)


def test_the_interpreter_exits(service: ScriptedService) -> None:
    """A client that is open when the interpreter exits commits what it holds, without a word."""
    program = """
    import sys
    from offsetmgr import OffsetClient
    from offsetmgr.client import offsets
    offsets.AT_EXIT_S = 60.0  # however slow the machine is
    client = OffsetClient(sys.argv[1], "etl")
    client.submit("g", {("orders", 3): 5})
    """
    done = run(THIS, program, service.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert service.kafka == {KEY: OffsetAndMetadata(5)}
    assert not service.managers


def test_the_interpreter_exits_with_the_service_away(service: ScriptedService) -> None:
    """Clients together hold up the exit for a bounded time, and say what was left."""
    service.down()
    program = """
    import sys
    from offsetmgr import OffsetClient
    clients = [OffsetClient(sys.argv[1]) for _ in range(3)]
    for client in clients:
        client.submit("g", {("orders", 3): 5})
    """
    done = run(THIS, program, service.url)
    assert done.returncode == 0
    assert done.stderr.count("not committed: g/orders/3 at 5; reason: the service at ") == 3
    assert "Traceback" not in done.stderr


def test_the_share_of_each_at_exit(service: ScriptedService) -> None:
    """All open clients share the time that an exit may take."""
    granted: list[float] = []

    class Watched(OffsetClient):
        def close(self, *, timeout: float = 10.0) -> FlushResult:
            granted.append(timeout)
            return super().close(timeout=timeout)

    both = [Watched(service.url), Watched(service.url)]
    with OffsetClient(service.url):
        offsets.close_all()
    assert granted == [offsets.AT_EXIT_S / 3] * len(both)


def test_importing_needs_the_standard_library_alone() -> None:
    """The package and its client import without site-packages, and import no one else's."""
    program = """
        import sys
        import offsetmgr
        light = "http.client" not in sys.modules
        offsetmgr.OffsetClient
        names = {name.split(".")[0] for name in sys.modules}
        foreign = names - sys.stdlib_module_names - {"offsetmgr", "__main__"}
        print(light, sorted(name for name in foreign if not name.startswith("_sysconfig")))
    """
    done = run(THIS, program)
    assert (done.stdout, done.stderr) == ("True []\n", "")


def test_a_client_imports_nothing_after_it_is_made(service: ScriptedService) -> None:
    """The kind: a signal handler closes it in the middle of an import that its thread waits for.

    That close committed nothing: the name of the first host was encoded by a module of its own.
    """
    program = """
    import sys
    from offsetmgr import OffsetClient
    client = OffsetClient(sys.argv[1], "etl")
    before = set(sys.modules)
    handle = client.spawn("g", "orders", 3)
    handle.errors()
    handle.initial_offset(timeout=60)
    client.submit("g", {("orders", 3): 5}, sync=True)
    client.topics(["orders"])
    print(client.close(timeout=60).ok, set(sys.modules) - before)
    """
    done = run(THIS, program, service.url)
    assert (done.stdout, done.stderr) == ("True set()\n", "")
