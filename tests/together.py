"""Threads that do something at the same moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable


def together(threads: int, work: Callable[[int], object]) -> None:
    """Run ``work`` with each number in a thread of its own, and raise what any of them raises."""
    failures: list[BaseException] = []
    start = threading.Barrier(threads)

    def run(number: int) -> None:
        start.wait(WAIT_S)
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 -- raised below, in the test's own thread
            failures.append(error)

    running = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in running)
    for failure in failures:
        raise failure
