"""Offset stores: committed offsets in Kafka, in a database, or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import InvalidValueError
from offsetmgr.stores.base import MemoryOffsetStore, OffsetStore

if TYPE_CHECKING:
    from offsetmgr.stores.sql import SqlOffsetStore

__all__ = [
    "MemoryOffsetStore",
    "OffsetStore",
    "open_database",
    "open_store",
]


def open_store(url: str) -> OffsetStore:
    """Return the store at ``url``; it connects at its first use.

    ``kafka://host:port`` is Kafka itself, ``memory:`` a new store in memory.  All other URLs are
    SQLAlchemy's, such as ``postgresql+psycopg://user@host/database`` or
    ``sqlite:///offsets.db``.  Raises InvalidValueError, also for a missing package.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        fix = "give one such as postgresql+psycopg://user@host/database"
        raise InvalidValueError("store", url, "is no URL", fix)
    if scheme == "memory":
        return MemoryOffsetStore()
    if scheme == "kafka":
        from offsetmgr.stores.reader import BrokerOffsetStore  # noqa: PLC0415

        return BrokerOffsetStore(rest.removeprefix("//"))
    return open_database(url)


def open_database(url: str, *, patience_s: float = 10.0) -> SqlOffsetStore:
    """Return the store in a database; see SqlOffsetStore."""
    try:
        from offsetmgr.stores.sql import SqlOffsetStore  # noqa: PLC0415

        return SqlOffsetStore(url, patience_s=patience_s)
    except ModuleNotFoundError as error:
        fix = "pip install 'offsetmgr[sql]' installs SQLAlchemy and the driver of PostgreSQL"
        problem = f"needs the package {error.name}"
        raise InvalidValueError("database", url.partition(":")[0], problem, fix) from error
