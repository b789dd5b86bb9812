"""What a newcomer takes away from the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.demo.screen import claim_line

if TYPE_CHECKING:
    from offsetmgr.demo.screen import Screen

_LEARNED = """\
Spark keeps its offsets to itself. With a sidecar and one line in the
driver, every lag tool sees the job's group, and a job that lost its
checkpoint resumes from it.
Next: README.md has the twelve lines a job of yours needs."""


def show_summary(screen: Screen) -> bool:
    """Show which claims hold; return whether all of them do."""
    failed = [claim for claim in screen.claims if not claim.holds]
    holding = len(screen.claims) - len(failed)
    lines = [f"{holding} of {len(screen.claims)} claims hold, after {screen.elapsed_s:.0f} s."]
    lines += [claim_line(claim, "") for claim in failed] or ["", _LEARNED]
    screen.panel("\n".join(lines), good=not failed)
    return not failed
