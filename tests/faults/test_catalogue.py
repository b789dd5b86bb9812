"""The catalogue of faults is complete: each has a test that says so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.catalogue import FAULTS

MARK = re.compile(r"^\s*@pytest\.mark\.fault\(([\d, ]+)\)$", re.MULTILINE)


def test_every_fault_has_a_test() -> None:
    """None of the catalogue goes without proof, and no test proves one that is not in it."""
    sources = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")]
    marked = {
        int(number)
        for text in sources
        for numbers in MARK.findall(text)
        for number in numbers.split(",")
    }
    assert marked == FAULTS.keys()
