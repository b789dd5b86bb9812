"""The live view of groups: what it shows, what its keys do, and the terminal it runs in."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from offsetmgr.admin.times import seconds_text
from offsetmgr.cli.common import table_lines
from offsetmgr.text import visible

HELP: Final = "q quit  l b i o c s n sort  p partitions  / filter  j k page"

COLUMNS: Final = "LAG", "BEHIND", "IN/s", "OUT/s", "CATCH-UP", "STATUS", "ERRORS"
_SUSPEND: Final = "\x1a"
"""Ctrl-Z."""
_HEADER_LINES: Final = 4
_NAME_CHARS: Final = 8
"""Kept for each name on a narrow terminal, before any number."""
_BAD: Final = {
    "WARN": "yellow",
    **dict.fromkeys(("ERR", "STOP", "STALL", "REWIND", "OUT OF RANGE"), "red"),
}
_BY_STATUS: Final = {status: number for number, status in enumerate(("OK", *_BAD))}


class TopRow(NamedTuple):
    """A group, or a partition of one, as the answer has it."""

    names: tuple[str, ...]
    """Group, or group and topic."""
    values: Mapping[str, Any]

    @property
    def catch_up_s(self) -> float | None:
        """Infinite where the lag does not shrink."""
        seconds: float | None = self.values["catch_up_seconds"]
        known = None not in (self.values[name] for name in ("lag", "rate_in", "rate_out"))
        return math.inf if seconds is None and known else seconds

    def cells(self) -> list[object]:
        """Return all but the names, for a table."""
        values = self.values
        rates = (values["rate_in"], values["rate_out"])
        catch_up = "never" if self.catch_up_s == math.inf else seconds_text(self.catch_up_s)
        failed = sum(1 for each in values.get("partitions", ()) if each["error"])
        note = f"{failed} failed" if failed else ""
        return [
            *([values["partition"]] if "partition" in values else []),
            values["lag"],
            seconds_text(values["lag_seconds"]) or None,
            *(None if rate is None else round(rate, 1) for rate in rates),
            catch_up or None,
            values["status"] or "",
            values["error"]["code"] if values["error"] else note,
        ]


class TopView(NamedTuple):
    """The view chosen by keys."""

    sort: str = "l"
    partitions: bool = False
    filter: str = ""
    typing: bool = False
    """True while the filter is being typed."""
    page: int = 0
    ended: bool = False


_SORTS: Final[Mapping[str, Callable[[TopRow], Any]]] = {
    "l": lambda row: -(row.values["lag"] or 0),
    "b": lambda row: -(row.values["lag_seconds"] or 0),
    "i": lambda row: -(row.values["rate_in"] or 0),
    "o": lambda row: -(row.values["rate_out"] or 0),
    "c": lambda row: -(row.catch_up_s or 0),
    "s": lambda row: -_BY_STATUS.get(row.values["status"], -1),
    "n": lambda row: (row.names, row.values.get("partition")),
}


def pressed(view: TopView, key: str) -> TopView:
    """Return the view after a key is pressed."""
    if view.typing:
        if key in "\r\n\x1b":
            return view._replace(typing=False)
        text = view.filter[:-1] if key in "\x7f\b" else view.filter + key
        return view._replace(filter=text, page=0)
    if key in _SORTS:
        return view._replace(sort=key, page=0)
    changes: dict[str, dict[str, Any]] = {
        "p": {"partitions": not view.partitions, "page": 0},
        "/": {"typing": True, "filter": "", "page": 0},
        "j": {"page": view.page + 1},
        "k": {"page": max(view.page - 1, 0)},
        "q": {"ended": True},
    }
    return view._replace(**changes.get(key, {}))


def rows_of(answer: Mapping[str, Any], view: TopView) -> list[TopRow]:
    """Return the rows to show, filtered and sorted."""
    rows = [TopRow((group["name"],), group) for group in answer["groups"]]
    if view.partitions:
        rows = [
            TopRow((group["name"], partition["topic"]), partition)
            for group in answer["groups"]
            for partition in group["partitions"]
        ]
    wanted = [row for row in rows if view.filter.lower() in " ".join(row.names).lower()]
    wanted.sort(key=_SORTS["n"])
    wanted.sort(key=_SORTS[view.sort])
    return wanted


def drawn(
    answer: Mapping[str, Any], view: TopView, width: int, height: int, trouble: str = ""
) -> RenderableType:
    """Return what stands on a terminal of this size."""
    rows = rows_of(answer, view)
    room = max(height - _HEADER_LINES, 1)
    pages = max(math.ceil(len(rows) / room), 1)
    page = min(view.page, pages - 1)
    behind = sum(row.values["lag"] or 0 for row in rows)
    bad = sum(1 for row in rows if row.values["status"] in _BAD)
    what = "partitions" if view.partitions else "groups"
    counts = f"{len(rows):,} {what}, {bad:,} in trouble, {behind:,} records behind"
    head = Text(f"{counts}  page {page + 1}/{pages}", style="bold")
    if view.typing or view.filter:
        line = Text(f"filter: {view.filter}{'_' if view.typing else ''}", style="yellow")
    else:
        line = Text(trouble or HELP, style="red" if trouble else "dim")
    names = ("GROUP", "TOPIC") if view.partitions else ("GROUP",)
    columns = ("PARTITION", *COLUMNS) if view.partitions else COLUMNS
    shown = rows[page * room : (page + 1) * room]
    numbers = table_lines(columns, [row.cells() for row in shown])
    # The numbers are seen; names get what they leave.
    most = max((width - max(map(len, numbers))) // len(names) - 3, _NAME_CHARS)
    labels = table_lines(names, [[_cut(name, most) for name in row.names] for row in shown])
    wide = max(map(cell_len, labels))
    styles = ["bold reverse", *(_BAD.get(row.values["status"], "") for row in shown)]
    lines = [
        Text(f"{set_cell_size(label, wide)}  {number}", style=style)
        for label, number, style in zip(labels, numbers, styles, strict=True)
    ]
    for each in (head, line, *lines):
        each.truncate(width, overflow="ellipsis")
    return Group(head, line, *lines)


def _cut(name: str, most: int) -> str:
    """Return a name that takes at most so many places of a terminal."""
    text = Text(visible(name, most))
    text.truncate(most, overflow="ellipsis")
    return text.plain


def is_possible() -> bool:
    """Return True if this terminal can show it; a dumb one would show nothing."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal


