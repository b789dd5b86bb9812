"""Prints the answers of commands: a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from offsetmgr.cli.options import OutputOptions
from offsetmgr.service.logs import visible

_GAP = "  "

_ENDLESS = 10_000
"""Columns of an output that is no terminal: nothing is cut there."""


def console() -> Console:
    """Return what prints for people: coloured and cut to its width on a terminal alone."""
    width = None if sys.stdout.isatty() else _ENDLESS
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_answer(
    output: OutputOptions, answer: object, heads: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Print ``answer`` as JSON, or ``rows`` as CSV or as a table."""
    if output.as_json:
        print_json(answer)
    elif output.as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)
    else:
        print_table(heads, rows)


def print_json(answer: object) -> None:
    print(json.dumps(answer, indent=2, default=str))


def records(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return the rows as JSON objects, by their heads."""
    return [dict(zip(heads, row, strict=True)) for row in rows]


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    styles: Mapping[str, str] | None = None,
    whole: Sequence[str] = (),
) -> None:
    """Print a table; numbers stand on the right, None is a dash, a column without text is left out.

    ``styles`` colours the rows whose last cell is one of its keys.  On a narrow terminal cells are
    folded, except in the columns ``whole``.
    """
    columns = range(len(heads))
    kept = [index for index in columns if not rows or any(row[index] != "" for row in rows)]
    heads = [heads[index].replace("_", " ") for index in kept]
    rows = [[row[index] for index in kept] for row in rows]
    shown = [["-" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    right = [any(isinstance(row[index], int) for row in rows) for index in range(len(heads))]
    widths = [max(map(cell_len, column)) for column in zip(heads, *shown, strict=True)]
    out = console()
    if sum(widths) + len(_GAP) * len(widths) > out.width:
        _print_folded(out, heads, shown, right, styles or {}, whole)
        return
    # Many times as quick as rich's own tables, which matters from some thousands of rows on.
    for row in (heads, *shown):
        cells = [
            " " * (width - cell_len(cell)) + cell if to_right else set_cell_size(cell, width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        line, style = _GAP.join(cells).rstrip(), (styles or {}).get(row[-1])
        if row is heads or style:
            out.print(line, style=style or "bold")
        else:
            print(line)


def _print_folded(
    out: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    styles: Mapping[str, str],
    whole: Sequence[str],
) -> None:
    """Print a table that is too wide, with its longest cells on several lines."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head, to_right in zip(heads, right, strict=True):
        side: Literal["left", "right"] = "right" if to_right else "left"
        table.add_column(head, justify=side, overflow="fold", no_wrap=head in whole)
    for row in rows:
        table.add_row(*row, style=styles.get(row[-1]))
    out.print(table)
