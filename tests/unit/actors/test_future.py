"""Futures: the first set wins, callbacks, threads and event loops."""

from __future__ import annotations

import asyncio
import sys
import threading

import pykka
import pytest

from actors import Future
from tests.logs import capture_logs
from tests.together import together
from tests.waiting import WAIT_S


@pytest.fixture
def future() -> Future[int]:
    return Future()


def test_it_is_a_pykka_future(future: Future[int]) -> None:
    """Its derived futures work as well."""
    doubled = future.map(lambda value: value * 2)
    future.set(21)
    assert doubled.get() == 42
    assert pykka.get_all([future, doubled]) == [21, 42]


def test_get_raises_at_its_timeout(future: Future[int]) -> None:
    """A later ``get`` returns the value."""
    with pytest.raises(pykka.Timeout, match=r"0\.01"):
        future.get(timeout=0.01)
    future.set(1)
    assert future.get(timeout=0) == 1


def test_the_traceback_of_an_exception_does_not_grow(future: Future[int]) -> None:
    """However often a failed future is read."""
    future.set_exception(KeyError("x"))

    def depth() -> int:
        with pytest.raises(KeyError) as caught:
            future.get()
        return len(caught.traceback)

    first = depth()
    assert {depth() for _ in range(100)} == {first}


def test_callbacks_run_exactly_once(future: Future[int]) -> None:
    """When the value is set, or at once if it is set already."""
    seen: list[tuple[str, int]] = []
    future.add_done_callback(lambda f: seen.append(("before", f.get())))
    future.set(3)
    future.set(4)
    future.add_done_callback(lambda f: seen.append(("after", f.get())))
    assert seen == [("before", 3), ("after", 3)]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)], ids=["fails", "exits"])
def test_a_raising_callback_is_logged(future: Future[int], error: BaseException) -> None:
    """The next callback runs; in a thread of the runtime an exit concerns its callback alone."""
    seen: list[int] = []

    def fail(_: object) -> None:
        raise error

    future.add_done_callback(fail)
    future.add_done_callback(lambda f: seen.append(f.get()))
    with capture_logs() as logs:
        together(1, lambda _: future.set(1))
    assert seen == [1]
    assert ["of a future failed" in line["event"] for line in logs] == [True]


def test_an_exit_in_the_main_thread_is_raised(future: Future[int]) -> None:
    """It may be that of a signal's handler, in the middle of a callback."""
    future.add_done_callback(lambda _: sys.exit(3))
    with pytest.raises(SystemExit):
        future.set(1)


def test_an_event_loop_can_await_a_value_from_another_thread(future: Future[int]) -> None:

    async def main() -> int:
        threading.Thread(target=future.set, args=(9,), daemon=True).start()
        return await asyncio.wait_for(future, WAIT_S)

    assert asyncio.run(main()) == 9


def test_a_cancelled_await_leaves_no_callback(future: Future[int]) -> None:
    """Repeated waits with a timeout do not pile up callbacks."""

    async def main() -> None:
        for _ in range(5):
            task = asyncio.ensure_future(future)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert not future._callbacks
    future.set(1)
    assert future.get() == 1
