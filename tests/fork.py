"""Checks in the child of a fork."""

from __future__ import annotations

import os
import signal
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(check: Callable[[], object]) -> None:
    """Call ``check`` in the child of a fork; fail if it raises there, or does not return."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a guard, not a measure
        try:
            check()
            os._exit(0)
        except BaseException:  # noqa: BLE001 -- pytest's too
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
