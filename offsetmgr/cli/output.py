"""Prints the answers of the operator's commands: a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from offsetmgr.service.logs import visible

_ENDLESS = 10_000
"""Columns of an output that is no terminal: nothing is cut there."""


def console() -> Console:
    """Return what prints for people: coloured and cut to its width on a terminal alone."""
    width = None if sys.stdout.isatty() else _ENDLESS
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_json(answer: object) -> None:
    """Print one JSON document."""
    print(json.dumps(answer, indent=2, default=str))


def print_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a line of heads and one for each row; None is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print a table; numbers stand on the right, None is a dash.

    ``styles`` colours the rows whose last cell is one of its keys.
    """
    shown = [[_cell(each) for each in row] for row in rows]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, head in enumerate(heads):
        numbers = any(isinstance(row[index], int) for row in rows)
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    for row in shown:
        table.add_row(*row, style=(styles or {}).get(row[-1]))
    console().print(table)


def _cell(value: object) -> str:
    return "-" if value is None else visible(str(value))
