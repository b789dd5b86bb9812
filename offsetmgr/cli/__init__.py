"""The command line ``offsetmgr``."""

from __future__ import annotations

import sys

_OURS = frozenset({"actors", "offsetmgr"})


def main() -> None:
    """Run a command; says in one line what to install where an extra is missing."""
    try:
        from offsetmgr.cli.app import app  # it needs the server extra

        app(prog_name="offsetmgr")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS:
            raise
        sys.exit(f"offsetmgr: {missing} is not installed; run: pip install 'offsetmgr[server]'")
