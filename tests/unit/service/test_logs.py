"""Logs: one way for all records, harmless whatever is in them, never in the way of commits."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from offsetmgr.logs import SafeLogger
from offsetmgr.service import logs
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[TextIO]:
    with (tmp_path / "log").open("w+") as file:
        yield file


def written(stream: TextIO) -> list[dict[str, Any]]:
    logging.getLogger().handlers[0].flush()
    stream.seek(0)
    return [json.loads(line) for line in stream]


def test_records_are_json_for_machines(stream: TextIO) -> None:
    """Event names and keys, and the lines of libraries."""
    logs.set_up("info", stream)
    SafeLogger("offsetmgr.x").info("serving", address="http://127.0.0.1:1")
    logging.getLogger("somebody.else").warning("%s left", 3)
    try:
        raise ValueError("boom")  # noqa: TRY301 -- to be logged
    except ValueError:
        SafeLogger("offsetmgr.x").exception("request_failed")
    ours, theirs, failed = written(stream)
    assert (ours["event"], ours["address"]) == ("serving", "http://127.0.0.1:1")
    assert (ours["level"], ours["logger"]) == ("info", "offsetmgr.x")
    assert (theirs["event"], theirs["logger"]) == ("3 left", "somebody.else")
    assert "ValueError: boom" in failed["exception"]


def fail(token: str) -> None:
    raise ValueError(len(token))


def test_a_traceback_shows_no_local_variable() -> None:
    """A token may be one of them, on a terminal as well."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb") as screen, os.fdopen(theirs, "w") as terminal:
        logs.set_up("info", terminal)
        try:
            fail("gehe" + "im")
        except ValueError:
            SafeLogger("offsetmgr.x").exception("request_failed")
        SafeLogger("offsetmgr.x").info("wri" + "tten")
        shown = b""
        while b"written" not in shown:
            shown += screen.readline()
    assert b"ValueError" in shown
    assert b"geheim" not in shown


def test_names_cannot_draw_on_a_terminal() -> None:
    """Escape sequences and line breaks come out as text, also in messages of libraries."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb") as screen, os.fdopen(theirs, "w") as terminal:
        logs.set_up("info", terminal)
        SafeLogger("offsetmgr.x").info("taken", group="a\x1b[31m\nforged: line\x9b")
        logging.getLogger("somebody.else").warning("took %s", "a\x1b[41m\nforged: line")
        lines = [screen.readline(), screen.readline()]
    assert b"\x1b[31m\n" not in lines[0]
    assert b"x1b[31m" in lines[0]
    assert b"took a\\x1b[41m\\nforged: line" in lines[1]


def test_the_queue_of_an_unread_log_is_bounded() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"\n" * select.PIPE_BUF)
        os.set_blocking(writing, True)
        set_up = logs.set_up("info", stream)
        for number in range(logs.QUEUED + 100):
            logging.getLogger("offsetmgr.librdkafka").error("noise %d", number)
        assert 99 <= set_up.dropped <= 100  # one may have been taken from the queue
        left = logs.QUEUED + 100 - set_up.dropped
        while left:  # else the rest would be written to what gets the number of the pipe next
            left -= reader.readline().startswith(b"{")


def test_a_torn_line_does_not_swallow_the_next() -> None:
    """As on a full disk: what does not fit is lost, and the next record is a line of its own."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        os.set_blocking(writing, False)
        set_up = logs.set_up("info", stream)
        logging.getLogger("offsetmgr.x").info("large %s", "x" * 1_000_000)
        logging.getLogger("offsetmgr.x").info("lost")
        eventually(lambda: set_up.dropped, 2)
        torn = reader.read(select.PIPE_BUF)
        os.set_blocking(writing, True)
        logging.getLogger("offsetmgr.x").info("next")
        logging.getLogger("offsetmgr.x").info("last")
        while not torn.endswith(b"\n"):
            torn += reader.readline()
        assert json.loads(reader.readline())["event"] == "next"
