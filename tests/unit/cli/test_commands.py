"""The list of commands."""

from __future__ import annotations

import pytest
from typer.main import get_group

from offsetmgr.cli.app import app
from offsetmgr.cli.commands import command_line

ALL = get_group(app).commands


@pytest.mark.parametrize("word", sorted(ALL))
def test_a_command_is_the_same_without_the_others(word: str) -> None:
    """Only the commands of one part are imported, which must have the command and all below it."""
    alone = get_group(command_line(word)).commands
    assert alone.keys() < ALL.keys()
    assert list(vars(alone[word]).get("commands", [])) == list(vars(ALL[word]).get("commands", []))
