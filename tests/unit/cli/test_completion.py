"""The shell completes the commands."""

from __future__ import annotations

import os
import subprocess
import sys

_WAIT_S = 120


def test_commands_are_completed() -> None:
    """The completion of ``--install-completion`` knows the commands."""
    asked = {
        "_OFFSETMGR_COMPLETE": "complete_bash",
        "COMP_WORDS": "offsetmgr de",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv = ['offsetmgr']; from offsetmgr.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
        check=False,
    )
    assert {"describe", "demo", "delete-group"} <= set(done.stdout.split()), done.stderr
