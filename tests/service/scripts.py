"""Small scripts of a user, run as they would be: what stands on their screen when they fail."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

from tests.service.support import ROOT, WAIT_S

BEGIN = """
import sys, traceback
from offsetmgr import OffsetClient
client = OffsetClient(sys.argv[1], name="script")
"""

TRY = """
try:
    exec({line!r})
except Exception:
    traceback.print_exc()
print("--", file=sys.stderr)
"""

LONG_S = 5
"""The service answers a second before the client gives up, on a slow machine too."""


class Failed(NamedTuple):
    """The standard error of a line of a script that failed."""

    log: list[str]
    """Before its traceback."""
    last: str
    """The last line of its traceback: the error."""
    frames: int
    """Frames of this package in its traceback."""


def fail(url: str, *lines: str) -> list[Failed]:
    """Run `lines` with a `client` of the service at `url`; each must end with an exception."""
    code = BEGIN + "".join(TRY.format(line=line) for line in lines)
    ended = subprocess.run(
        [sys.executable, "-c", code, url],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    *parts, _closing = ended.stderr.split("--\n")
    return [_failed(part) for part in parts]


def _failed(stderr: str) -> Failed:
    log, _, traceback = stderr.partition("Traceback (most recent call last):\n")
    errors = [line for line in traceback.splitlines() if line.startswith("offsetmgr.")]
    assert errors, stderr
    frames = sum("/offsetmgr/" in line for line in traceback.splitlines() if 'File "' in line)
    return Failed(log.splitlines(), errors[-1], frames)
