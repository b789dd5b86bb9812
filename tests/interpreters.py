"""The supported releases of Python that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RELEASES: Final = ("3.10", "3.11", "3.12", "3.13")


def interpreters() -> dict[str, str]:
    """Return an interpreter of each release that is installed, on PATH or by pyenv."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    for release in RELEASES:
        folders = Path("~/.pyenv/versions").expanduser().glob(f"{release}.*")
        for path in (shutil.which(f"python{release}"), *(str(f / "bin/python") for f in folders)):
            if release not in found and path is not None and _starts(path):
                found[release] = path
    return found


def _starts(path: str) -> bool:
    """Return True for a working interpreter; pyenv also has names of unselected ones on PATH."""
    return subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


INTERPRETERS: Final = interpreters()


def run(
    interpreter: str, program: str, *arguments: str, packages: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with the product and the standard library, and ``packages`` if given."""
    paths = [str(ROOT), *([] if packages is None else [str(packages)])]
    return subprocess.run(
        [interpreter, "-S", "-c", textwrap.dedent(program), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
