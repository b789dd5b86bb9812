"""The command line ``offsetmgr``."""

from __future__ import annotations

import sys

from offsetmgr.extras import OURS, naming_extra, package_of


def main() -> None:
    """Run a command; a missing extra is named in one line."""
    try:
        with naming_extra("this command"):
            from offsetmgr.cli.commands import command_line

            command_line(*sys.argv[1:2])(prog_name="offsetmgr")
    except ModuleNotFoundError as error:
        if package_of(error.name) in OURS:
            raise
        sys.exit(f"offsetmgr: {error}")
