"""List names and sentences that a reader would have to read twice; CONTRIBUTING.md has the rules.

Paths in ``[tool.plain] clean`` of pyproject.toml must have none: each one there is printed, and the
exit status is 1.  Of all others the number is printed; ``--all`` lists them too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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

LOOP_NAMES = frozenset({"each", "found", "held", "given"})


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


def loop_names(source: str) -> Counter[str]:
    """Return how often a loop's variable says nothing of its value."""
    nodes = ast.walk(ast.parse(source))
    targets = [n.target for n in nodes if isinstance(n, (ast.For, ast.AsyncFor, ast.comprehension))]
    return Counter(t.id for t in targets if isinstance(t, ast.Name) and t.id in LOOP_NAMES)


def main(arguments: list[str]) -> int:
    """Print the offences; return 1 if a clean path has any."""
    clean = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["plain"]["clean"]
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    hard, soft, loops = list[Offence](), list[Offence](), Counter[str]()
    for path in filter(lambda name: (ROOT / name).is_file(), listed):
        source = (ROOT / path).read_text()
        is_clean = any(path == each or path.startswith(f"{each}/") for each in clean)
        (hard if is_clean else soft).extend(offences(path, source))
        loops += loop_names(source) if path.endswith(".py") else Counter()
    print(*(hard + soft if "--all" in arguments else hard), sep="\n", end="\n" if hard else "")
    rooms = Counter(Path(offence.path).parts[:2] for offence in soft)
    print(f"plain words: {len(hard)} to mend; {len(soft)} where not yet clean (--all lists them):")
    print("  " + ", ".join(f"{'/'.join(room)} {count}" for room, count in sorted(rooms.items())))
    print("  loops over " + ", ".join(f"{name!r}: {loops[name]}" for name in sorted(loops)))
    return 1 if hard else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
