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
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv

from tests.compat.kafka_releases import ROOMS
from tests.compat.run import CONNECT, TESTS

ROOT = Path(__file__).parents[2]
VERSION = "0.1.0"

OFFLINE = """
from offsetmgr import OffsetClient
client = OffsetClient("http://127.0.0.1:9", name="orders-etl")
client.submit("orders-etl", {("orders", 0): 5})
for each in client.close(timeout=0.1).uncommitted.values():
    print(each.offset.offset)
"""
"""No service answers: offsets that are left uncommitted are reported."""

IN_PROCESS = """
from offsetmgr import LocalOffsets
from offsetmgr.clusters import MultiClusterReader, MultiClusterWriter
from offsetmgr.consumer import AckConsumer, GroupConsumer
from offsetmgr.manager import Factory
from offsetmgr.stores import open_store
offsets = LocalOffsets("127.0.0.1:9")
offsets.submit("orders-etl", {("orders", 0): 5})
print(offsets.close(timeout=0.1).uncommitted["orders-etl", "orders", 0].offset.offset)
GroupConsumer("127.0.0.1:9", "orders-mail", ["orders"]).close()
AckConsumer("127.0.0.1:9", "orders-labels", ["orders"]).close()
MultiClusterWriter({"west": "127.0.0.1:9"}).close()
open_store("kafka://127.0.0.1:9").close()
"""

DATABASE = """
import tempfile
from offsetmgr import OffsetAndMetadata, TopicPartition
from offsetmgr.stores import open_store
with open_store(f"sqlite:///{tempfile.mkdtemp()}/offsets.db") as store:
    store.create_tables()
    store.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(5)})
    print(store.fetch_offset("g", "t", 0).offset)
"""

STREAM = """
from offsetmgr.streams import Tester, codecs, define_group, input, persist
tester = Tester()
table = persist(codecs.Int64())
graph = define_group("g", input("t", codecs.String(), lambda ctx, text: ctx.set_value(5)), table)
counter = tester.add_processor(graph)
tester.consume("t", "bob", "/cart")
print(counter.get("bob"))
"""

MSK = """
from offsetmgr.kafka.oauth import token_function
token_function("aws-msk-iam", (), {"bootstrap.servers": "b-1.x.kafka.eu-west-1.amazonaws.com"})
print(5)
"""

EXTRAS = {"kafka": IN_PROCESS, "sql": DATABASE, "streams": STREAM, "msk": MSK}
"""A program for each, which prints 5."""


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
    with DefaultIsolatedEnv() as environment:  # as ``python -m build`` has two of
        builder = ProjectBuilder.from_isolated_env(environment, ROOT)
        environment.install(builder.build_system_requires)
        with tarfile.open(builder.build("sdist", out)) as archive:
            archive.extractall(out / "source", filter="data")
        (source,) = (out / "source").iterdir()
        ProjectBuilder.from_isolated_env(environment, source).build("wheel", out)
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


def test_the_source_archive_holds_all_that_a_reader_needs(archives: Path) -> None:
    with tarfile.open(archives / f"offsetmgr-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "docs/index.md"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {"tests", "benchmarks", ".venv", "build", ".ci"}


def test_the_changelog_has_the_version_as_its_newest() -> None:
    newest = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


@pytest.mark.chaos
def test_each_extra_alone_does_its_work_or_names_the_missing_one(
    archives: Path, tmp_path: Path
) -> None:
    """The client without any dependency, then each extra in its own folder, the service last."""
    environment = tmp_path / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python, command = (str(environment / "bin" / name) for name in ("python", "offsetmgr"))
    wheel = next(archives.glob("*.whl"))
    # The pip of the tests: one of the environment's own takes longer than all that it installs.
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install: list[str | Path] = [
        *pip,
        "install",
        "--quiet",
        "--no-compile",
        "-c",
        ROOT / "constraints.txt",
    ]
    _run(*install, wheel)
    assert _run(python, "-c", OFFLINE).strip() == "5"
    for extra, program in EXTRAS.items():
        missing = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, check=False
        )
        assert "pip install 'offsetmgr[" in missing.stderr, missing.stderr
        _run(*install, "--target", tmp_path / extra, f"{wheel}[{extra}]")
        found = f"import sys; sys.path.insert(0, {str(tmp_path / extra)!r})\n"
        assert _run(python, "-c", found + program).strip() == "5"
    _run(*install, f"{wheel}[server]")
    assert VERSION in _run(command, "--version")
    assert "kafka:9092" in _run(command, "config", "check", "--bootstrap-servers", "kafka:9092")


def test_the_hashed_requirements_are_the_constraints() -> None:
    """``scripts/lock.sh`` writes them; it has to be run after a change of the constraints."""
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    text = (ROOT / "deploy" / "requirements.txt").read_text()
    locked = re.findall(r"^(\S+==\S+)(.*)(?: \\)$", text, re.MULTILINE)
    assert locked
    assert [pin for pin, marker in locked if "win32" not in marker and pin not in pins] == []
    assert text.count("--hash=sha256:") > len(locked)


def test_the_tests_that_compat_names_exist() -> None:
    """A renamed test would end a round before its first test."""
    named = [*TESTS, CONNECT, *(test for tests in ROOMS.values() for test in tests)]
    for file, _, function in (test.partition("[")[0].partition("::") for test in named):
        text = (ROOT / file).read_text()
        assert not function or f"def {function}(" in text, f"{file} has no {function}"


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Broken links to pages and headings are warnings; ``make docs`` also writes the pages."""
    # The form of quotation marks takes a tenth of the time, and has no warnings.
    options = ["-q", "-W", "-b", "dummy", "-D", "smartquotes=0", "-c", str(ROOT / "docs")]
    subprocess.run([sys.executable, "-m", "sphinx", *options, ROOT, tmp_path], check=True)
