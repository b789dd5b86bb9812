"""Stores of a view's table: lmdb or memory.

All partitions of a table share one store.  A key is in one of them, so a read needs no hash, and
rows are in the order of their keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from hashlib import blake2b
from heapq import merge
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

import lmdb

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from offsetmgr.logs import SafeLogger
from offsetmgr.streams.errors import ViewError
from offsetmgr.streams.memory import Storage
from offsetmgr.types import check_count, check_flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

MAX_KEY_BYTES: Final = 511
"""Longest key that lmdb takes; it does not take the empty one either."""

MAP_BYTES: Final = 256 * 1024**3
"""Address space that an lmdb store reserves; its file is as large as the rows need."""

_READERS: Final = 1024
"""Most concurrent reads of a store, over all processes."""
_LOCK_S: Final = 1.0
"""A reader that looks for a live view holds the lock for a moment."""
_ROWS: Final = b"rows"
_META: Final = b"meta"
_TOPIC: Final = b"topic"
_TOPIC_ID: Final = b"topic-id"
_SEEN: Final = b"seen"
_OFFSET: Final = b"offset/%d"
_EPOCH: Final = b"epoch/%d"
_COMPLETE: Final = b"complete"
_ODD: Final = b"row/"
"""Before the hash of a key that lmdb does not take: the name of its row in ``meta``."""
_REBUILD: Final = "delete the folder and start the view, which reads the table again"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_T = TypeVar("_T")

log = SafeLogger("offsetmgr.streams")


class LmdbReader:
    """The rows of a view's lmdb store, while another process writes it or after that.

    A process opens a store once.  Raises ViewError where there is none at ``path``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _checked(path)
        with _failing(self.path, "opened"):
            self._file = self._file_now()
        if self._file is None:
            raise ViewError(f"a view's store at {self.path} does not exist: start a view there")
        self._open(readonly=True)

    @property
    def topic(self) -> str:
        """The table's topic."""
        return (self._meta_value(_TOPIC) or b"").decode()

    @property
    def complete(self) -> bool:
        """True if the whole table was read: a row that is missing does not exist."""
        return self._meta_value(_COMPLETE) is not None

    @property
    def live(self) -> bool:
        """True if a view has the store open, so that its rows follow the topic."""
        with _failing(self.path, "read"), contextlib.suppress(FileNotFoundError):
            try:
                with (self.path / "view.lock").open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return not self.deleted
        return False

    @property
    def deleted(self) -> bool:
        """True if the store was deleted; what has replaced it takes a new reader."""
        return self._file_now() != self._file

    def close(self) -> None:
        self._env.close()

    def get(self, key: bytes) -> bytes | None:
        if 0 < len(key) <= MAX_KEY_BYTES:
            try:
                # Without a name and a ``with``, which would cost a quarter of the time.
                return self._env.begin(self._rows).get(key)
            except lmdb.Error:
                with _failing(self.path, "read"):
                    raise
        packed = self._meta_value(_odd_name(key))
        return None if packed is None else _unpacked(packed)[1]

    def items(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with _failing(self.path, "read"), self._env.begin(self._rows) as txn:
            cursor = txn.cursor()
            # The first key behind a longer one than lmdb takes is behind its beginning, too.
            found = cursor if not start or cursor.set_range(start[:MAX_KEY_BYTES]) else ()
            names = txn.cursor(self._meta)
            names.set_range(_ODD)
            packed = takewhile(lambda row: row[0].startswith(_ODD), names)
            odd = sorted(_unpacked(value) for _, value in packed)
            for key, value in merge(found, odd) if odd else found:
                if end is not None and key >= end:
                    return
                if key >= start:
                    yield key, value

    def offset(self, partition: int) -> int | None:
        return self._number(_OFFSET % partition, int)

    def leader_epoch(self, partition: int) -> int | None:
        return self._number(_EPOCH % partition, int)

    def seen_s(self) -> float | None:
        return self._number(_SEEN, float)

    def _number(self, name: bytes, kind: Callable[[bytes], _T]) -> _T | None:
        value = self._meta_value(name)
        return None if value is None else kind(value)

    def _meta_value(self, name: bytes) -> bytes | None:
        with _failing(self.path, "read"), self._env.begin(self._meta) as txn:
            return txn.get(name)

    @property
    def _data(self) -> Path:
        return self.path / "data.mdb"

    def _missing_bytes(self) -> int:
        """Return the bytes that the file lacks for its pages: above 0 reads may end the process."""
        pages = self._env.info()["last_pgno"] + 1
        return int(pages * self._env.stat()["psize"] - self._data.stat().st_size)

    def _file_now(self) -> tuple[int, int] | None:
        try:
            found = self._data.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _open(self, *, readonly: bool, sync: bool = True, map_bytes: int = MAP_BYTES) -> None:
        with _failing(self.path, "opened"), contextlib.ExitStack() as opened:
            self._env = lmdb.open(
                str(self.path),
                map_size=map_bytes,
                readonly=readonly,
                sync=sync,
                max_dbs=2,
                max_readers=_READERS,
                max_spare_txns=_READERS,
            )
            opened.callback(self._env.close)
            if self._missing_bytes() > 0:
                raise ValueError(f"{self._data.name} is cut off; {_REBUILD}")
            self._env.reader_check()  # forget readers that were killed
            self._rows = self._env.open_db(_ROWS, create=not readonly)
            self._meta = self._env.open_db(_META, create=not readonly)
            opened.pop_all()


class LmdbStorage(LmdbReader, Storage):
    """Rows in an lmdb store in the folder ``path``, which other processes may read meanwhile.

    A killed process loses nothing.  After a power cut, or a crash of the machine, the whole table
    is read again, unless ``fsync``, which waits for the disk at each write.
    """

    def __init__(
        self, path: str | Path, *, fsync: bool = False, map_bytes: int = MAP_BYTES
    ) -> None:
        self.path = _checked(path)
        self._fsync = check_flag(fsync, "fsync")
        self._map_bytes = check_count(map_bytes, "map_bytes")
        self._empty = False
        self._is_open = False

    def open(self, topic: str, topic_id: str) -> None:
        self._topic = topic
        with _failing(self.path, "opened"), contextlib.ExitStack() as opened:
            self.path.mkdir(parents=True, exist_ok=True)
            opened.enter_context(self._locked())
            self._forget_unsynced()
            self._open(readonly=False, sync=self._fsync, map_bytes=self._map_bytes)
            opened.callback(self._env.close)
            self._take_over(topic_id)
            if self._fsync:
                self._env.sync(True)  # noqa: FBT003 -- the library's parameter
                self._mark.unlink(missing_ok=True)
            opened.callback(setattr, self, "_is_open", False)  # noqa: FBT003 -- a value
            self._opened = opened.pop_all()
            self._is_open = True

    def close(self) -> None:
        if self._is_open:  # Ctrl-C ends a close, too, but for the mark
            with _failing(self.path, "closed"), self._opened:
                self._env.sync(True)  # noqa: FBT003 -- the library's parameter
                self._mark.unlink(missing_ok=True)

    def apply(self, rows: Mapping[bytes, bytes | None], offsets: Mapping[int, int]) -> None:
        # In their order, neighbours fall on one page.
        keys = sorted(rows)
        odd: list[bytes] = []
        if keys and (not keys[0] or max(map(len, keys)) > MAX_KEY_BYTES):
            odd = [key for key in keys if not 0 < len(key) <= MAX_KEY_BYTES]
            keys = [key for key in keys if 0 < len(key) <= MAX_KEY_BYTES]
        values: list[Any] = list(map(rows.__getitem__, keys))
        puts: Iterable[tuple[bytes, Any]] = zip(keys, values, strict=True)
        deleted = [key for key in keys if rows[key] is None] if None in values else []
        if deleted:
            puts = ((key, value) for key, value in puts if value is not None)
        with _failing(self.path, "written"), self._writing() as txn:
            txn.cursor().putmulti(puts, append=self._empty)
            for key in deleted:
                txn.delete(key)
            for key in odd:
                value = rows[key]
                if value is None:
                    txn.delete(_odd_name(key), db=self._meta)
                else:
                    packed = len(key).to_bytes(4, "big") + key + value
                    txn.put(_odd_name(key), packed, db=self._meta)
            for partition, offset in offsets.items():
                txn.put(_OFFSET % partition, b"%d" % offset, db=self._meta)
        self._empty = False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction]:
        try:
            with self._env.begin(self._rows, write=True) as txn:
                yield txn
        except lmdb.MapFullError:
            text = f"the store at {self.path} has reached map_bytes={self._map_bytes}"
            raise ViewError(f"{text}: give LmdbStorage a higher one") from None
        with contextlib.suppress(FileNotFoundError):  # of a folder that was deleted meanwhile
            missing = self._missing_bytes()
            if missing > 0:  # lmdb writes no pages that it has freed again
                os.truncate(self._data, self._data.stat().st_size + missing)

    def clear(self, topic_id: str) -> None:
        with self._writing() as txn:
            for database in (self._rows, self._meta):
                txn.drop(database, delete=False)
            self._note_topic(txn, topic_id)

    def note_leader_epoch(self, partition: int, epoch: int) -> None:
        with self._writing() as txn:
            txn.put(_EPOCH % partition, b"%d" % epoch, db=self._meta)

    def note_seen(self, at_s: float) -> None:
        self._env.reader_check()  # those that were killed keep all pages of their time
        with self._writing() as txn:
            txn.put(_SEEN, repr(at_s).encode(), db=self._meta)
            txn.put(_COMPLETE, b"1", db=self._meta)

    def _take_over(self, topic_id: str) -> None:
        """Delete the rows of a former topic.  Raises ViewError if they are of another topic."""
        held, held_id = self.topic or self._topic, (self._meta_value(_TOPIC_ID) or b"").decode()
        if held != self._topic:
            text = f"the store at {self.path} has the rows of {held}, not of {self._topic}"
            raise ViewError(f"{text}: give another path")
        if held_id and topic_id and held_id != topic_id:
            text = "the rows of topic %s in %s are deleted: the topic was deleted and recreated"
            log.warning(text, held, self.path)
            self.clear(topic_id)
        else:
            with self._writing() as txn:
                self._note_topic(txn, topic_id or held_id)

    def _note_topic(self, txn: lmdb.Transaction, topic_id: str) -> None:
        txn.put(_TOPIC, self._topic.encode(), db=self._meta)
        txn.put(_TOPIC_ID, topic_id.encode(), db=self._meta)
        # A new store has missed no deletion yet.
        txn.put(_SEEN, repr(time.time()).encode(), db=self._meta, overwrite=False)
        self._empty = txn.stat(self._rows)["entries"] == 0

    @property
    def _mark(self) -> Path:
        """A file that names the start of the machine since which the disk may lack writes."""
        return self.path / "unsynced"

    def _locked(self) -> IO[bytes]:
        """Return a file whose lock lasts until it is closed.  Raises ViewError."""
        lock = (self.path / "view.lock").open("wb")
        for _ in Deadline(_LOCK_S).polls():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _locks.add(lock)
                return lock
        lock.close()
        raise ViewError(f"another view has the store at {self.path} open: give another path")

    def _forget_unsynced(self) -> None:
        """Delete a store whose machine went down before its writes were on the disk."""
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else f"unknown {time.time()}"
        if self._mark.exists() and self._mark.read_bytes() != boot.encode():
            for name in ("data.mdb", "lock.mdb"):
                (self.path / name).unlink(missing_ok=True)
        if self._fsync:
            return
        self._mark.write_text(boot)
        for path in (self._mark, self.path):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


_locks: Final[WeakSet[IO[bytes]]] = WeakSet()
"""Locks of stores, which the child of a fork would hold for longer than the view lives."""


def _leave_locks() -> None:
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_leave_locks)


def _checked(path: object) -> Path:
    if not isinstance(path, (str, Path)) or path == "":  # which would be the current folder
        raise InvalidValueError("path", path, "is not a folder", "give one, such as ./view")
    return Path(path)


@contextlib.contextmanager
def _failing(path: Path, done: str) -> Iterator[None]:
    """Raise ViewError for whatever the library or the disk raises."""
    try:
        yield
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
        raise ViewError(f"the store at {path} is damaged ({error}): {_REBUILD}") from error
    except (lmdb.Error, OSError, ValueError, OverflowError) as error:
        raise ViewError(f"the store at {path} cannot be {done}: {error}") from error


def _odd_name(key: bytes) -> bytes:
    return _ODD + blake2b(key, digest_size=32).digest()


def _unpacked(row: bytes) -> tuple[bytes, bytes]:
    """Return the key and the value of a row under its ``_odd_name``."""
    end = 4 + int.from_bytes(row[:4], "big")
    return row[4:end], row[end:]
