"""Stores of views: one contract for lmdb and memory, and what is lmdb's own."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import lmdb
import pytest
from pyspark import cloudpickle

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams import ViewError, codecs, lookups
from offsetmgr.streams.lookups import rows_of
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.rows import ViewReader
from offsetmgr.streams.storage import LmdbReader, LmdbStorage
from tests.fork import in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsetmgr.streams.memory import Storage


def opened(path: Path, topic_id: str = "", **options: Any) -> LmdbStorage:
    store = LmdbStorage(path, **options)
    store.open("prices", topic_id)
    return store


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with closing(opened(tmp_path) if request.param == "lmdb" else MemoryStorage()) as storage:
        yield storage


def test_rows_are_read_in_the_order_of_their_keys(store: Storage) -> None:
    """From start up to before end, without the stored offsets; keys are of any length."""
    long = b"b" * 600
    keys = (b"b", b"a", b"", b"ab", b"c", b"offset/0", b"\xff", long, long + b"a")
    rows = {key: key.upper() for key in keys}
    store.apply(rows, {0: 7})
    assert list(store.items(b"", None)) == sorted(rows.items())
    assert [key for key, _ in store.items(b"", b"b")] == [b"", b"a", b"ab"]
    assert [key for key, _ in store.items(b"aa", b"c")] == [b"ab", b"b", long, long + b"a"]
    assert [key for key, _ in store.items(long + b"a", b"d")] == [long + b"a", b"c"]
    for longer, first in ((b"aa" * 300, b"ab"), (b"ab" * 300, b"b")):
        assert next(store.items(longer, None))[0] == first
    found = [store.get(key) for key in (b"", b"ab", b"none", long, b"n" * 600)]
    assert found == [b"", b"AB", None, long.upper(), None]
    gone = dict.fromkeys((b"", b"ab", b"none", long, b"n" * 600))
    store.apply({**gone, b"a": b"2"}, {1: 3})
    assert [store.get(key) for key in (*gone, b"a")] == [None] * 5 + [b"2"]
    assert [store.offset(partition) for partition in range(3)] == [7, 3, None]
    store.apply({b"k" * 511: b"1"}, {})
    assert not list(store.items(b"k" * 512, b"l"))


def test_a_store_keeps_its_rows_and_its_topic(tmp_path: Path) -> None:
    """It is refused for another topic, and empty for a later one of its name."""
    began_s = time.time()
    for _ in range(2):
        store = opened(tmp_path, "first", fsync=True)
        store.apply({b"k": b"v"}, {3: 5})
        store.flush()
        store.close()
    store = LmdbStorage(tmp_path)
    with pytest.raises(ViewError, match="has the rows of prices, not of orders: give another path"):
        store.open("orders", "first")
    for topic_id in ("", "first"):  # brokers before 2.8 give none
        store.open("prices", topic_id)
        assert (store.get(b"k"), store.offset(3)) == (b"v", 5)
        store.close()
    store.open("prices", "second")
    assert (store.get(b"k"), store.offset(3), store.complete) == (None, None, False)
    assert began_s <= (store.seen_s() or 0) <= time.time()
    store.apply({b"k": b"w", b"": b"unnamed"}, {3: 0})
    store.note_seen(1.5)
    assert (store.seen_s(), store.complete) == (1.5, True)
    store.clear("third")
    assert [*store.items(b"", None), store.offset(3), store.complete] == [None, False]
    assert began_s <= (store.seen_s() or 0) <= time.time()
    store.apply({b"b": b"2", b"a": b"1"}, {})
    store.close()
    store.open("prices", "third")
    assert dict(store.items(b"", None)) == {b"a": b"1", b"b": b"2"}
    store.close()


@pytest.mark.parametrize("left", [1, 8192, 65536, 200_000])
def test_a_store_that_was_cut_is_an_error(tmp_path: Path, left: int) -> None:
    """As by a copy of a store in use, or a full disk: reads of missing pages end the process."""
    store = opened(tmp_path)
    store.apply({b"%d" % number: bytes(100) for number in range(3_000)}, {})
    store.apply({b"%d" % number: None for number in range(2_000)}, {})
    store.close()
    ViewReader(tmp_path, codecs.Bytes()).close()
    os.truncate(tmp_path / "data.mdb", left)
    for reopen in (LmdbReader, opened):
        with pytest.raises(ViewError, match=r"the store at .*: delete the folder|; delete the fol"):
            reopen(tmp_path)


def test_a_full_map_names_the_limit(tmp_path: Path) -> None:
    """Rows that were stored before are kept."""
    store = opened(tmp_path, map_bytes=1024 * 1024)
    store.apply({b"a": b"1"}, {0: 0})
    with pytest.raises(ViewError, match="has reached map_bytes=1048576: give LmdbStorage a higher"):
        store.apply({b"%d" % number: bytes(1000) for number in range(2_000)}, {0: 1})
    assert (store.get(b"a"), store.offset(0)) == (b"1", 0)
    store.close()


@pytest.mark.parametrize("obstacle", ["", "view.lock/x", "data.mdb/x", "unsynced/x"])
def test_a_disk_that_refuses_a_store_is_named(tmp_path: Path, obstacle: str) -> None:
    """A file or a folder in the way; as a read-only disk, or one that is full."""
    path = tmp_path / "store"
    if obstacle:
        (path / obstacle).mkdir(parents=True)
    else:
        path.touch()
    with pytest.raises(ViewError, match=r"the store at .*store cannot be opened"):
        LmdbStorage(path).open("prices", "")


READER = """
import sys
from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.streams import codecs, lookups
from offsetmgr.streams.rows import ViewReader
rows = None
for asked in sys.stdin:
    try:
        if asked == "view\\n":
            while lookups._stores:  # lmdb opens no path twice in a process
                lookups._stores.popitem()[1].close()
            with ViewReader(sys.argv[1], codecs.String()) as reader:
                caught_up = reader.has_caught_up
                print(reader.topic, reader.live, [*reader], reader.get("b"), caught_up, flush=True)
            rows = None
        else:
            key, lookups.RECOVERY_S = asked.split()[0], float(asked.split()[1])
            rows = rows or lookups.rows_of({}, "prices", sys.argv[1])
            print(rows.get(key.encode()), flush=True)
    except OffsetTimeoutError as error:
        print(error, flush=True)
