"""Offset managers of this process behind the client's methods, for a job without the service."""

from __future__ import annotations

from offsetmgr.local.offsets import LocalOffsets

__all__ = ["LocalOffsets"]
