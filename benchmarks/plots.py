"""The plots of docs/benchmarks.md: SVG for light and dark, of what the benchmarks measured last."""

from __future__ import annotations

import json
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

FIGURES: Final = ROOT / "benchmarks" / "figures.json"
PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 820
LEFT, RIGHT, TOP, DECADE, ROW = 120, 620, 30, 100, 26

_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-labelledby="title"
  font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
  <title id="title">{title}</title>
  <style>
    .page {{ fill: #ffffff }} text {{ fill: #4d5663 }} .name, .ours-text {{ fill: #16191d }}
    .grid {{ stroke: #dde2e8 }} .ours {{ fill: #0b57a4; stroke: #0b57a4 }}
    .peer {{ fill: #8a94a3; stroke: #8a94a3 }} polyline {{ fill: none !important; stroke-width: 2 }}
    .name {{ font-weight: 600 }} .end {{ text-anchor: end }} .middle {{ text-anchor: middle }}
    @media (prefers-color-scheme: dark) {{
      .page {{ fill: #0f1318 }} text {{ fill: #b3bcc8 }} .name, .ours-text {{ fill: #eef1f5 }}
      .grid {{ stroke: #2c343e }} .ours {{ fill: #77b3f2; stroke: #77b3f2 }}
      .peer {{ fill: #7c8796; stroke: #7c8796 }}
    }}
  </style>
  <rect class="page" width="{width}" height="{height}"/>
"""


def record(name: str, figures: Mapping[str, Any]) -> None:
    """Keep the figures of a benchmark in place of its last ones, and draw all plots."""
    known = json.loads(FIGURES.read_text())
    known[name] = figures
    FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    draw(known)


def draw(figures: Mapping[str, Any]) -> None:
    _write("bench-commits", "Time of a commit of one group's partitions", *_lines(figures))
    _write("bench-peers", "Messages per second, compared with others", *_bars(figures))


def _write(name: str, title: str, height: int, parts: list[str]) -> None:
    head = _HEAD.format(width=WIDTH, height=height, title=title)
    text = "".join(f"  {part}\n" for part in parts)
    (PICTURES / f"{name}.svg").write_text(f"{head}{text}</svg>\n")


def _text(x: float, y: float, text: str, classes: str = "") -> str:
    return f'<text class="{classes}" x="{x:.0f}" y="{y:.0f}">{text}</text>'


def _lines(figures: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return height and parts of the plot of commit times, both axes logarithmic."""
    lines: dict[str, dict[str, float]] = figures["commits"]
    all_ms = [ms for line in lines.values() for ms in line.values()]
    low, high = floor(log10(min(all_ms))), ceil(log10(max(all_ms)))
    bottom = TOP + DECADE * (high - low)
    sizes = [int(size) for size in next(iter(lines.values()))]
    step = (RIGHT - LEFT) / log10(sizes[-1] / sizes[0])

    def place(size: float, ms: float) -> tuple[float, float]:
        return LEFT + step * log10(size / sizes[0]), bottom - DECADE * (log10(ms) - low)

    parts = [_text(LEFT, TOP - 12, "ms to commit all partitions of a group", "name")]
    for power in range(low, high + 1):
        y = place(sizes[0], 10**power)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.0f}H{RIGHT}"/>')
        parts.append(_text(LEFT - 26, y + 4, f"{10**power:g} ms", "end"))
    parts += [_text(place(size, 1)[0], bottom + 20, f"{size:,}", "middle") for size in sizes]
    parts.append(_text((LEFT + RIGHT) / 2, bottom + 40, "partitions", "middle"))
    for name, line in lines.items():
        kind, up = ("ours", -10) if name == "offset managers" else ("peer", 20)
        points = [place(int(size), ms) for size, ms in line.items()]
        path = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
        for (x, y), ms in zip(points, line.values(), strict=True):
            parts.append(f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.1f}" r="3"/>')
            parts.append(_text(x, y + up, f"{ms:.3g}", f"middle {kind}-text"))
        parts.append(_text(RIGHT + 24, points[-1][1] + up / 2, name, f"{kind}-text"))
    return bottom + 55, parts


def _bars(figures: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return height and parts of the plot of rates, a panel for each kind of work."""
    parts, y = [], TOP
    panels = {"streams": "Counting keys", "consumers": "Consuming and acknowledging one by one"}
    for key, title in panels.items():
        rates: dict[str, float] = figures[key]
        parts.append(_text(LEFT, y - 10, f"{title}, messages/s", "name"))
        for name, rate in rates.items():
            kind, width = "ours" if name == "offsetmgr" else "peer", rate / max(rates.values())
            across = max(1, width * (RIGHT - LEFT))
            parts.append(_text(LEFT - 10, y + 14, name, f"end {kind}-text"))
            bar = f'x="{LEFT}" y="{y}" width="{across:.0f}" height="{ROW - 8}"'
            parts.append(f'<rect class="{kind}" {bar}/>')
            parts.append(_text(LEFT + across + 10, y + 14, f"{rate:,.0f}", f"{kind}-text"))
            y += ROW
        y += 40
    return y - 40, parts