"""


@contextmanager
def reading(path: Path) -> Iterator[Callable[[str], str]]:
    """Yield what asks a process that reads a store: as a view's reader, or as a lookup's task."""
    command, pipe = [sys.executable, "-c", READER, str(path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def ask(what: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            print(what, file=process.stdin, flush=True)
            return process.stdout.readline().rstrip()

        yield ask


def test_other_processes_read_while_a_view_writes(tmp_path: Path) -> None:
    """They see each write; one view alone may write.

    A lookup waits until the view has read its table, as a row that is missing may still come; also
    in its batch, where the view has deleted all rows, as the topic was recreated.
    """
    store = opened(tmp_path)
    store.apply({b"a": b"1"}, {0: 0})
    late = f"the view at {tmp_path} has not read the table prices within 0 s"
    with reading(tmp_path) as ask:
        assert ask("view") == "prices True [('a', '1')] None False"
        assert ask("b 0.1") == late
        store.note_seen(1.5)
        assert ask("view") == "prices True [('a', '1')] None True"
        assert ask("b 60") == "None"
        store.apply({b"b": b"2"}, {0: 1})
        assert ask("b 60") == "b'2'"
        store.clear("")  # in the middle of a batch, as the topic was recreated
        assert ask("b 0.1") == late
        store.note_seen(1.5)
        store.apply({b"a": b"1", b"b": b"2"}, {0: 1})
        with pytest.raises(ViewError, match=r"another view has the store at .* open"):
            LmdbStorage(tmp_path).open("prices", "")
        with pytest.raises(ViewError, match="already open in this process"):
            LmdbReader(tmp_path)
        store.close()
        assert ask("view") == "prices False [('a', '1'), ('b', '2')] 2 True"
    wrong: Any = codecs.String
    with pytest.raises(InvalidValueError) as refused:
        ViewReader(tmp_path, wrong)
    closed = ViewReader(tmp_path, codecs.String())
    assert "is not a codec" in str(refused.value)  # while it was known, the store stayed open
    closed.close()
    for use in (closed.get, closed.has, lambda _: list(closed), lambda _: closed.topic):
        with pytest.raises(ViewError, match="cannot be read"):
            use("a")
    with pytest.raises(ViewError, match=r"store at .* does not exist: start a view"):
        ViewReader(tmp_path / "elsewhere", codecs.String())
    with pytest.raises(ViewError, match=r"cannot be opened: .* name too long"):
        ViewReader(tmp_path / ("x" * 300), codecs.String())


KILLED = """
import os, signal, sys
from offsetmgr.streams import codecs
from offsetmgr.streams.rows import ViewReader
rows = iter(ViewReader(sys.argv[1], codecs.Bytes()))
next(rows)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_reader_does_not_make_a_store_grow(tmp_path: Path) -> None:
    """Its pages were kept until the view was started again, however often rows were written."""
    rows = {b"%d" % number: b"x" * 1_000 for number in range(100)}
    with closing(opened(tmp_path)) as store:
        store.apply(rows, {0: 0})
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        sizes = []
        for number in range(40):
            store.apply(rows, {0: number})
            store.note_seen(1.5)
            sizes.append((tmp_path / "data.mdb").stat().st_size)
    assert sizes[20] == sizes[-1]


