"""Lookups in Spark's Python workers: rows from a view on their host, or from the topic itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError, OffsetTimeoutError
from offsetmgr.streams.errors import TopicsError, ViewError
from offsetmgr.streams.storage import LmdbReader, MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.streams.messages import Rows

RECOVERY_S: Final = 600.0
"""Longest wait of a lookup for the whole table."""

GROUP: Final = "offsetmgr-lookup"
"""Group of the consumers, which is never joined; ``group.id`` of the settings replaces it."""

_tables: Final[dict[tuple[str, str], TopicRows]] = {}
_stores: Final[dict[str, LmdbReader]] = {}
_lock: Final = threading.RLock()


def rows_of(kafka: Mapping[str, Any], topic: str, view: str | None = None) -> Rows:
    """Return the rows of a table, of the view whose store is at ``view`` if one runs on this host.

    Else they are read once in this process from the topic, by threads that go on.  Returns once
    they are complete, so that an unreadable table fails no single message.  Raises TopicsError
    where the view is of another topic, or the topic cannot be read; OffsetTimeoutError where that
    takes longer than ``RECOVERY_S``.
    """
    store = None if view is None else _live_store(view, topic)
    if store is not None:
        return store
    key = (repr(sorted(kafka.items())), topic)
    with _lock:
        rows = _tables.get(key)
        if rows is not None and rows.failed:
            rows.close()
            rows = None
        if rows is None:
            rows = _tables[key] = TopicRows(kafka, topic)
    rows.wait()
    return rows


def _live_store(path: str, topic: str) -> LmdbReader | None:
    """Return the store of a view that runs, once it has read its table; None where none runs."""
    with _lock:
        store = _stores.get(path)
        if store is not None and store.deleted:
            _stores.pop(path).close()
            store = None
        try:
            store = _stores[path] = store or LmdbReader(path)
        except ViewError:  # of a view that has not started
            return None
    if store.topic != topic:
        text = f"the view's store at {path} has the rows of {store.topic}, not of {topic}"
        raise TopicsError(f"{text}: correct lookup_views")
    for _ in Deadline(RECOVERY_S).polls():
        if not store.live:
            return None
        if store.complete:
            return store
    text = f"the view at {path} has not read the table {topic} within {RECOVERY_S:.0f} s"
    raise OffsetTimeoutError(text)


class TopicRows:
    """The committed rows of a topic, in memory; up to date to within a fraction of a second.

    `wait` and `get` wait until all has been read that the topic held when reading began, also after
    the topic was recreated.  Both raise TopicsError and OffsetTimeoutError, as ``rows_of``.
    """

    def __init__(self, kafka: Mapping[str, Any], topic: str) -> None:
        """Raises TopicsError where the topic cannot be read."""
        from offsetmgr.streams.table_reader import TableReader  # noqa: PLC0415 -- confluent-kafka

        self._topic = topic
        self._storage = MemoryStorage()
        self._reader = TableReader(kafka, topic, self._storage, group=GROUP, until_stable=True)
        try:
            self._reader.start()
        except OffsetManagerError as error:
            raise self._unreadable(error) from error

    @property
    def failed(self) -> bool:
        """True if reading has ended with an error."""
        return self._reader.error is not None

    def close(self) -> None:
        """End reading."""
        self._reader.stop(RECOVERY_S)

    def get(self, key: bytes) -> bytes | None:
        """Return the row of ``key``, None without one."""
        self.wait()
        return self._storage.get(key)

    def wait(self) -> None:
        """Return once all rows can be read."""
        caught_up = self._reader.caught_up
        if not caught_up.is_set() and not caught_up.wait(RECOVERY_S):
            parts = self._reader.partitions.values()
            why = next((part.error for part in parts if part.error), "Kafka is slow")
            text = f"the lookup table {self._topic} was not read within {RECOVERY_S:.0f} s: {why}"
            raise OffsetTimeoutError(text)
        if self._reader.error is not None:
            raise self._unreadable(self._reader.error) from self._reader.error

    def _unreadable(self, error: Exception) -> TopicsError:
        return TopicsError(f"the lookup table {self._topic} cannot be read: {error}")
