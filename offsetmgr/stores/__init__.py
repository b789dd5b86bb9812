"""The one door for the offsets of a group: in Kafka, of managers, in a database, in memory."""

from __future__ import annotations

from collections.abc import Mapping

from offsetmgr.client.offsets import Offsets
from offsetmgr.errors import InvalidValueError
from offsetmgr.extras import install_hint, package_of
from offsetmgr.stores.base import ManagerStore, MemoryOffsetStore, OffsetStore
from offsetmgr.text import MASK
from offsetmgr.types import check_callable

__all__ = ["MemoryOffsetStore", "OffsetStore", "open_store"]


def open_store(
    store: str | Mapping[str, object] | OffsetStore | Offsets, *, patience_s: float = 10.0
) -> OffsetStore:
    """Return the store at a URL; it connects at its first use.

    ``kafka://host:port`` is Kafka itself, ``memory:`` a new store in memory.  All other URLs are
    SQLAlchemy's, such as ``postgresql+psycopg://user@host/database`` or
    ``sqlite:///offsets.db``.  A mapping has librdkafka's settings of a Kafka.  A LocalOffsets or
    OffsetClient becomes a store whose managers commit.  A store is returned as it is.

    What a database fails to do is retried for ``patience_s`` seconds.  Raises InvalidValueError,
    also for a missing package, and for a store with ``async`` methods.
    """
    if isinstance(store, OffsetStore):
        for name in ("fetch", "commit", "claim", "release"):
            check_callable(getattr(store, name), f"{type(store).__name__}.{name}")
        return store
    if isinstance(store, Offsets):
        return ManagerStore(store)
    hint = "give a URL such as postgresql+psycopg://user@host/database, or an OffsetStore"
    if not isinstance(store, (str, Mapping)):
        raise InvalidValueError("store", store, "is not a store of offsets", hint)
    scheme, colon, rest = store.partition(":") if isinstance(store, str) else ("kafka", ":", "")
    if not colon:
        visible = MASK if set(str(store)) & set("@=? ") else store  # it may hold a password
        raise InvalidValueError("store", visible, "is not a URL", hint)
    if scheme == "memory":
        return MemoryOffsetStore()
    try:
        if not isinstance(store, str) or scheme == "kafka":
            from offsetmgr.stores.broker import BrokerOffsetStore  # noqa: PLC0415

            return BrokerOffsetStore(rest.removeprefix("//") if isinstance(store, str) else store)
        from offsetmgr.stores.sql import SqlOffsetStore  # noqa: PLC0415

        return SqlOffsetStore(store, patience_s=patience_s)
    except ModuleNotFoundError as error:
        problem = f"needs the package {package_of(error.name)}"
        raise InvalidValueError("store", scheme, problem, install_hint(error.name)) from error
