"""Server-sent events of the service, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from offsetmgr.client.transport import MAX_EVENT_BYTES, Unreachable, read_events

STREAM = (
    b": connected\n\n"
    b'event: committed\ndata: {"a": 1}\n\n'
    b"id: 7\nevent: failed\ndata: gr\xc3\xb6\xc3\x9fe\n\n"
    b": keep-alive\n\n"
    b"event: without data\n\n"
    b"retry: 10\nunknown: x\ndata: y\n\n"
    b"data: unfinished"
)
EVENTS = [
    {"event": "committed", "data": '{"a": 1}'},
    {"id": "7", "event": "failed", "data": "größe"},
    {"retry": "10", "unknown": "x", "data": "y"},
]


@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_however_it_is_cut(cuts: list[int]) -> None:
    """The network's cuts change nothing, be it within a line end or within a character."""
    at = [0, *sorted(cuts), len(STREAM)]
    assert list(read_events(STREAM[start:end] for start, end in pairwise(at))) == EVENTS


def test_an_event_without_end() -> None:
    """An event that never ends is refused before it fills the memory."""
    line = b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n"
    pieces = iter([line, line, b"never read"])
    with pytest.raises(Unreachable):
        next(read_events(pieces))
    assert list(pieces) == [b"never read"]
