"""The command line with all its commands."""

from __future__ import annotations

from typing import Final

from offsetmgr.cli.commands import command_line

app: Final = command_line()
