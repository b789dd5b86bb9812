"""Prints the demo's steps and claims; plain lines if the output is no terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

if TYPE_CHECKING:
    from rich.status import Status

_UNLIMITED: Final = 10_000
"""A file or a pipe has no width: its lines stay whole."""

_LEARNED: Final = """
Spark keeps its offsets to itself. With the service and one line in the
driver, every lag tool sees the job's group, and a job that lost its
checkpoint resumes from it.
Next: README.md has the twelve lines a job of yours needs."""


class Screen:
    """Prints to the terminal and counts the claims that hold."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        self._console = console if console.is_terminal else Console(width=_UNLIMITED)
        self._began = time.monotonic()
        self._steps = 0
        self._claims = 0
        self.failed: list[str] = []

    def step(self, text: str) -> None:
        self._steps += 1
        self._console.print(Text(f"\n{self._steps}. {text}", style="bold cyan"))

    def say(self, text: str) -> None:
        self._print(Text(text))

    def quote(self, text: str) -> None:
        """Print the words of another program."""
        for line in text.strip("\n").splitlines():
            self._print(Text(line, style="dim"), indent=6)

    def check(self, claim: str, *, holds: bool, found: object) -> None:
        """Print a claim; if it does not hold, ``found`` says what is true instead."""
        self._claims += 1
        if not holds:
            self.failed.append(f"✘ {claim}: {found}")
        text = f"✔ {claim}" if holds else self.failed[-1]
        self._print(Text(text, style="green" if holds else "bold red"))

    def summary(self) -> None:
        """Print, in a frame, how many claims hold, and which do not."""
        took_s = time.monotonic() - self._began
        holding = self._claims - len(self.failed)
        first = f"{holding} of {self._claims} claims hold, after {took_s:.0f} s."
        text = Text("\n".join([first, *(self.failed or [_LEARNED])]))
        panel = Panel(text, border_style="red" if self.failed else "green", expand=False)
        self._console.print("", panel, sep="\n")

    def busy(self, text: str) -> Status:
        """Show that something takes a moment; the answer's ``update`` shows how far it is."""
        if not self._console.is_terminal:
            self.say(text)
        return self._console.status(text)

    def _print(self, text: Text, indent: int = 3) -> None:
        self._console.print(Padding(text, (0, 0, 0, indent), expand=False))
