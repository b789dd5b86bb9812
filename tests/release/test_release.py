"""A release: its files, and an installation of it in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "0.1.0"

OFFLINE = """
from offsetmgr import OffsetClient
client = OffsetClient("http://127.0.0.1:9", name="orders-etl")
client.submit("orders-etl", {("orders", 0): 5})
for each in client.close(timeout=0.1).uncommitted.values():
    print(each.offset.offset)
"""
"""No service answers: what is left uncommitted is told."""


def _run(*command: str | Path) -> str:
    """Return what a command prints, of which nothing comes from this checkout."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd="/", env=without, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheel and the source archive, the wheel being made of the archive."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", out, ROOT], check=True)
    return out


def test_the_wheel_holds_the_two_packages_and_no_more(archives: Path) -> None:
    with ZipFile(archives / f"offsetmgr-{VERSION}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        metadata = wheel.read(f"offsetmgr-{VERSION}.dist-info/METADATA").decode()
    assert {name.partition("/")[0] for name in names} == {
        "actors",
        "offsetmgr",
        f"offsetmgr-{VERSION}.dist-info",
    }
    assert {"actors/py.typed", "offsetmgr/py.typed"} <= set(names)
    listed = ["git", "-C", str(ROOT), "ls-files", "actors", "offsetmgr"]
    committed = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    built = {name for name in names if not name.startswith("offsetmgr-")}
    assert built == set(committed)
    licences = f"offsetmgr-{VERSION}.dist-info/licenses"
    vendored = f"{licences}/offsetmgr/service/page/vendor/uPlot.LICENSE"
    assert {f"{licences}/LICENSE", vendored} <= set(names)
    assert not re.search(r"^Requires-Dist: [^;]*$", metadata, re.MULTILINE), "the client needs none"


def test_the_source_archive_holds_what_a_reader_needs(archives: Path) -> None:
    with tarfile.open(archives / f"offsetmgr-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "docs/index.md"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {"tests", "benchmarks", ".venv", "build", ".ci"}


def test_the_changelog_has_the_version_as_its_newest() -> None:
    newest = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


def test_the_wheel_works_in_an_empty_environment(archives: Path, tmp_path: Path) -> None:
    """The client without any dependency, then the service with its own."""
    environment = tmp_path / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python, command = (str(environment / "bin" / name) for name in ("python", "offsetmgr"))
    wheel = next(archives.glob("*.whl"))
    # The pip of the tests: one of the environment's own takes longer than all that it installs.
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile"]
    _run(*install, wheel)
    assert _run(python, "-c", OFFLINE).strip() == "5"
    _run(*install, "-c", ROOT / "constraints.txt", f"{wheel}[server]")
    assert VERSION in _run(command, "--version")
    assert "kafka:9092" in _run(command, "config", "check", "--bootstrap-servers", "kafka:9092")


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Broken links to pages and headings are warnings; ``make docs`` also writes the pages."""
    options = ["-q", "-W", "-b", "dummy", "-c", str(ROOT / "docs")]
    subprocess.run([sys.executable, "-m", "sphinx", *options, ROOT, tmp_path], check=True)
