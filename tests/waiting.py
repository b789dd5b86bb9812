"""Waits of the tests for what comes by itself; they leave the processors to the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 120.0
"""A guard against what never comes, not a measure."""

_POLL_S = 0.05


def until(look: Callable[[], Any], poll_s: float = _POLL_S) -> Any:
    """Return the first answer that is true, or not empty; a costly look is for a longer pause."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"not so after {WAIT_S:.0f} s"
        time.sleep(poll_s)
    return found


def eventually(found: Callable[[], object], expected: object) -> None:
    """Wait until ``found()`` is what is expected; fails with what it is instead."""
    deadline = time.monotonic() + WAIT_S
    while (last := found()) != expected:
        assert time.monotonic() < deadline, f"{last!r} never became {expected!r}"
        time.sleep(_POLL_S)
