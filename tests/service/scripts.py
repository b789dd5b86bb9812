"""Small scripts of a user, run as they would be: what stands on their screen when they fail."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

from tests.service.support import ROOT, WAIT_S

BEGIN = """
import sys
from offsetmgr import OffsetClient
client = OffsetClient(sys.argv[1], name="script")
"""

LONG_S = 5
"""The service answers a second before the client gives up, on a slow machine too."""


class Failed(NamedTuple):
    """The standard error of a script that failed."""

    log: list[str]
    """Before its traceback."""
    last: str
    """Its last line but for what the client logs as it closes: the error."""
    frames: int
    """Frames of this package in its traceback."""


def fail(url: str, *lines: str) -> Failed:
    """Run `lines` with a `client` of the service at `url`, which must end with an exception."""
    code = BEGIN + "\n".join(lines)
    ended = subprocess.run(
        [sys.executable, "-c", code, url],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended
    log, _, traceback = ended.stderr.partition("Traceback (most recent call last):\n")
    errors = [line for line in traceback.splitlines() if line.startswith("offsetmgr.")]
    frames = sum("/offsetmgr/" in line for line in traceback.splitlines() if 'File "' in line)
    return Failed(log.splitlines(), errors[-1], frames)
