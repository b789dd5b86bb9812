"""The thin client: hands offsets to the service; the standard library alone."""

from __future__ import annotations

from offsetmgr.client.client import OffsetClient

__all__ = ["OffsetClient"]
