"""A Ctrl-C, or whatever else is thrown into a thread, between any two steps of a submit."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager.submits import GroupSubmits, SubmitBuffer
from tests.unit.core.core import Core, at

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from offsetmgr.manager import ManagerHandle

CODES = (SubmitBuffer.put, GroupSubmits.queue, GroupSubmits._wake, GroupSubmits._wake_in)
"""What a submit goes through with the lock of its group."""


class Interrupted(BaseException):
    """As KeyboardInterrupt is, but nobody's doing."""


def interrupted_at(step: int, code: CodeType, work: Callable[[], object]) -> bool:
    """Do ``work``, and throw at the ``step``-th instruction of ``code``; whether it had so many."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def is_free(lock: Any) -> bool:
    """True if another thread can have it."""
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def resubmit(handle: ManagerHandle, offset: int) -> None:
    """What a user does who goes on; taken or not, the offset before it is no higher."""
    handle.submit(offset)
    with pytest.raises(OffsetRegressionError):
        handle.submit(offset - 1)


@pytest.mark.parametrize("code", [each.__code__ for each in CODES], ids=lambda code: code.co_name)
def test_an_interrupted_submit_holds_up_nobody(code: CodeType) -> None:
    """It leaves the lock to others, and what is submitted afterwards is committed in time."""
    step, core = 0, Core()
    handle = core.spawn()
    core.advance(2.0)
    while interrupted_at(step, code, partial(handle.submit, 10 * step + 1)):
        assert is_free(handle._submits.group.lock)
        resubmit(handle, 10 * step + 2)
        core.advance(2.0)
        assert core.holds() == at(10 * step + 2)
        step += 1
    assert step > 5
