"""What the demo shows: steps, claims and progress; plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GUTTER: Final = "   │ "
_MIN_WIDTH: Final = 20


class Claim(NamedTuple):
    """Something the demo says, and whether it was found to be so."""

    text: str
    holds: bool
    found: str
    """What was found instead, where it does not hold."""


class Screen:
    """Writes to the terminal and keeps the claims."""

    def __init__(self, console: Console | None = None) -> None:
        """``console`` is standard output where none is given."""
        self._console = console or Console(highlight=False, soft_wrap=True)
        # A file or a pipe has no width: its lines stay whole.
        self._width = self._console.width if self._console.is_terminal else sys.maxsize
        self._steps = 0
        self._began = time.monotonic()
        self.claims: list[Claim] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the screen was made."""
        return time.monotonic() - self._began

    def title(self, text: str) -> None:
        """What this is, in a line or two."""
        self._console.print(f"[bold]{escape(text)}[/bold]")

    def step(self, text: str) -> None:
        """A new step begins."""
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}. {escape(text)}[/bold cyan]")

    def say(self, text: str) -> None:
        """A line that explains."""
        self._console.print(f"   {escape(text)}")

    def quote(self, text: str) -> None:
        """What somebody else printed; long lines go on in the next."""
        for line in text.strip("\n").splitlines():
            width = max(_MIN_WIDTH, self._width - len(_GUTTER))
            for piece in textwrap.wrap(line, width, break_on_hyphens=False) or [""]:
                self._console.print(f"[dim]{_GUTTER}[/dim]{escape(piece)}")

    def quote_table(self, text: str) -> None:
        """A table that somebody else printed; what does not fit is cut off."""
        for line in text.strip("\n").splitlines():
            row = f"{_GUTTER}{line}"
            shown = row if len(row) <= self._width else f"{row[: self._width - 1]}…"
            self._console.print(escape(shown))

    def check(self, text: str, *, holds: bool, found: object = "") -> None:
        """Make a claim that was checked; ``found`` says what is wrong where it does not hold."""
        claim = Claim(text, holds, str(found))
        self.claims.append(claim)
        self._console.print(claim_line(claim, "   "))

    def panel(self, text: str, *, good: bool) -> None:
        """The last word, in a frame."""
        style = "green" if good else "red"
        panel = Panel(text, border_style=style, expand=False)
        self._console.print("", panel, sep="\n", soft_wrap=False)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show that something takes a moment."""
        if not self._console.is_terminal:
            self.say(text)
            yield
            return
        with self._console.status(f"{escape(text)}"):
            yield

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how far something has come; what is given is told the new position."""
        if not self._console.is_terminal:
            self.say(text)
            yield lambda _position: None
            return
        columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(escape(text), total=total)
            yield lambda position: progress.update(task, completed=position)


def claim_line(claim: Claim, indent: str) -> str:
    """A claim with its mark, and what was found where it does not hold."""
    if claim.holds:
        return f"{indent}[green]✔[/green] {escape(claim.text)}"
    return f"{indent}[bold red]✘ {escape(claim.text)}[/bold red]: {escape(claim.found)}"
