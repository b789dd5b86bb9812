"""List names and sentences that a reader would have to read twice; CONTRIBUTING.md has the rules.

The exit status is 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

TEST_NAME = re.compile(
    r"_(what|who|whose|whoever|whatever|whichever|whether|anew|(is|are)_told|told_of|(is|are)_no)(_|$)"
)
CLAUSE = re.compile(r"(What|Who|Whose|Whoever|Whatever|Whether|That|Where|How)\b")
CONTINUES = re.compile(r"(And|Or|But|Nor|So|Of|By|Else|Even)\b")
"""The beginnings of docstrings that are not sentences of their own."""

PHRASES = {
    "is not a": re.compile(
        r"(?<!here )\b(is|are) no (?!longer|more|less|later|earlier|one|way)(?=\w)"
    ),
    "forever": re.compile(r"\bfor ever\b"),
    "recreated": re.compile(r"\b(made|make|makes|created) anew\b"),
    "next to, as well as": re.compile(r"\bbeside\b(?! the point)"),
}
"""Patterns in code, comments and documents, by the words to use instead."""


class Offence(NamedTuple):
    """A line to rewrite."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def offences(path: str, source: str) -> Iterator[Offence]:
    """Yield the offences of a file."""
    for number, line in enumerate(source.splitlines(), 1):
        for better, pattern in PHRASES.items():
            if match := pattern.search(line):
                yield Offence(path, number, f"say {better!r}, not {match[0]!r}")
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(source)):
            yield from _of_node(path, node)


def _of_node(path: str, node: ast.AST) -> Iterator[Offence]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        match = TEST_NAME.search(node.name) if node.name.startswith("test_") else None
        if match:
            word = match[1].replace("_", " ")
            yield Offence(path, node.lineno, f"name the noun, not {word!r}: {node.name}")
    body = getattr(node, "body", None)
    for index, statement in enumerate(body if isinstance(body, list) else ()):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            first = value.value.lstrip().partition("\n")[0]
            # The string behind an attribute may go on from its name.
            if match := CLAUSE.match(first) or (None if index else CONTINUES.match(first)):
                text = f"begin with the subject, not {match[0]!r}: {first}"
                yield Offence(path, value.lineno, text)


def main() -> int:
    """Print the offences of all files; return 1 if there are any."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    sources = {path: (ROOT / path).read_text() for path in listed if (ROOT / path).is_file()}
    found = [offence for path, source in sources.items() for offence in offences(path, source)]
    print(*found, f"plain words: {len(found)} to mend", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
