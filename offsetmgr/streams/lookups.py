"""Lookups in Spark's Python workers: rows from a view beside them, or from the topic itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.streams.errors import TopicsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

    from offsetmgr.streams.messages import Rows
    from offsetmgr.streams.storage import LmdbReader

RECOVERY_S: Final = 600.0
"""Longest wait of a first lookup for the whole table."""

_REQUEST_S: Final = 30.0
_BATCH: Final = 10_000
_POLL_S: Final = 0.5

_tables: Final[dict[tuple[str, str], TopicRows]] = {}
_stores: Final[dict[str, LmdbReader]] = {}
_lock: Final = threading.Lock()


def rows_of(kafka: Mapping[str, Any], topic: str, view: str | None = None) -> Rows:
    """Return the rows of a table, of the view whose store is at ``view`` if one runs on this host.

    Else they are read once in this process from the topic, by a thread that goes on.  Raises
    TopicsError where the view is of another topic.
    """
    key = (repr(sorted(kafka.items())), topic)
    with _lock:
        store = None if view is None else _live_store(view, topic)
        if store is not None:
            return store
        rows = _tables.get(key)
        if rows is None or rows.failed:
            rows = _tables[key] = TopicRows(kafka, topic)
        return rows


def _live_store(path: str, topic: str) -> LmdbReader | None:
    """Return the store of a view that runs; None where none does."""
    from offsetmgr.streams.storage import LmdbReader  # noqa: PLC0415 -- lmdb is for views alone

    if path not in _stores:
        if not (Path(path) / "data.mdb").exists():
            return None
        _stores[path] = LmdbReader(path)
    store = _stores[path]
    if store.topic != topic:
        text = f"the view's store at {path} has the rows of {store.topic}, not of {topic}"
        raise TopicsError(f"{text}: correct lookup_views")
    return store if store.live else None


class TopicRows:
    """The rows of a compacted topic, in memory; up to date to within a fraction of a second.

    The first `get` waits until all has been read that the topic held when reading began.
    """

    def __init__(self, kafka: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._rows: dict[bytes, bytes] = {}
        self._caught_up = threading.Event()
        self._error: Exception | None = None
        self._kafka = {
            **kafka,
            "group.id": "offsetmgr-lookup",  # it joins no group and commits nothing
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        name = f"offsetmgr-lookup-{topic}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def failed(self) -> bool:
        """True if reading has ended with an error."""
        return self._error is not None

    def get(self, key: bytes) -> bytes | None:
        """Return the row of ``key``, None without one.

        Raises TopicsError where the topic cannot be read, OffsetTimeoutError where the first read
        takes longer than ``RECOVERY_S``.
        """
        if not self._caught_up.is_set() and not self._caught_up.wait(RECOVERY_S):
            text = f"the lookup table {self._topic} was not read within {RECOVERY_S:.0f} s"
            raise OffsetTimeoutError(f"{text}: is Kafka reachable from the executors?")
        if self._error is not None:
            text = f"the lookup table {self._topic} cannot be read: {self._error}"
            raise TopicsError(text) from self._error
        return self._rows.get(key)

    def _run(self) -> None:
        try:
            consumer = open_consumer(self._kafka, {})
            try:
                self._read(consumer)
            finally:
                consumer.close()
        except Exception as error:  # noqa: BLE001 -- told to whoever looks up
            self._error = error
        finally:
            self._caught_up.set()

    def _read(self, consumer: Consumer) -> None:
        found = consumer.list_topics(self._topic, timeout=_REQUEST_S).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
        behind = set(found.partitions)
        start = [TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in behind]
        consumer.assign(start)
        while True:
            for message in consumer.consume(_BATCH, timeout=_POLL_S):
                self._take(message, behind)
            if not behind:
                self._caught_up.set()

    def _take(self, message: Message, behind: set[int]) -> None:
        error = message.error()
        if error is None:
            key = message.key() or b""
            value = message.value()
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its public name
            behind.discard(cast("int", message.partition()))
        elif error.fatal():
            raise KafkaException(error)