def test_a_lookup_reads_the_store_that_has_replaced_a_deleted_one(tmp_path: Path) -> None:
    """A worker outlives a view, whose folder is deleted to read the table again."""
    path = tmp_path / "store"
    for value in (b"1", b"2"):
        shutil.rmtree(path, ignore_errors=True)
        # lmdb opens no path twice in a process.
        store = opened(tmp_path / value.decode())
        store.apply({b"a": value}, {0: 0})
        store.note_seen(1.5)
        store.close()
        store.path.rename(path)
        with (path / "view.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a view that runs
            assert rows_of({}, "prices", str(path)).get(b"a") == value
    store = opened(tmp_path / "deleted")
    store.close()
    reader = LmdbReader(store.path)
    obstacle = store.path / "view.lock"
    obstacle.unlink()
    obstacle.mkdir()
    with pytest.raises(ViewError, match=r"the store at .* cannot be read: .*view\.lock"):
        assert reader.live
    shutil.rmtree(reader.path)
    assert not reader.live
    reader.close()


def test_tasks_share_the_reader_of_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a callback of a notebook, which is another object in each task that Spark sends.

    Each task read the whole table into its worker's memory, where it stayed.
    """
    made: list[Mock] = []

    def opening(*_: object) -> Mock:
        made.append(Mock(reader=Mock(error=None)))
        return made[-1]

    monkeypatch.setattr(lookups, "TopicRows", opening)
    monkeypatch.setattr(lookups, "_tables", {})
    settings = {"bootstrap.servers": "away:9092", "oauth_cb": lambda _: ("token", 1.0)}
    dumps: Any = cloudpickle.dumps
    task = dumps(settings)
    for _ in range(3):
        rows_of(pickle.loads(task), "prices")  # noqa: S301 -- our own
    rows_of({**settings, "bootstrap.servers": "else:9092"}, "prices")
    assert len(made) == 2


def test_a_store_that_a_lookup_cannot_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; its tasks read the topic instead, each worker all of it, and nothing told why.

    A host without a view is not worth a word.
    """
    monkeypatch.setattr(lookups, "TopicRows", Mock(return_value=Mock(failed=False)))
    monkeypatch.setattr(lookups, "_tables", {})
    opened(tmp_path).close()
    os.truncate(tmp_path / "data.mdb", 1)
    for path in (tmp_path / "none", tmp_path, tmp_path):
        rows_of({}, "prices", str(path))
    (record,) = caplog.records
    assert "prices is read from its topic: the store at " in record.getMessage()


@pytest.mark.parametrize("fsync", [False, True])
def test_a_store_that_a_power_cut_may_have_damaged_starts_over(
    tmp_path: Path, *, fsync: bool
) -> None:
    """One that was closed, or killed while the machine ran on, or waits for the disk, does not."""
    mark = tmp_path / "unsynced"
    killed = opened(tmp_path, fsync=fsync)
    killed.apply({b"a": b"1"}, {0: 0})
    assert mark.exists() is not fsync
    before = "" if fsync else mark.read_text()
    killed.close()
    assert not mark.exists()
    if not fsync:
        mark.write_text(before)  # as if it had been killed in this life of the machine
    with closing(opened(tmp_path, fsync=fsync)) as again:
        assert again.offset(0) == 0
    if not fsync:
        mark.write_text("another life of the machine")
        with closing(opened(tmp_path)) as again:
            assert (again.offset(0), again.get(b"a")) == (None, None)


def test_a_store_is_closed_again_after_ctrl_c_in_its_close(tmp_path: Path) -> None:
    """As while the disk is waited for: the second close was an error, as the first had closed."""
    store: Any = opened(tmp_path)
    store._env = Mock(wraps=store._env, sync=Mock(side_effect=[KeyboardInterrupt, lmdb.Error]))
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    opened(tmp_path).close()


def test_rows_that_were_opened_before_a_fork_are_refused_in_the_child(tmp_path: Path) -> None:
    """Its reads kept pages of the store from being used again, and ended one of the parent's."""
    with closing(opened(tmp_path)) as storage:
        storage.apply({b"a": b"1"}, {})
    with ViewReader(tmp_path, codecs.String()) as rows:
        assert rows.get("a") == "1"

        def read_all() -> None:
            for read in (rows.get, rows.has, rows.items):
                with pytest.raises(ViewError, match="were opened before a fork"):
                    read("a")

        in_child(read_all)
        assert rows.get("a") == "1"


def test_the_child_of_a_fork_holds_no_store(tmp_path: Path) -> None:
    """Such as a worker that outlives its killed parent, which could not be started again."""
    store = opened(tmp_path)
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begun, b"1")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"1"
        store.close()
        with closing(LmdbReader(tmp_path)) as reader:
            assert not reader.live
        opened(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
