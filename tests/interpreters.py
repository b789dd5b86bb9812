"""The supported releases of Python that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RELEASES: Final = ("3.10", "3.11", "3.12", "3.13")
THIS: Final = "{}.{}".format(*sys.version_info)
"""The release of the tests."""


def interpreters() -> dict[str, str]:
    """Return an interpreter of each release that is installed, on PATH or by pyenv."""
    found = {THIS: sys.executable}
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
    release: str, program: str, *arguments: str, packages: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program with the product and the standard library, and our packages if asked for."""
    paths = [str(ROOT), *([sysconfig.get_path("purelib")] if packages else [])]
    return subprocess.run(
        [INTERPRETERS[release], "-S", "-c", textwrap.dedent(program), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def releases_with(*modules: str) -> list[str]:
    """Return the releases that can import our packages: compiled ones are for one release."""
    program = f"import {', '.join(modules)}"
    return [each for each in INTERPRETERS if run(each, program, packages=True).returncode == 0]
