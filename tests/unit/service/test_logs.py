"""Logs: one way for all records, harmless whatever is in them, never in the way of commits."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import select
from typing import TYPE_CHECKING

import pytest
import structlog

from offsetmgr.service import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    """A stream where somebody looks."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class FullDisk(io.StringIO):
    """A stream that takes nothing."""

    def write(self, _: str) -> int:
        """Refuse."""
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What a test sets up does not outlive it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_records_are_json_where_nobody_looks() -> None:
    """Event names and keys, from structlog and from the standard library alike."""
    stream = io.StringIO()
    logs.set_up("info", stream)
    structlog.get_logger("offsetmgr.x").info("serving", address="http://127.0.0.1:1")
    logging.getLogger("somebody.else").warning("%s left", 3)
    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (ours["event"], ours["address"]) == ("serving", "http://127.0.0.1:1")
    assert (ours["level"], ours["logger"]) == ("info", "offsetmgr.x")
    assert (theirs["event"], theirs["logger"]) == ("3 left", "somebody.else")


def test_names_cannot_draw_on_a_terminal() -> None:
    """Escape sequences and line breaks in groups and metadata come out as text."""
    stream = Terminal()
    logs.set_up("info", stream)
    structlog.get_logger("offsetmgr.x").info("taken", group="a\x1b[31m\nforged: line\x9b")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "\x1b[31m" not in lines[0]
    assert "\x9b" not in lines[0]
    assert "x1b[31m" in lines[0]


def test_messages_of_others_cannot_draw_on_a_terminal_either() -> None:
    """A library that puts a name into its message is no way around."""
    stream = Terminal()
    logs.set_up("info", stream)
    logging.getLogger("somebody.else").warning("took %s", "a\x1b[41m\nforged: line")
    (line,) = stream.getvalue().splitlines()
    assert "took a\\x1b[41m\\nforged: line" in line


def test_the_level_can_change() -> None:
    """As SIGHUP does it."""
    stream = io.StringIO()
    set_up = logs.set_up("warning", stream)
    structlog.get_logger("offsetmgr.x").info("quiet")
    set_up.set_level("debug")
    structlog.get_logger("offsetmgr.x").debug("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


@pytest.mark.fault(20)
def test_what_cannot_be_written_is_dropped_and_counted() -> None:
    """A full disk stops the log, not the commits."""
    set_up = logs.set_up("info", FullDisk())
    structlog.get_logger("offsetmgr.x").info("one")
    logging.getLogger("somebody.else").warning("two")
    assert set_up.dropped == 2


def test_a_record_that_was_cut_spoils_no_other() -> None:
    """Of a long one a full pipe may take a part; the next begins a line of its own."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as stream:
        set_up = logs.set_up("info", stream)
        os.set_blocking(writing, False)
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                taken += os.write(writing, b"x" * select.PIPE_BUF)
        reader.read(2 * select.PIPE_BUF)  # makes room for a part of the record
        os.set_blocking(writing, True)
        structlog.get_logger("offsetmgr.x").info("long", text="y" * 5 * select.PIPE_BUF)
        assert set_up.dropped == 1
        reader.read(taken)
        structlog.get_logger("offsetmgr.x").info("next")
        assert json.loads(reader.read(taken).splitlines()[-1])["event"] == "next"
        assert set_up.dropped == 1


def test_an_exception_has_its_traceback() -> None:
    """In one JSON record."""
    stream = io.StringIO()
    logs.set_up("info", stream)
    try:
        raise ValueError("boom")  # noqa: TRY301 -- to be logged
    except ValueError:
        structlog.get_logger("offsetmgr.x").exception("request_failed")
    (record,) = (json.loads(line) for line in stream.getvalue().splitlines())
    assert "ValueError: boom" in record["exception"]
