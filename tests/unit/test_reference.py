"""Documentation made from the code: the reference, and the table of a manager's life."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

from offsetmgr.manager import events
from offsetmgr.manager.step import TRANSITIONS
from tests.spark.documents import blocks

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "docs" / "reference.py"))


def test_every_imported_name_of_the_guides_is_in_the_reference() -> None:
    """A reader can look up each class and function that a code block imports."""
    listed = {
        name for package in REFERENCE["PACKAGES"] for name in REFERENCE["public_names"](package)
    }
    values = [resolve_name(name) for name in listed]
    imported = {
        f"{node.module}.{alias.name}"
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for block in blocks(page)
        if block.language == "python"
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offsetmgr")
        for alias in node.names
    }
    assert len(imported) > 30
    # A module, such as streams.codecs, is listed by its names.
    missing = {name for name in imported if resolve_name(name) not in values} - {
        "offsetmgr.streams.codecs"
    }
    assert missing == set()


def test_settings_have_their_defaults() -> None:
    """Each setting of each class is listed with the value that it has by default."""
    found = {
        name: dict(settings)
        for package in REFERENCE["PACKAGES"]
        for name, settings in REFERENCE["settings_of"](package).items()
    }
    assert set(found) >= {
        "AckSettings",
        "CommitSettings",
        "ConsumerSettings",
        "ProcessorSettings",
        "RetryPolicy",
        "TopicSettings",
        "WriterSettings",
    }
    for settings in found.values():
        assert settings
    assert found["CommitSettings"]["commit_interval_s"] == 1
    assert found["ConsumerSettings"]["dwell_s"] == 5


def test_the_documented_table_is_that_of_the_code() -> None:
    """``scripts/transitions.py`` prints it."""
    command = [sys.executable, "scripts/transitions.py"]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert table in (ROOT / "docs" / "internals.md").read_text()


def test_every_phase_has_a_step_for_every_event() -> None:
    """No answer of the coordinator meets a manager without a step for it."""
    (handled,) = {frozenset(steps) for steps in TRANSITIONS.values()}
    assert handled == set(get_args(events.Event))
