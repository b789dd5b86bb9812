"""Log lines of the libraries if nothing configures logging."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import logging, sys
from actors.logs import get_logger

log = get_logger("offsetmgr.coordinator.kafka")
log.error("kafka_refuses_credentials", code="SSL", reason="before")
if "set up" in sys.argv:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    log.info("not shown", reason="the level")
    log.warning("librdkafka", kind="FAIL", text="100% of it")
    try:
        raise ValueError("trouble")
    except ValueError:
        log.exception("failed", group="g")
"""


def run(*arguments: str) -> tuple[str, str]:
    """Return what a process writes to standard output and to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


def test_it_is_silent_by_default() -> None:
    """A program's standard output is its own."""
    assert run() == ("", "")


def test_it_goes_where_logging_goes() -> None:
    """With its keys, and with tracebacks."""
    out, err = run("set up")
    assert out == ""
    first, *rest = err.splitlines()
    assert first == "WARNING offsetmgr.coordinator.kafka librdkafka kind=FAIL text=100% of it"
    assert rest[0] == "ERROR offsetmgr.coordinator.kafka failed group=g"
    assert rest[-1] == "ValueError: trouble"