def run(look: Callable[[], dict[str, Any]], interval_s: float) -> None:
    """Show ``look`` on this terminal, read every ``interval_s`` seconds, until q is pressed."""
    seen: dict[str, Any] = {"groups": []}
    trouble = "reading…"
    ended = threading.Event()

    def read() -> None:
        """Read until the end; what fails is shown, and tried again."""
        nonlocal seen, trouble
        while not ended.is_set():
            due_s = time.monotonic() + interval_s
            try:
                seen = look()
                missing = (each["message"] for each in seen.get("errors", ()))
                trouble = visible("; ".join(missing))
            except Exception as error:  # noqa: BLE001 -- old numbers must not look new
                trouble = visible(str(error)) or type(error).__name__
            ended.wait(max(due_s - time.monotonic(), 0.1))

    threading.Thread(target=read, name="top", daemon=True).start()
    view, out = TopView(), Console(markup=False, emoji=False)

    def draw() -> RenderableType:
        return drawn(seen, view, out.width, out.height, trouble)

    while not view.ended:
        with _silent_keys(), Live(console=out, screen=True, get_renderable=draw) as live:
            for key in iter(lambda: sys.stdin.read(1) or "q", _SUSPEND):
                view = pressed(view, key)
                live.refresh()
                if view.ended:
                    break
        if not view.ended:
            os.kill(0, signal.SIGTSTP)  # the whole job, as the terminal would; goes on with fg
    ended.set()


@contextlib.contextmanager
def _silent_keys() -> Iterator[None]:
    """Have the terminal pass each key on at once, and echo none, until the end or SIGTERM.

    Ctrl-Z is a key too: a process that it suspends would leave the terminal like that.
    """
    before = termios.tcgetattr(sys.stdin)
    signal.signal(signal.SIGTERM, lambda caught, _: sys.exit(128 + caught))
    tty.setcbreak(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[-1][termios.VSUSP] = b"\0"
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
