"""Offset managers: one actor per group/topic/partition, committed group by group."""

from __future__ import annotations

from offsetmgr.extras import naming_extra

with naming_extra(__name__):
    from offsetmgr.manager.factory import Factory
    from offsetmgr.manager.handle import ManagerHandle
    from offsetmgr.manager.observer import NO_OBSERVER, Observer
    from offsetmgr.manager.offset_manager import ManagerStatus, Submission

__all__ = [
    "NO_OBSERVER",
    "Factory",
    "ManagerHandle",
    "ManagerStatus",
    "Observer",
    "Submission",
]
