"""Signals that reach the service before it can act on them; standard library only."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class EarlySignal:
    """A handler that only remembers its signal, until the service puts its own in its place.

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
