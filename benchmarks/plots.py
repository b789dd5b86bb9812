"""The plots of docs/benchmarks.md: SVG for light and dark, of what the benchmarks measured last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

FIGURES: Final = ROOT / "benchmarks" / "figures.json"
PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 820
LEFT, RIGHT, TOP, ROW = 190, 690, 30, 26

_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-labelledby="title"
  font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
  <title id="title">{title}</title>
  <style>
    .page {{ fill: #ffffff }} text {{ fill: #4d5663 }} .name, .ours-text {{ fill: #16191d }}
    .ours {{ fill: #0b57a4 }} .peer {{ fill: #8a94a3 }}
    .name {{ font-weight: 600 }} .end {{ text-anchor: end }}
    @media (prefers-color-scheme: dark) {{
      .page {{ fill: #0f1318 }} text {{ fill: #b3bcc8 }} .name, .ours-text {{ fill: #eef1f5 }}
      .ours {{ fill: #77b3f2 }} .peer {{ fill: #7c8796 }}
    }}
  </style>
  <rect class="page" width="{width}" height="{height}"/>
"""


def record(name: str, figures: Mapping[str, Any]) -> None:
    """Keep the figures of a benchmark in place of its last ones, and draw all plots."""
    known = json.loads(FIGURES.read_text())
    known[name] = figures
    FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    times = {"ms to commit so many partitions of a group": known["commits"]}
    _write("bench-commits", "Time of a commit of one group's partitions", times)
    rates = {
        "Counting keys, messages/s": known["streams"],
        "Consuming and acknowledging one by one, messages/s": known["consumers"],
    }
    _write("bench-peers", "Messages per second, compared with others", rates)


def _write(name: str, title: str, panels: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a panel of bars for each kind of work."""
    parts, y = [], TOP
    for panel, figures in panels.items():
        parts.append(_text(LEFT, y - 10, panel, "name"))
        for label, figure in figures.items():
            kind = "ours" if label.startswith("offset") else "peer"
            across = max(1, figure / max(figures.values()) * (RIGHT - LEFT))
            parts.append(_text(LEFT - 10, y + 14, label, f"end {kind}-text"))
            bar = f'x="{LEFT}" y="{y}" width="{across:.0f}" height="{ROW - 8}"'
            parts.append(f'<rect class="{kind}" {bar}/>')
            parts.append(_text(LEFT + across + 10, y + 14, f"{figure:,}", f"{kind}-text"))
            y += ROW
        y += 40
    head = _HEAD.format(width=WIDTH, height=y - 40, title=title)
    text = "".join(f"  {part}\n" for part in parts)
    (PICTURES / f"{name}.svg").write_text(f"{head}{text}</svg>\n")


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.0f}" y="{y:.0f}">{text}</text>'
