"""The phases of an actor's life.

NEW ──► CREATED ──► RUNNING ──────────────► STOPPING ──► DEAD
                      │  ▲                     ▲
              failure ▼  │ fresh instance      │ the policy or the parent gives up
                   SUSPENDED ──► RESTARTING ───┘ (an attempt that fails is SUSPENDED again)
"""

from __future__ import annotations

import enum

__all__ = ["Phase"]


class Phase(enum.Enum):
    """Where an actor is in its life."""

    NEW = enum.auto()
    """Its constructor runs."""

    CREATED = enum.auto()
    """Constructed; `on_start` comes with its first turn."""

    RUNNING = enum.auto()
    """Handles messages."""

    SUSPENDED = enum.auto()
    """It failed: waits for the parent's decision, then for the end of the backoff."""

    RESTARTING = enum.auto()
    """Waits until its children stopped, to be constructed afresh."""

    STOPPING = enum.auto()
    """Waits until its children stopped, to run `on_stop`. Messages are refused."""

    DEAD = enum.auto()
    """Over."""

    @property
    def takes_children(self) -> bool:
        """Whether a child may be spawned."""
        return self in {Phase.CREATED, Phase.RUNNING, Phase.SUSPENDED}

    @property
    def awaits_children(self) -> bool:
        """Whether the last child's end is what comes next."""
        return self in {Phase.RESTARTING, Phase.STOPPING}
