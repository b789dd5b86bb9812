"""The catalogue of faults is complete: each has a test that says so."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.faults.catalogue import FAULTS

TESTS = Path(__file__).parents[1]


def marked_faults() -> dict[int, list[str]]:
    """Faults by number, with the files that prove them, as ``pytest.mark.fault(...)`` says."""
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}: write the number itself"
                    assert isinstance(argument.value, int), f"{path}: a fault has a number"
                    found.setdefault(argument.value, []).append(path.name)
    return found


def test_every_fault_has_a_test() -> None:
    """None of the catalogue goes without proof, and no test proves one that is not in it."""
    found = marked_faults()
    assert sorted(set(FAULTS) - set(found)) == []
    assert sorted(set(found) - set(FAULTS)) == []
