"""Reads of a table's rows in any store: by key, by range, as Arrow or pandas."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import msgspec

from offsetmgr.streams.codecs import check_codec, whole
from offsetmgr.streams.errors import ViewError
from offsetmgr.streams.messages import decode_key, encode_key, shown_key
from offsetmgr.types import check_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from typing_extensions import Self

    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.memory import Storage
    from offsetmgr.streams.storage import LmdbReader


class RowIterator:
    """Iterates over rows in the order of their keys, as they were at its beginning or last seek."""

    def __init__(
        self, storage: Storage | LmdbReader, codec: Codec, start: bytes, end: bytes | None
    ) -> None:
        self._storage = storage
        self._decode = codec.decode
        self._start = start
        self._end = end
        self._rows = storage.items(start, end)
        self.last_key = b""
        """Of the last row, also of one that cannot be decoded."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        self.last_key, value = next(self._rows)
        return decode_key(self.last_key), self._decode(value)

    def seek(self, key: str) -> None:
        """Go on with the first row from ``key`` on, within the range of this iterator."""
        self._rows = self._storage.items(max(self._start, encode_key(key)), self._end)


class TableRows:
    """Rows of a table that a view has stored."""

    _is_forked = False

    def __init__(self, storage: Storage | LmdbReader, codec: Codec) -> None:
        check_codec(codec, "codec", "decode")
        self._storage = storage
        self._codec = codec
        self._decode = codec.decode
        self._get = storage.get
        self._readable = True

    @property
    def has_caught_up(self) -> bool:
        """True unless rows of the table were not read yet."""
        return True

    def get(self, key: str) -> Any:
        """Return the row of ``key``; None without one.  Raises ViewError, and as the codec."""
        if not self._readable:
            self._refuse()
        data = self._get(encode_key(key))
        return None if data is None else self._decode(data)

    def has(self, key: str) -> bool:
        """Return True if there is a row of ``key``.  Raises ViewError."""
        if not self._readable:
            self._refuse()
        return self._storage.get(encode_key(key)) is not None

    def items(self, start: str = "", limit: str = "") -> RowIterator:
        """Iterate over rows in the order of their keys, from ``start`` up to before ``limit``.

        Without a limit, over those whose key begins with ``start``.  Raises ViewError.
        """
        first = encode_key(start)
        return self.between(first, encode_key(limit) if limit else prefix_end(first))

    def between(self, start: bytes, end: bytes | None) -> RowIterator:
        """Iterate over the rows from ``start`` up to before ``end``; None is the last."""
        if not self._readable:
            self._refuse()
        return RowIterator(self._storage, self._codec, start, end)

    def __iter__(self) -> RowIterator:
        """Iterate over all rows."""
        return self.items()

    def arrow_batches(self, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches with the columns ``key`` and ``value``.

        The type of the first batch's values counts for all.  Bytes of keys that are not UTF-8 are
        replaced.  Raises InvalidValueError if ``rows`` is below 1.
        """
        check_count(rows, "rows")
        import pyarrow as pa  # noqa: PLC0415 -- the extra spark

        found, value_type = self.items(), None
        while batch := list(islice(found, rows)):
            keys = pa.array([shown_key(key) for key, _ in batch], pa.string())
            # Without the types they would be text in base64.
            plain = [
                msgspec.to_builtins(whole(value), builtin_types=(bytes, bytearray))
                for _, value in batch
            ]
            values = pa.array(plain, value_type)
            value_type = values.type
            yield pa.record_batch([keys, values], ["key", "value"])

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table with the columns ``key`` and ``value``."""
        import pyarrow as pa  # noqa: PLC0415 -- the extra spark

        batches = list(self.arrow_batches(2**31 - 1))
        empty = pa.schema([("key", pa.string()), ("value", pa.null())])
        return pa.Table.from_batches(batches, None if batches else empty)

    def _refuse(self) -> None:
        """Raise why nothing can be read."""
        if self._is_forked:
            text = "the rows were opened before a fork: read them in the parent"
            raise ViewError(f"{text}, or open them in a process that is spawned")


opened_rows: Final[WeakSet[TableRows]] = WeakSet()
"""Rows that the child of a fork must not read: no thread follows their topic there, and what it
reads of an lmdb store would be kept in there for as long as the parent has it open."""


def _leave_to_parent() -> None:
    for rows in opened_rows:
        rows._is_forked, rows._readable = True, False  # noqa: SLF001 -- of this module


os.register_at_fork(after_in_child=_leave_to_parent)


class ViewReader(TableRows):
    """Reads a view's lmdb store, in any process, also after the view.  Raises ViewError."""

    def __init__(self, path: str | Path, codec: Codec) -> None:
        from offsetmgr.streams.storage import LmdbReader  # noqa: PLC0415 -- lmdb

        check_codec(codec, "codec", "decode")  # or a refused one leaves the store open
        self._store = LmdbReader(path)
        super().__init__(self._store, codec)
        opened_rows.add(self)

    @property
    def topic(self) -> str:
        """The table's topic."""
        return self._store.topic

    @property
    def live(self) -> bool:
        """True if a view runs that writes the store."""
        return self._store.live

    @property
    def has_caught_up(self) -> bool:
        return self._store.complete

    def close(self) -> None:
        """End; later reads raise."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after all that begin with ``prefix``; None where there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
