"""Print the life of a manager as a table for docs/internals.md, from ``manager/step.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from offsetmgr.manager.step import TRANSITIONS


def table() -> str:
    """Return the table in Markdown: a row for each event, a column for each phase."""
    events = list(dict.fromkeys(event for events in TRANSITIONS.values() for event in events))
    rows = [["event", *(phase.value for phase in TRANSITIONS)]]
    rows.append(["---"] * len(rows[0]))
    for event in events:
        steps = (steps[event].__name__.lstrip("_") for steps in TRANSITIONS.values())
        rows.append([f"`{event.__name__}`", *("" if s == "ignore" else f"`{s}`" for s in steps)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(table())
