"""The live view of groups: what it shows, what its keys do, and the terminal it runs in."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from offsetmgr.admin.times import seconds_text
from offsetmgr.cli.common import table_lines
from offsetmgr.text import visible

HELP: Final = "q quit  l b i o c s n sort  p partitions  / filter  j k page"

COLUMNS: Final = "LAG", "BEHIND", "IN/s", "OUT/s", "CATCH-UP", "STATUS", "ERRORS"
_HEADER_LINES: Final = 4
_NAME_CHARS: Final = 8
"""Kept for each name on a narrow terminal, before any number."""
_BAD: Final = {
    "WARN": "yellow",
    **dict.fromkeys(("ERR", "STOP", "STALL", "REWIND", "OUT OF RANGE"), "red"),
}
_BY_STATUS: Final = ("OK", *_BAD)


class TopRow(NamedTuple):
    """A group, or a partition of one."""

    names: tuple[str, ...]
    """Group, or group and topic."""
    partition: int | None
    lag: int | None
    behind_s: float | None
    rate_in: float | None
    rate_out: float | None
    catch_up_s: float | None
    """Infinite where the lag does not shrink."""
    status: str
    note: str

    def cells(self) -> list[object]:
        """Return all but the names, for a table."""
        rates = [None if rate is None else round(rate, 1) for rate in (self.rate_in, self.rate_out)]
        never = self.catch_up_s == math.inf
        catch_up = "never" if never else seconds_text(self.catch_up_s) or None
        behind = seconds_text(self.behind_s) or None
        number = [] if self.partition is None else [self.partition]
        return [*number, self.lag, behind, *rates, catch_up, self.status, self.note]


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
    "l": lambda row: -(row.lag or 0),
    "b": lambda row: -(row.behind_s or 0),
    "i": lambda row: -(row.rate_in or 0),
    "o": lambda row: -(row.rate_out or 0),
    "c": lambda row: -(row.catch_up_s or 0),
    "s": lambda row: -_BY_STATUS.index(row.status) if row.status in _BY_STATUS else 1,
    "n": lambda row: (row.names, row.partition),
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
    rows = []
    for group in answer["groups"]:
        partitions = group["partitions"]
        if view.partitions:
            for each in partitions:
                names = group["name"], each["topic"]
                rows.append(_row(names, each["partition"], each))
        else:
            failed = sum(1 for each in partitions if each["error"])
            rows.append(_row((group["name"],), None, group, f"{failed} failed" if failed else ""))
    wanted = [row for row in rows if view.filter.lower() in " ".join(row.names).lower()]
    wanted.sort(key=_SORTS["n"])
    wanted.sort(key=_SORTS[view.sort])
    return wanted


def _row(
    names: tuple[str, ...], partition: int | None, values: Mapping[str, Any], note: str = ""
) -> TopRow:
    lag, rate_in, rate_out = values["lag"], values["rate_in"], values["rate_out"]
    catch_up_s = values["catch_up_seconds"]
    if catch_up_s is None and None not in (lag, rate_in, rate_out):
        catch_up_s = math.inf
    behind_s, status = values["lag_seconds"], values["status"] or ""
    note = values["error"]["code"] if values["error"] else note
    return TopRow(names, partition, lag, behind_s, rate_in, rate_out, catch_up_s, status, note)


def drawn(
    answer: Mapping[str, Any], view: TopView, width: int, height: int, trouble: str = ""
) -> RenderableType:
    """Return what stands on a terminal of this size."""
    rows = rows_of(answer, view)
    room = max(height - _HEADER_LINES, 1)
    pages = max(math.ceil(len(rows) / room), 1)
    page = min(view.page, pages - 1)
    behind = sum(row.lag or 0 for row in rows)
    bad = sum(1 for row in rows if row.status in _BAD)
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
    most = max((width - max(map(len, numbers))) // len(names) - 2, _NAME_CHARS)
    labels = table_lines(names, [[visible(name, most) for name in row.names] for row in shown])
    wide = max(map(len, labels))
    styles = ["bold reverse", *(_BAD.get(row.status, "") for row in shown)]
    lines = [
        Text(f"{label.ljust(wide)}  {number}", style=style)
        for label, number, style in zip(labels, numbers, styles, strict=True)
    ]
    for each in (head, line, *lines):
        each.truncate(width, overflow="ellipsis")
    return Group(head, line, *lines)


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

    with _silent_keys(), Live(console=out, screen=True, get_renderable=draw) as live:
        while not view.ended:
            view = pressed(view, sys.stdin.read(1) or "q")
            live.refresh()
    ended.set()


@contextlib.contextmanager
def _silent_keys() -> Iterator[None]:
    """Have the terminal pass each key on at once, and echo none, until the end or SIGTERM."""
    before = termios.tcgetattr(sys.stdin)
    signal.signal(signal.SIGTERM, lambda caught, _: sys.exit(128 + caught))
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
