"""Server-sent events of the service, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from offsetmgr.client.transport import MAX_EVENT_BYTES, EventParser, Unreachable

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


def parse(pieces: list[bytes]) -> list[dict[str, str]]:
    """All events of a stream in pieces."""
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_however_it_is_cut(cuts: list[int]) -> None:
    """The network's cuts change nothing, be it within a line end or within a character."""
    at = [0, *sorted(cuts), len(STREAM)]
    assert parse([STREAM[start:end] for start, end in pairwise(at)]) == EVENTS


def test_an_event_without_end() -> None:
    """An event that never ends is refused before it fills the memory."""
    parser = EventParser()
    line = b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n"
    assert parser.feed(line) == []
    with pytest.raises(Unreachable):
        parser.feed(line)
