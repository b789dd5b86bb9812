"""Runs the tests of the Spark bridge on each pyspark release that is supported; prints a table.

``python -m tests.compat.run [VERSION ...]``; non-zero where a release fails.  Each has a virtual
environment of its own under ``.compat``, all of them the same local Kafka and the real service.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.cli.common import print_table
from offsetmgr.devkafka import KAFKA_VERSION
from offsetmgr.devkafka.jars import find_java

ROOT: Final = Path(__file__).parents[2]
HOME: Final = ROOT / ".compat"

VERSIONS: Final = ("3.5.7", "4.0.0", "4.1.1")

BUGS: Final = {"4.1.1": "SPARK-55271"}
"""Bugs of Spark itself that a test expects; README.md says what they do."""

TESTS: Final = (
    "tests/spark/test_commit_offsets.py",
    "tests/spark/test_kafka_batch.py",
    "tests/spark/test_foreach_batch.py",  # with batch_ranges, and reconcile
    "tests/spark/test_follow.py",  # checkpoints of jobs that do not commit
    "tests/spark/test_examples.py",  # with starting_offsets
    "tests/spark/test_processor.py::test_a_group_is_committed_and_recovers_from_its_table",
)
CONNECT: Final = "tests/spark/test_connect.py"
"""Spark Connect runs listeners in the driver since Spark 4.0."""

_HEAD: Final = ("Spark", "Scala", "Java", "Python", "Kafka", "Connect", "result")
_OLDEST_CONNECT: Final = 4


class Row(NamedTuple):
    spark: str
    scala: str
    connect: bool
    problem: str
    """Empty where all tests passed."""


def main(versions: list[str]) -> int:
    """Try the releases one after the other; return the exit status."""
    unknown = set(versions) - set(VERSIONS)
    if unknown:
        sys.exit(f"no release to try: {', '.join(sorted(unknown))}; give {', '.join(VERSIONS)}")
    rows = [tried(version) for version in versions or VERSIONS]
    same = java_version(), platform.python_version(), KAFKA_VERSION
    lines = []
    for row in rows:
        passed = f"passed; but {BUGS[row.spark]}" if row.spark in BUGS else "passed"
        connect, result = "yes" if row.connect else None, row.problem or passed
        lines.append((row.spark, row.scala, *same, connect, result))
    print_table(_HEAD, lines)
    return 1 if any(row.problem for row in rows) else 0


def tried(version: str) -> Row:
    home = HOME / version
    python = home / "bin" / "python"
    connect = int(version.partition(".")[0]) >= _OLDEST_CONNECT
    sys.stdout.write(f"\npyspark {version}\n")
    sys.stdout.flush()
    try:
        install(version, home, connect=connect)
    except subprocess.CalledProcessError:
        return Row(version, "?", connect, "failed: could not be installed")
    # Neither another tree nor another Spark than the one that was just installed.
    env = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    tests = (*TESTS, CONNECT) if connect else TESTS
    command = [str(python), "-m", "pytest", "-q", "-m", "not chaos", *tests]
    status = subprocess.run(
        command, cwd=ROOT, env=env | {"PYTHONPATH": str(ROOT)}, check=False
    ).returncode
    problem = f"failed: pytest ended with {status}" if status else ""
    return Row(version, scala_version(home), connect, problem)


def install(version: str, home: Path, *, connect: bool) -> None:
    """Install the release with what the tests need, unless that is done already."""
    done = home / ".installed"
    pins = ROOT / "constraints.txt"
    since = max(path.stat().st_mtime for path in (pins, ROOT / "pyproject.toml"))
    if done.exists() and done.stat().st_mtime > since:
        return
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    # All pins but those of the Spark that the other tests run on.
    kept = [line for line in pins.read_text().splitlines() if not re.match("pyspark=|py4j=", line)]
    own_pins = home / "constraints.txt"
    own_pins.write_text("\n".join(kept) + "\n")
    # What Connect of 3.5 asks for is older than the rest allows.
    spark = f"pyspark[connect]=={version}" if connect else f"pyspark=={version}"
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "-c", str(own_pins)]
    subprocess.run(
        [*pip, "-e", ".[follow,server,sql,streams,dev]", "pandas", "pyarrow", spark],
        cwd=ROOT,
        check=True,
    )
    done.touch()


def scala_version(home: Path) -> str:
    """Return the Scala that the installed pyspark brings."""
    (jar,) = home.glob("lib/python*/site-packages/pyspark/jars/scala-library-*.jar")
    return jar.stem.removeprefix("scala-library-")


def java_version() -> str:
    """Return the version of the Java that runs Spark and Kafka."""
    said = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    found = re.search(r'version "([^"]+)"', said.stderr)
    return found[1] if found else "?"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
