"""README.md and the guides: what they tell a reader to type works, and their links exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from codeop import CommandCompiler
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import __version__ as spark_version

from offsetmgr.devkafka.jars import cache_dir, kafka_jars
from tests.shared_classes import JAVA_ENVIRONMENT
from tests.spark.documents import LANGUAGES, blocks

if TYPE_CHECKING:
    from tests.postgres import Postgres

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "tutorial-spark",
        "spark",
        "python",
        "consumer",
        "acks",
        "stores",
        "streams",
        "views",
        "clusters",
        "http",
        "operator",
        "tutorial",
    )
]
SHOP = ROOT / "examples" / "shop" / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

_WAIT_S = 900

_RESOLVE = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.config("spark.jars.packages", sys.argv[1]).getOrCreate().stop()
"""


def _environment(home: Path) -> dict[str, str]:
    """Return what a user's shell has who has installed offsetmgr, in an empty home."""
    bin_ = home / "bin"
    bin_.mkdir(parents=True)
    start = bin_ / "offsetmgr"
    start.write_text(f'#!/bin/sh\nexec {sys.executable} -m offsetmgr "$@"\n')
    start.chmod(0o755)
    python = Path(sys.executable).parent
    settings = {
        # One cache for Ivy too: fetched on a machine's first run, found there by all later ones.
        "spark.jars.ivy": f"{cache_dir()}/ivy-home",
        "spark.master": "local[2]",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    java = ("JAVA_HOME", *JAVA_ENVIRONMENT)
    return {
        "HOME": str(home),
        "PATH": f"{bin_}:{python}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OFFSETMGR_CACHE": str(cache_dir()),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        # There is no other network where the documents run.
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: os.environ[name] for name in java if name in os.environ},
    }


def _fetch_connector(environment: dict[str, str]) -> None:
    done = cache_dir() / "ivy-home" / f"connector-{spark_version}"
    if done.exists():
        return
    scala = "2.13" if spark_version >= "4" else "2.12"
    package = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark_version}"
    command = [sys.executable, "-c", _RESOLVE, package]
    subprocess.run(command, env=environment, timeout=_WAIT_S, check=True)
    done.touch()


def _own_network() -> list[str]:
    """Return the start of a command that gets a network of its own; empty where none can be had."""
    up = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "--map-root-user", "sh", "-c", up, "sh"]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*command, "true"], capture_output=True, timeout=_WAIT_S, check=False)
    return command if tried.returncode == 0 else []


@pytest.mark.timeout(_WAIT_S)
@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([README, *GUIDES], id="guides"),
        pytest.param([SHOP], id="shop", marks=pytest.mark.chaos),
    ],
)
def test_commands_of_the_documents_work(
    tmp_path: Path, postgres: Postgres, documents: list[Path]
) -> None:
    """Every block of the README and the guides runs in order, in an empty home.

    In a network of its own, so that ports 9092 and 8741 are free and the text stands as it is;
    where the system has none to give, those ports have to be free.
    """
    environment = _environment(tmp_path / "home") | postgres.environment()
    postgres.create("orders")
    kafka_jars()
    _fetch_connector(environment)
    work = tmp_path / "work"
    work.mkdir()
    for name in ("deploy", "examples"):
        # Other tests are writing bytecode there.
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    run = [sys.executable, str(ROOT / "tests/spark/documents.py"), str(work)]
    done = subprocess.run(
        [*_own_network(), *run, *map(str, documents)],
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Files, headings and make's targets that are named exist; code blocks have a language."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            file, _, heading = target.partition("#")
            found = page.parent / file if file else page
            assert found.exists(), f"{page.name} links to {target}"
            assert not heading or heading in _headings(found), f"{page.name} links to {target}"
    for block in blocks(page):
        assert block.language in LANGUAGES, block.place
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text())) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_can_be_pasted(page: Path) -> None:
    """Each block is complete, line by line, at a prompt that ends a statement at an empty line.

    Blocks of the guides are pasted into a real one; this names the line without starting Spark.
    """
    for block in blocks(page):
        compiled, lines = CommandCompiler(), list[str]()
        for number, line in enumerate(["", *block.text.splitlines(), ""], block.line):
            lines.append(line)
            if block.language == "python":
                try:
                    is_complete = compiled("\n".join(lines), symbol="single") is not None
                except SyntaxError as error:
                    pytest.fail(f"{page.name}:{number}: {error.msg}")
                if is_complete:
                    lines.clear()


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_troubleshooting_quotes_real_messages() -> None:
    """A heading in code is part of a message of the product, so that a search finds it."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "offsetmgr").rglob("*.py")]
    constants = [
        each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Constant)
    ]
    said = [each.value for each in constants if isinstance(each.value, str)]
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^## `(.+)`$", page, re.MULTILINE)
    assert quoted
    assert [words for words in quoted if not any(words in text for text in said)] == []


def test_the_readme_is_short() -> None:
    """The README is at most 140 lines long; the rest belongs in a guide."""
    assert len(README.read_text().splitlines()) <= 140
