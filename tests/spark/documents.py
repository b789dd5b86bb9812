"""Runs the code blocks of documents in order, as a reader who copies them would.

``python documents.py FOLDER DOCUMENT...`` runs the blocks of all documents in ``FOLDER``: ``sh``
blocks line by line in a shell, ``python`` blocks in one interpreter with a prompt, into whose
terminal they are pasted.  A command that does not end by itself (see ``STAYS``) goes on in the
background until the end, and is not started twice.  The first failure ends the run, with the place
of its block.  Blocks that install the package are left out: ``scripts/first-hour.sh`` runs those.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NamedTuple

import offsetmgr.cli as command_line
import offsetmgr.cli.app
import offsetmgr.service.settings  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Sequence

STAYS = {
    "offsetmgr dev-kafka": "is ready",
    "offsetmgr serve": '"serving"',
    "offsetmgr view serve": '"serving"',
    "examples/shop/run.sh": "The page: ",
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


class Prompt:
    """Python's own prompt in a terminal, as a user has it who types ``python``."""

    def __init__(self, folder: Path) -> None:
        self._terminal, child = pty.openpty()
        self._python = subprocess.Popen(
            [sys.executable, "-q"],
            cwd=folder,
            env={**os.environ, "TERM": "xterm"},
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self._pastes = 0
        self._brackets = False

    def paste(self, text: str) -> str:
        """Paste a block and press Enter; return the terminal's text.

        Raises SystemExit with that text if the prompt reports an exception: the lines behind it
        run all the same, as in any prompt.
        """
        self._pastes += 1
        # The prompt echoes this line, so that the text to wait for must not be in it.
        question = f'import sys; print("pasted", {self._pastes}, hasattr(sys, "last_value"))\n'
        block = f"\x1b[200~{text}\x1b[201~\n" if self._brackets else f"{text}\n"
        shown = self._exchange(block + question, f"pasted {self._pastes} (True|False)")
        if shown.endswith("True"):
            raise SystemExit(shown)
        return shown

    def _exchange(self, text: str, mark: str) -> str:
        waiting, shown = text.encode(), b""
        deadline = time.monotonic() + _WAIT_S
        while not (end := re.search(mark.encode(), shown)):
            terminal = [self._terminal]
            left_s = max(0.0, deadline - time.monotonic())
            readable, writable, _ = select.select(terminal, terminal * bool(waiting), [], left_s)
            try:
                if writable:
                    waiting = waiting[os.write(self._terminal, waiting[:512]) :]
                if readable:
                    shown += os.read(self._terminal, 65_536)
            except OSError as error:
                raise SystemExit(f"python has ended: {shown.decode(errors='replace')}") from error
            if time.monotonic() > deadline:
                raise SystemExit(f"python did not answer: {shown.decode(errors='replace')}")
        # Python 3.13 tells the terminal to mark what is pasted.
        self._brackets |= b"\x1b[?2004h" in shown
        return shown[: end.end()].decode(errors="replace")

    def close(self) -> None:
        """Leave the prompt, and wait until Python has ended."""
        with suppress(SystemExit):  # the terminal has ended
            self._exchange("exit()\n", "$.")
        self._python.wait(_STOP_S)
        os.close(self._terminal)


def run_command(command: str, output: int) -> int | None:
    """Run a command in this folder; return its exit status.

    One of ours that needs no shell runs in a fork of this process, which has imported it: forty
    starts of Python take half a minute of a processor.
    """
    if command.startswith("offsetmgr ") and not re.search(r"[|&;<>$`]", command):
        child = get_context("fork").Process(target=run_ours, args=(shlex.split(command), output))
        child.start()
        child.join(_WAIT_S)
        return child.exitcode
    shell = ["bash", "-c", command]
    nothing = subprocess.DEVNULL
    done = subprocess.run(
        shell, stdin=nothing, stdout=output, stderr=output, timeout=_WAIT_S, check=False
    )
    return done.returncode


def run_ours(words: list[str], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = words
    command_line.main()


class Runner:
    """Runs blocks in a folder; ``printed`` holds what shell commands wrote."""

    def __init__(self, folder: Path) -> None:
        self.printed = ""
        self._folder = folder
        self._prompt = Prompt(folder)
        self._staying: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, block: Block) -> None:
        """Run a block; raises where it fails."""
        if block.language == "python":
            print(self._prompt.paste(block.text), flush=True)  # noqa: T201
        elif block.language == "sh" and not block.installs:
            for command in commands(block):
                self._command(command)

    def _command(self, command: str) -> None:
        print(f"$ {command}", flush=True)  # noqa: T201
        stays = next((mark for start, mark in STAYS.items() if command.startswith(start)), None)
        if stays is not None:
            if command not in self._staying:
                self._start(command, stays)
            return
        with TemporaryFile("w+") as output:
            status = run_command(command, output.fileno())
            output.seek(0)
            printed = output.read()
        print(printed, flush=True)  # noqa: T201
        self.printed += printed
        if status != 0:
            raise SystemExit(f"{command} ended with status {status}")

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
        self._staying[command] = process
        deadline = time.monotonic() + _WAIT_S
        while mark not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command} did not get ready:\n{log.read_text()}")
            time.sleep(0.1)

    def close(self) -> None:
        """Leave Python, then stop what stayed, the last one first."""
        self._prompt.close()
        for process in reversed(self._staying.values()):
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
