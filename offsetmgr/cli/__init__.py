"""The command line ``offsetmgr``."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

from offsetmgr.extras import OURS, naming_extra, package_of
from offsetmgr.http.signals import remember_signals


def main() -> None:
    """Run a command; a missing extra is named in one line."""
    if "serve" in sys.argv[1:3]:  # or `view serve`; before the imports, which take a second
        remember_signals()
    # A closed standard stream would be None, and its number that of the next connection.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 -- for the whole process
    for stream in (sys.stdin, sys.stdout):  # no name of others ends a command by its characters
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with naming_extra("this command"):
            from offsetmgr.cli.commands import command_line

            command_line(*sys.argv[1:2])(prog_name="offsetmgr")
    except KeyboardInterrupt:  # before the command had begun
        sys.exit(130)
    except ModuleNotFoundError as error:
        if package_of(error.name) in OURS:
            raise
        sys.exit(f"offsetmgr: {error}")
