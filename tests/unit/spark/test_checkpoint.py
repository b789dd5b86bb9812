"""Checkpoints are read from files as Spark writes them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import files as files_module
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.follow import expand
from offsetmgr.types import TopicPartition
from tests.unit.spark.checkpoints import HEAD, WrittenCheckpoint, finished, orders

if TYPE_CHECKING:
    from pathlib import Path


def where(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


def test_the_last_finished_batch_counts(checkpoint: WrittenCheckpoint) -> None:
    """The number counts, not the name; unfinished batches and Spark's other files do not.

    Nor does a number beyond Spark's: the service refused all reports of a client with such a one.
    """
    assert checkpoint.files.last_finished() is None
    checkpoint.batch(0, orders(5), finished=False)
    assert checkpoint.files.last_finished() is None
    for number in range(11):
        checkpoint.batch(number, orders(number, 2 * number))
    checkpoint.batch(11, orders(99, 99), finished=False)
    checkpoint.write("commits/.10.crc", "x")
    checkpoint.write("commits/12.tmp", "x")
    checkpoint.batch(2**63, orders(99, 99))
    assert finished(checkpoint.files) == (10, {where(0): 10, where(1): 20})


def test_the_lower_of_two_sources_counts(checkpoint: WrittenCheckpoint) -> None:
    """Sources of other kinds, whatever is in their text, and without a position are passed over."""
    checkpoint.batch(0, '"\u2028"', orders(5, 6), "-", '{"logOffset":3}', orders(4, 7))
    assert finished(checkpoint.files) == (0, {where(0): 4, where(1): 6})


def test_a_batch_reads_from_the_end_of_the_one_before(checkpoint: WrittenCheckpoint) -> None:
    """The first from where the source began; a partition that came since from its beginning."""
    checkpoint.began(1, orders(3, 0))
    checkpoint.batch(0, "17", orders(5, 6))
    checkpoint.batch(1, "18", orders(9, 6, 2), finished=False)
    assert checkpoint.files.ranges(0) == {where(0): (3, 5), where(1): (0, 6)}
    assert checkpoint.files.ranges(1) == {
        where(0): (5, 9),
        where(1): (6, 6),
        where(2): (0, 2),
    }
    with pytest.raises(InvalidValueError, match="offsets/7"):  # of another query's checkpoint
        checkpoint.files.ranges(7)


@pytest.mark.parametrize(
    ("before", "batch", "read"),
    [
        pytest.param(["-"], [orders(44)], (40, 44), id="a source that begins late"),
        pytest.param([orders(10), orders(20)], [orders(12), orders(21)], (10, 21), id="two"),
        pytest.param([orders(10)], [orders(3)], (3, 3), id="recreated, shorter"),
    ],
)
def test_the_range_of_a_partition(
    checkpoint: WrittenCheckpoint, before: list[object], batch: list[object], read: tuple[int, int]
) -> None:
    """From the lower start to the higher end of its sources; a shorter new log reads nothing."""
    checkpoint.began(0, orders(40))
    checkpoint.batch(0, *before)
    checkpoint.batch(1, *batch)
    assert checkpoint.files.ranges(1) == {where(0): read}


def test_the_newest_batch_with_both_files_counts(checkpoint: WrittenCheckpoint) -> None:
    """With asynchronous progress tracking, or after a kill, some batches have one or none."""
    checkpoint.batch(2, orders(20, 0))
    checkpoint.batch(5, orders(50, 0), finished=False)
    checkpoint.write("commits/4", "v1\n{}")
    assert finished(checkpoint.files) == (2, {where(0): 20, where(1): 0})
    assert checkpoint.files.ranges(5) == {where(0): (20, 50), where(1): (0, 0)}
    assert checkpoint.files.last_begun() == (5, (), 1_700_000_000)


@pytest.mark.parametrize(
    ("name", "left", "damage"),
    [
        ("commits/3", "", "empty"),
        ("commits/3", "\0" * 30, "empty"),
        ("commits/3", 'v1\n{"nextBatchWater', "cut off"),
        ("offsets/3", "", "empty"),
        ("offsets/3", "\0" * 30, "empty"),
        ("offsets/3", 'v1\n{}\n{"orders":{"0', "cut off"),
        ("offsets/3", None, "missing: Spark does not go on before commits/3 is removed"),
        # Spark reads the query's id at each start, and where it began for availableNow.
        *[
            (name, left, "cut off" if left else "empty")
            for name in ("metadata", "sources/0/0")
            for left in ("", "{", "v1\n{")
        ],
    ],
)
def test_a_damaged_file_is_a_problem_and_finishes_no_batch(
    checkpoint: WrittenCheckpoint, name: str, left: str | None, damage: str
) -> None:
    """As Spark has it: it refuses to start, and runs a batch again once its file is removed."""
    checkpoint.began(0, orders(0))
    for number in (2, 3):
        checkpoint.batch(number, orders(10 * number))
    assert checkpoint.files.problems() == []
    if left is None:
        checkpoint.files.remove(name)
    else:
        checkpoint.write(name, left)
    (problem,) = checkpoint.files.problems()
    assert problem.startswith(f"{name} is {damage}")
    last = 2 if name.endswith("/3") else 3
    assert finished(checkpoint.files) == (last, {where(0): 10 * last})
    begun = checkpoint.files.last_begun()
    assert begun == (2 if name == "offsets/3" else 3, (), 1_700_000_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "offsets/4.* is not there"),
        ("", "offsets/4.* is empty"),
        ("v1", "offsets/4.* is cut off"),
        ('v1\n{"batchWatermarkMs":0', "offsets/4.* is cut off"),
        ('v1\n{"batchWatermarkMs":0}', "offsets/4.* is cut off"),
        ('v1\n{}\n-\n{"orders":{"0":3', "offsets/4.* is cut off"),
        ('v1\n{}\n{"orders":{"0":3\0\0\0', "offsets/4.* is cut off"),
        ("v2\n{}\n{}", "'v2'"),  # of an unknown later version
        # It is not taken for a source of another kind, which is not committed.
        ('v1\n{}\n{"orders":{"0":"5"}}', "orders-0 endOffset"),
    ],
)
def test_a_finished_batch_without_readable_offsets_is_an_error(
    checkpoint: WrittenCheckpoint, text: str | None, problem: str
) -> None:
    """Its group must not be taken for one that has read nothing, also of a file cut by a crash."""
    checkpoint.write("commits/4", "v1\n{}")
    if text is not None:
        checkpoint.write("offsets/4", text)
    with pytest.raises(InvalidValueError, match=problem):
        checkpoint.files.last_finished()


def test_epochs_of_a_continuous_query_are_batches(checkpoint: WrittenCheckpoint) -> None:
    """Their offsets have an empty line in place of the batch's watermark."""
    checkpoint.write("offsets/7", "v1\n\n" + json.dumps(orders(5)))
    checkpoint.write("commits/7", "v1\n{}")
    assert finished(checkpoint.files) == (7, {where(0): 5})
    assert checkpoint.files.last_begun() == (7, (), None)
    assert checkpoint.files.query_id() == "7d3d4a8e-5b1f-4a0e-9a70-0c5d6b0a3f11"


