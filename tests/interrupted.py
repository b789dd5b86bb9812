"""A signal handler that raises, at each place of a call where Python lets handlers run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Make a call, and raise at the start or the end of its ``at``-th inner call.

    Return False if the call has fewer.
    """
    left = at

    def enter(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        left -= event in {"call", "return", "c_return"}
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(enter)
    try:
        call()
    except (KeyboardInterrupt, RuntimeError):
        pass  # a condition of Python's own makes the one of the other at one place of its wait
    finally:
        sys.setprofile(None)
    return left <= 0
