"""The service: offset managers over HTTP, with health, metrics and event streams."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the installed version of the package."""
    return metadata.version("offsetmgr")