@pytest.mark.parametrize("name", ["a", "a b", "a#b", "a?b", "a%20b"])
@pytest.mark.parametrize("url", ["file://{}", "file:{}"])
def test_a_file_url(tmp_path: Path, url: str, name: str) -> None:
    """Spark's own spelling of a path on this machine: no part of a name is an option of the URL."""
    for number, each in enumerate(("a", "a b", name)):
        WrittenCheckpoint(tmp_path / each).batch(number, orders(1))
    checkpoint = Checkpoint(url.format(tmp_path / name))
    assert finished(checkpoint) == (2, {where(0): 1})


def test_a_url_with_one_slash() -> None:
    """As Hadoop takes it for the default host; it was taken for a path on this machine."""
    files = Checkpoint("memory:/lake/etl")
    files.write("metadata", "{}")
    files.write("offsets/0", f'{HEAD}\n{{"orders":{{"0":5}}}}')
    files.write("commits/0", "v1\n{}")
    assert finished(Checkpoint("memory://lake/etl")) == (0, {where(0): 5})
    assert list(expand("memory:/lake/*", Counter(), {})) == [("memory:/lake/etl", "etl")]


def test_a_file_over_fsspec_is_read_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of this machine: a file without an end fills no memory."""
    monkeypatch.setattr(files_module, "_MOST_BYTES", 100)
    checkpoint = Checkpoint("memory:/lake/endless")
    checkpoint.write("commits/0", "x" * 100)
    assert checkpoint.read("commits/0") == "x" * 100
    checkpoint.write("commits/0", "x" * 101)
    with pytest.raises(OSError, match="commits/0 has more than 100 bytes"):
        checkpoint.read("commits/0")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_that_is_removed_while_a_session_reads_it_is_missing(kind: str) -> None:
    """A folder in the place of a file stays an error."""
    session = MagicMock()
    system = session._jvm.org.apache.hadoop.fs.Path().getFileSystem()
    system.open.side_effect = system.listStatus.side_effect = RuntimeError("no such file")
    for read in (Checkpoint.read, Checkpoint.names):
        system.exists.return_value = kind == "folder"
        checkpoint = Checkpoint("hdfs://jobs/etl", session)
        if kind == "file":
            assert not read(checkpoint, "commits/1")
        else:
            with pytest.raises(OSError, match="commits/1 failed: RuntimeError"):
                read(checkpoint, "commits/1")


def test_an_encoded_file_url(tmp_path: Path) -> None:
    WrittenCheckpoint(tmp_path / "a b").batch(0, orders(1))
    assert finished(Checkpoint(f"file://{tmp_path}/a%20b")) == (0, {where(0): 1})


@pytest.mark.parametrize("digits", [15, 5_000])
def test_an_absurd_batch_time_is_unknown(checkpoint: WrittenCheckpoint, digits: int) -> None:
    checkpoint.batch(0, orders(1))
    checkpoint.write("offsets/0", f'v1\n{{"batchTimestampMs":{"9" * digits}}}\n{{}}')
    assert checkpoint.files.batch(0).at_s is None
