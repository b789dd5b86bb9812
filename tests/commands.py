"""Runs commands of this product in this process, which saves their start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from typer.testing import CliRunner

from offsetmgr.cli.app import app

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka


class Ran(NamedTuple):
    """The result of a command."""

    status: int
    out: str
    err: str
    output: str
    """Both."""

    def json(self) -> Any:
        return json.loads(self.out)


def run(kafka: DevKafka, *words: str) -> Ran:
    """Run a command that asks this Kafka."""
    return run_alone(*words, "--bootstrap-servers", kafka.bootstrap_servers, "--timeout", "60")


def run_alone(*words: str) -> Ran:
    """Run a command with these options alone."""
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr, done.output)
