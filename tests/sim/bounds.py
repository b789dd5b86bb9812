"""Finds the largest container that an object holds, however deep: queues that grow show here.

A deque with a limit cannot grow, and the timers' heap is looked at by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sized
from typing import Final, TypeGuard

_OURS: Final = ("offsetmgr.", "actors.")
_APART: Final = ("offsetmgr.coordinator.memory", "actors.timers")
_ATOMS: Final = (str, bytes, int, float, type(None), type)


def largest(root: object) -> tuple[int, str]:
    """How many entries the largest container under ``root`` has, and the path to it."""
    found, where = 0, "nothing"
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([(type(root).__name__, root)])
    while waiting:
        path, each = waiting.popleft()
        if id(each) in seen or type(each).__module__ in _APART:
            continue
        seen.add(id(each))
        if may_grow(each) and len(each) > found:
            found, where = len(each), path
        waiting.extend(part for part in _parts(path, each) if not isinstance(part[1], _ATOMS))
    return found, where


def may_grow(each: object) -> TypeGuard[Sized]:
    """True if it is a container without a limit of its own."""
    if isinstance(each, deque):
        return each.maxlen is None
    return isinstance(each, (dict, list, set))


def _parts(path: str, each: object) -> Iterator[tuple[str, object]]:
    if isinstance(each, Mapping):
        yield from ((f"{path}[…]", part) for part in each.values())
    elif isinstance(each, (list, tuple, set, deque)):
        yield from ((f"{path}[…]", part) for part in each)
    elif type(each).__module__.startswith(_OURS):
        for name, part in getattr(each, "__dict__", {}).items():
            yield f"{path}.{name}", part
        for kind in type(each).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if hasattr(each, name):
                    yield f"{path}.{name}", getattr(each, name)
