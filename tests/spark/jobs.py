"""Spark programs of a process of their own, as tests start them."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

JOB_S = 200.0
"""A guard: longer than any job takes."""


def flags(options: Mapping[str, object]) -> list[str]:
    """The options as a command line has them."""
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


def run_job(
    script: Path, options: Mapping[str, object], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a process group of its own; what it has said.

    It runs in a folder of its own as well: Spark leaves one of its own wherever it is started.
    """
    ours = {"PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable}
    with TemporaryDirectory(prefix="offsetmgr-job-") as folder:
        return subprocess.run(
            [sys.executable, str(script), *flags(options)],
            cwd=folder,
            env={**os.environ, **ours, **(env or {})},
            capture_output=True,
            start_new_session=True,
            text=True,
            timeout=JOB_S,
            check=False,
        )
