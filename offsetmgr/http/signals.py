"""Signals that reach a server before it can act on them; standard library only."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class EarlySignal:
    """A handler that only remembers its signal, until ``take_over`` puts another in its place.

    A second signal to stop ends the process at once: the start may hang.
    """

    is_caught = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.is_caught and number != signal.SIGHUP:
            os._exit(128 + number)
        self.is_caught = True


def remember_signals() -> None:
    """Remember SIGTERM, SIGINT and SIGHUP from now on; for the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, EarlySignal())


def take_over(number: signal.Signals, act: Callable[[], object]) -> None:
    """Have the running loop call ``act`` at a signal, and now if that was remembered."""
    early = signal.getsignal(number)
    asyncio.get_running_loop().add_signal_handler(number, act)
    if isinstance(early, EarlySignal) and early.is_caught:
        act()
