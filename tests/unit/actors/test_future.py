"""The future: first set wins, callbacks, threads and event loops."""

from __future__ import annotations

import asyncio
import threading

import pykka
import pytest

from actors import Future
from tests.logs import capture_logs


@pytest.fixture
def future() -> Future[int]:
    return Future()


def test_it_is_a_pykka_future(future: Future[int]) -> None:
    """Whatever takes a pykka future takes this one, its derived futures included."""
    doubled = future.map(lambda value: value * 2)
    future.set(21)
    assert doubled.get() == 42
    assert pykka.get_all([future, doubled]) == [21, 42]


def test_the_first_set_wins(future: Future[int]) -> None:
    """An answer and a deadline may race: the second to come is ignored, not an error."""
    future.set(1)
    future.set(2)
    future.set_exception(ValueError())
    assert future.get() == 1
    assert future.exception() is None


def test_get_gives_up_at_its_timeout(future: Future[int]) -> None:
    """A wait with a limit ends with pykka's Timeout, and the future stays usable."""
    with pytest.raises(pykka.Timeout, match=r"0\.01"):
        future.get(timeout=0.01)
    future.set(1)
    assert future.get(timeout=0) == 1


def test_an_exception_is_raised_by_each_get_without_growing(future: Future[int]) -> None:
    """Reading a failed future a hundred times leaves its traceback as long as reading it once."""
    future.set_exception(KeyError("x"))

    def depth() -> int:
        with pytest.raises(KeyError) as caught:
            future.get()
        return len(caught.traceback)

    first = depth()
    assert {depth() for _ in range(100)} == {first}


def test_callbacks_run_once_whether_added_before_or_after(future: Future[int]) -> None:
    """A callback gets the future exactly once: at the set, or at once when it is set already."""
    seen: list[tuple[str, int]] = []
    future.add_done_callback(lambda f: seen.append(("before", f.get())))
    future.set(3)
    future.set(4)
    future.add_done_callback(lambda f: seen.append(("after", f.get())))
    assert seen == [("before", 3), ("after", 3)]


def test_a_failing_callback_harms_nobody(future: Future[int]) -> None:
    """An exception of a callback is logged; the set succeeds and the next callback runs."""
    seen: list[int] = []
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(lambda f: seen.append(f.get()))
    with capture_logs() as logs:
        future.set(1)
    assert seen == [1]
    assert ["of a future failed" in line["event"] for line in logs] == [True]


def test_await_takes_the_value_from_another_thread(future: Future[int]) -> None:
    """An event loop can await what a thread sets."""

    async def main() -> int:
        threading.Thread(target=future.set, args=(9,), daemon=True).start()
        return await asyncio.wait_for(future, 10)

    assert asyncio.run(main()) == 9


def test_a_cancelled_await_leaves_no_trace(future: Future[int]) -> None:
    """Awaiting with a limit again and again piles up no callbacks, and the value still comes."""

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
