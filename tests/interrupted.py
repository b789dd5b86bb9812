"""A signal handler, at each place of a call where Python lets handlers run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def _raise() -> NoReturn:
    raise KeyboardInterrupt


def interrupted(
    call: Callable[[], object], at: int, handle: Callable[[], object] = _raise, within: str = ""
) -> bool:
    """Make a call, and ``handle`` at the start or the end of its ``at``-th inner call.

    Counts the calls in files whose paths contain ``within``.  Return False if there are fewer.
    """
    left = at

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        path = frame.f_code.co_filename
        # Python drops exceptions in the callbacks of weak references and of garbage collections
        # (of which Hypothesis times each).
        is_callback = "weakref" in path and frame.f_code.co_name in {"_remove", "remove"}
        is_lost = is_callback or "hypothesis" in path
        if event in {"call", "return", "c_return"} and within in path and not is_lost:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                handle()

    sys.setprofile(enter)
    try:
        call()
    except (KeyboardInterrupt, RuntimeError):
        pass  # a condition of Python's own makes the one of the other at one place of its wait
    finally:
        sys.setprofile(None)
    return left <= 0
