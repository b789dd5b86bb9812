"""The thin client: hands offsets to the service; the standard library alone."""

from __future__ import annotations

from offsetmgr.client.client import OffsetClient
from offsetmgr.client.handle import ManagerHandle
from offsetmgr.types import FlushResult, PartitionRange, Uncommitted

__all__ = ["FlushResult", "ManagerHandle", "OffsetClient", "PartitionRange", "Uncommitted"]
