"""The installed version, found without importing the service."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """As the package's metadata has it."""
    try:
        return metadata.version("offsetmgr")
    except metadata.PackageNotFoundError:  # run from a checkout that was not installed
        return "0+unknown"
