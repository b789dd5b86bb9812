"""Lookups in Spark's Python workers: rows from a view on their host, or from the topic itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError, OffsetTimeoutError
from offsetmgr.logs import SafeLogger
from offsetmgr.streams.errors import TopicsError, ViewError
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.storage import LmdbReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.streams.messages import Rows

log = SafeLogger("offsetmgr.streams")

RECOVERY_S: Final = 600.0
"""Longest wait of a lookup for the whole table."""

GROUP: Final = "offsetmgr-lookup"
"""Group of the consumers, which is never joined; ``group.id`` of the settings replaces it."""

_tables: Final[dict[tuple[str, str], TopicRows]] = {}
_stores: Final[dict[str, LmdbReader]] = {}
_unusable: Final[set[str]] = set()
"""Folders of stores that were named in the log, as they cannot be read."""
_lock: Final = threading.RLock()


def rows_of(kafka: Mapping[str, Any], topic: str, view: str | None = None) -> Rows:
    """Return the rows of a table, of the view whose store is at ``view`` if one runs on this host.

    Else they are read from the topic, once in this process, by threads that go on.  Returns once
    they are complete, so that an unreadable table fails no single message.  Raises TopicsError,
    OffsetTimeoutError.
    """
    store = None if view is None else _live_store(view, topic)
    if store is not None:
        return store
    key = (repr(sorted(map(_comparable, kafka.items()))), topic)
    with _lock:
        if key in _tables and _tables[key].reader.error is not None:
            _tables.pop(key).close()
        if key not in _tables:
            _tables[key] = TopicRows(kafka, topic)
        rows = _tables[key]
    rows.wait()
    return rows


def _comparable(setting: tuple[str, Any]) -> tuple[str, object]:
    """Return a setting as another task has it: each has callbacks that are objects of its own."""
    name, value = setting
    if isinstance(value, (str, int, float)):
        return setting
    return name, getattr(value, "__qualname__", type(value).__qualname__)


class ViewRows:
    """The rows in the store of a view on this host.  All methods raise as ``rows_of``."""

    def __init__(self, store: LmdbReader) -> None:
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        row = self._store.get(key)
        # The table may have been recreated since the batch began, and is not read yet.
        if row is None and not self._store.complete:
            if not self.wait():
                text = f"the view at {self._store.path} has ended before it had read its table"
                raise TopicsError(text)
            row = self._store.get(key)
        return row

    def wait(self) -> bool:
        """Return True once the view has read its table, and False if it does not run."""
        for _ in Deadline(RECOVERY_S).polls():
            if not self._store.live:
                return False
            if self._store.complete:
                return True
        table = f"the table {self._store.topic} within {RECOVERY_S:.0f} s"
        raise OffsetTimeoutError(f"the view at {self._store.path} has not read {table}")


def _live_store(path: str, topic: str) -> ViewRows | None:
    """Return the store of a view that runs, once it has read its table; None where none runs."""
    with _lock:
        if path in _stores and _stores[path].deleted:
            _stores.pop(path).close()
        try:
            store = _stores[path] = _stores.get(path) or LmdbReader(path)
        except ViewError as error:
            # Without a cause there is no file, as the view has not started.
            if path not in _unusable and error.__cause__ is not None:
                _unusable.add(path)
                log.warning("%s is read from its topic: %s", topic, error)
            return None
    if store.topic != topic:
        text = f"the view's store at {path} has the rows of {store.topic}, not of {topic}"
        raise TopicsError(f"{text}: correct lookup_views")
    rows = ViewRows(store)
    return rows if rows.wait() else None


class TopicRows:
    """The committed rows of a topic, in memory.  All methods raise as ``rows_of``."""

    def __init__(self, kafka: Mapping[str, Any], topic: str) -> None:
        from offsetmgr.streams.table_reader import TableReader  # noqa: PLC0415 -- confluent-kafka

        self._topic = topic
        self._storage = MemoryStorage()
        self.reader = TableReader(kafka, topic, self._storage, group=GROUP, until_stable=True)
        try:
            self.reader.start()
        except OffsetManagerError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        self.reader.stop(RECOVERY_S)

    def get(self, key: bytes) -> bytes | None:
        self.wait()
        return self._storage.get(key)

    def wait(self) -> None:
        """Wait until all was read that the topic held at first, or when it was recreated."""
        caught_up = self.reader.caught_up
        if not caught_up.is_set() and not caught_up.wait(RECOVERY_S):
            why = self.reader.trouble or "Kafka is slow"
            text = f"the lookup table {self._topic} was not read within {RECOVERY_S:.0f} s: {why}"
            raise OffsetTimeoutError(text)
        if self.reader.error is not None:
            raise self._unreadable(self.reader.error) from self.reader.error

    def _unreadable(self, error: Exception) -> TopicsError:
        return TopicsError(f"the lookup table {self._topic} cannot be read: {error}")
