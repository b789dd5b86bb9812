"""Prints the demo's steps and claims; plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNLIMITED: Final = 10_000
"""A file or a pipe has no width: its lines stay whole."""

_LEARNED: Final = """
Spark keeps its offsets to itself. With a sidecar and one line in the
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
        self._failed: list[str] = []

    @property
    def all_hold(self) -> bool:
        """True if every claim so far was found to hold."""
        return not self._failed

    def step(self, text: str) -> None:
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}. {escape(text)}[/bold cyan]")

    def say(self, *lines: str) -> None:
        for line in lines:
            self._print(escape(line))

    def quote(self, text: str, *, is_table: bool = False) -> None:
        """Print somebody's words; of a table, what does not fit is cut off."""
        for line in text.strip("\n").splitlines():
            quoted = Text(line, style="dim", no_wrap=is_table, overflow="ellipsis")
            self._console.print(Padding(quoted, (0, 0, 0, 6), expand=False))

    def check(self, text: str, *, holds: bool, found: object) -> None:
        """Print a claim; ``found`` says what is so instead, where it does not hold."""
        self._claims += 1
        if holds:
            line = f"[green]✔[/green] {escape(text)}"
        else:
            line = f"[bold red]✘ {escape(text)}[/bold red]: {escape(str(found))}"
            self._failed.append(line)
        self._print(line)

    def summary(self) -> None:
        """Print, in a frame, how many claims hold, and which do not."""
        took_s = time.monotonic() - self._began
        holding = self._claims - len(self._failed)
        first = f"{holding} of {self._claims} claims hold, after {took_s:.0f} s."
        text = "\n".join([first, *(self._failed or [_LEARNED])])
        panel = Panel(text, border_style="green" if self.all_hold else "red", expand=False)
        self._console.print("", panel, sep="\n")

    def busy(self, text: str) -> contextlib.AbstractContextManager[object]:
        """Show that something takes a moment."""
        if self._console.is_terminal:
            return self._console.status(escape(text))
        self.say(text)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how far something has come; what is given takes the new position."""
        columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn())
        shown = self._console.is_terminal
        if not shown:
            self.say(text)
        with Progress(*columns, console=self._console, transient=True, disable=not shown) as bar:
            task = bar.add_task(escape(text), total=total)
            yield lambda position: bar.update(task, completed=position)

    def _print(self, markup: str) -> None:
        self._console.print(Padding(markup, (0, 0, 0, 3), expand=False))
