"""Runs the code blocks of documents in order, as a reader who copies them would.

``python documents.py FOLDER DOCUMENT...`` runs the blocks of all documents in ``FOLDER``: ``sh``
blocks line by line in a shell, ``python`` blocks in one interpreter, which keeps their names.  A
command that does not end by itself (see ``STAYS``) goes on in the background until the end.  The
first failure ends the run, with the place of its block.  Blocks that install the package are left
out: ``scripts/first-hour.sh`` runs those.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

STAYS = {
    "offsetmgr dev-kafka": "is ready",
    "offsetmgr serve": '"serving"',
    "offsetmgr view serve": '"serving"',
}
"""Commands that run until they are stopped, and what they print once they can be used."""

LANGUAGES = ("sh", "python", "text", "toml", "ini", "json", "yaml")

_BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WAIT_S = 240.0
_STOP_S = 60.0


class Block(NamedTuple):
    """A code block of a document."""

    path: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """The file and line of the block."""
        return f"{self.path.name}:{self.line}"

    @property
    def installs(self) -> bool:
        """True if it sets up an environment of its own."""
        return "pip install" in self.text


def blocks(path: Path) -> list[Block]:
    """Return the code blocks of a document in order, without Sphinx's directives."""
    text = path.read_text()
    return [
        Block(path, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in _BLOCK.finditer(text)
        if not match[1].startswith("{")
    ]


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block.

    One may go on over lines that end in a backslash, or up to the ``END`` of its ``<<END``.
    """
    lines = iter(block.text.replace("\\\n", " ").splitlines())
    found = []
    for line in lines:
        if "<<END" in line:
            found.append("\n".join([line, *takewhile(lambda each: each != "END", lines), "END"]))
        elif line.strip() and not line.startswith("#"):
            found.append(line)
    return found


class Runner:
    """Runs blocks in a folder; ``printed`` holds what shell commands wrote."""

    def __init__(self, folder: Path) -> None:
        self.printed = ""
        self._folder = folder
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._staying: list[subprocess.Popen[bytes]] = []

    def run(self, block: Block) -> None:
        """Run a block; raises where it fails."""
        if block.language == "python":
            # With the empty lines before it, a traceback names the document's own line.
            source = "\n" * block.line + block.text
            exec(compile(source, str(block.path), "exec"), self._names)  # noqa: S102
        elif block.language == "sh" and not block.installs:
            for command in commands(block):
                self._command(command)

    def _command(self, command: str) -> None:
        print(f"$ {command}", flush=True)  # noqa: T201
        stays = next((mark for start, mark in STAYS.items() if command.startswith(start)), None)
        if stays is not None:
            self._start(command, stays)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )
        print(done.stdout, flush=True)  # noqa: T201
        self.printed += done.stdout
        if done.returncode != 0:
            raise SystemExit(f"{command} ended with status {done.returncode}")

    def _start(self, command: str, mark: str) -> None:
        log = self._folder / f"output-{len(self._staying)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._staying.append(process)
        deadline = time.monotonic() + _WAIT_S
        while mark not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command} did not get ready:\n{log.read_text()}")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop what stayed, the last one first."""
        for process in reversed(self._staying):
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_S)


def drawn_rows(documents: Sequence[Path]) -> list[list[str]]:
    """Return the rows of a group that ``text`` blocks show, as words."""
    texts = [each.text for path in documents for each in blocks(path) if each.language == "text"]
    return [line.split() for line in "\n".join(texts).splitlines() if line.startswith("orders-")]


def main(folder: Path, documents: Sequence[Path]) -> None:
    """Run the documents; the rows that they draw have to be among what was printed."""
    os.chdir(folder)
    runner = Runner(folder)
    with closing(runner):
        for path in documents:
            for block in blocks(path):
                print(f"--- {block.place} {block.language}", flush=True)  # noqa: T201
                runner.run(block)
    printed = [line.split() for line in runner.printed.splitlines()]
    for row in drawn_rows(documents):
        if not any(words[: len(row)] == row for words in printed):
            raise SystemExit(f"no command printed the row {' '.join(row)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
