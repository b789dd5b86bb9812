"""The looks at a followed checkpoint: the files that are asked for, and the times."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.follow import MOST_NAMES, Looks
from tests.unit.spark.broker import ORDERS
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INTERVAL_S = 10.0
KEEP_ALIVE_S = 3_600.0


class Watched(Checkpoint):
    """A checkpoint that is looked at on a clock of the test's, with all requests noted."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.written = WrittenCheckpoint(root)
        self.asked: list[str] = []
        self.before: dict[int, Callable[[], object]] = {}
        """Changes of the checkpoint, each before the n-th request of a look."""
        self.now_s = 0.0
        self.state = Looks(INTERVAL_S, KEEP_ALIVE_S, 0.0, random.Random(1))  # noqa: S311

    def read(self, name: str) -> str | None:
        self._ask(name)
        return super().read(name)

    def names(self, folder: str) -> list[str]:
        self._ask(f"{folder}/*")
        return super().names(folder)

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        self.before.pop(len(self.asked), lambda: None)()

    def look(self) -> int | None:
        """Look once it is due; return the batch if there is a new one."""
        self.asked.clear()
        self.now_s = max(self.now_s, self.state.due_s)
        is_news = self.state.look(self, lambda: self.now_s)
        return self.state.seen.batch_id if is_news else None


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "checkpoint")


def test_an_idle_checkpoint_costs_two_requests(watched: Watched) -> None:
    """After the first looks only the query's id and the next batch are asked for."""
    watched.written.batch(7, orders(1))
    assert watched.look() == 7
    assert watched.look() is None  # with a list, to find out about gaps
    assert watched.look() is None
    assert watched.asked == ["metadata", "commits/8"]
    watched.written.batch(8, orders(2))
    watched.written.batch(9, orders(3))
    assert watched.look() == 9
    assert not [name for name in watched.asked if name.endswith("*")]


def test_many_new_batches_are_found_by_a_list(watched: Watched) -> None:
    """A query may finish batches faster than they are asked for by name; nothing is skipped."""
    watched.written.batch(0, orders(1))
    assert watched.look() == 0
    for number in range(1, 2 * MOST_NAMES):
        watched.written.batch(number, orders(number))
    assert watched.look() == 2 * MOST_NAMES - 1
    assert len(watched.asked) <= MOST_NAMES + 6
    assert not watched.state.is_gapped


def test_lists_become_rare(watched: Watched) -> None:
    """An idle hour has at most ten lists of a folder, and a query that goes on has none more."""
    watched.written.batch(0, orders(1))
    lists = 0
    while watched.now_s < 3_500:
        watched.look()
        lists += "commits/*" in watched.asked
    assert lists <= 10


def test_skipped_numbers_are_found_by_a_list(watched: Watched) -> None:
    """The kind: names that never come, of asynchronous progress or of removed old batches."""
    watched.written.batch(0, orders(1))
    assert watched.look() == 0
    watched.written.batch(5, orders(6))
    assert watched.look() == 5
    watched.written.batch(210, orders(211))
    assert watched.look() == 210, "once a gap was found, each look lists"
    assert watched.look() is None


@pytest.mark.parametrize("idle_s", [0, 100, 250])
def test_a_later_gap_is_found_soon(watched: Watched, idle_s: float) -> None:
    """A query whose numbers had no gap may skip some at any time, such as after a restart."""
    watched.written.batch(0, orders(1))
    watched.look()
    watched.written.batch(1, orders(2))
    watched.look()
    began_s = watched.now_s
    while watched.now_s < began_s + idle_s:
        assert watched.look() is None
    watched.written.batch(7, orders(8))
    while watched.look() is None:
        assert watched.now_s < began_s + max(60, 2 * idle_s) + INTERVAL_S
    assert watched.state.seen.batch_id == 7


def test_a_batch_that_runs_again_under_its_number_is_found_by_a_list(watched: Watched) -> None:
    """Somebody has removed the last batches; the new one may be behind, as of a new run."""
    watched.written.batch(0, orders(5))
    assert watched.look() == 0
    run = watched.state.run
    watched.written.batch(0, orders(3))
    assert watched.look() == 0
    assert watched.state.run == run + 1
    assert watched.look() is None


def test_a_long_pause_leaves_no_gap(watched: Watched) -> None:
    """After a pause the next numbers may be removed; afterwards names are enough again."""
    watched.written.batch(0, orders(1))
    watched.look()
    watched.look()
    watched.now_s += 1_000
    watched.written.batch(500, orders(501))
    assert watched.look() == 500
    assert not watched.state.is_gapped


def test_a_quiet_query_ends_once(watched: Watched) -> None:
    """Afterwards it is looked at less often, and the next batch begins another run."""
    watched.written.batch(0, orders(1))
    watched.look()
    watched.now_s = KEEP_ALIVE_S - 1
    assert not watched.state.ends(watched.now_s)
    watched.now_s = KEEP_ALIVE_S
    assert watched.state.ends(watched.now_s)
    assert not watched.state.ends(watched.now_s)
    watched.look()
    assert watched.state.due_s - watched.now_s > 5 * INTERVAL_S
    watched.written.batch(1, orders(2))
    assert watched.look() == 1
    assert (watched.state.run, watched.state.is_running) == (2, True)


def test_failures_back_off(watched: Watched) -> None:
    """Up to a minute, and at once back to the interval."""
    pauses = []
    for _ in range(8):
        watched.now_s = watched.state.due_s
        watched.state.failed(watched.now_s)
        pauses.append(watched.state.due_s - watched.now_s)
    assert pauses[0] <= INTERVAL_S
    assert max(pauses) <= 60
    watched.written.batch(9, orders(9))
    assert watched.look() == 9
    assert watched.state.due_s - watched.now_s <= INTERVAL_S


@pytest.mark.parametrize("is_listed", [False, True], ids=["by name", "by a list"])
@pytest.mark.parametrize("query_id", ["7d3d4a8e-5b1f-4a0e-9a70-0c5d6b0a3f11", "another"])
@pytest.mark.parametrize("request_number", range(1, 8))
def test_a_replaced_checkpoint_is_not_mixed_with_the_former_one(
    watched: Watched, request_number: int, query_id: str, *, is_listed: bool
) -> None:
    """The kind: what a look has read before says nothing of the files that it reads after.

    A batch that has only begun there is not taken for the finished one of the same number.
    """
    watched.written.batch(7, orders(70))
    assert watched.look() == 7
    if not is_listed:
        assert watched.look() is None
    watched.written.batch(8, orders(80))

    def replace() -> None:
        shutil.rmtree(watched.written.root)
        again = WrittenCheckpoint(watched.written.root)
        again.write("metadata", f'{{"id":"{query_id}"}}')
        again.batch(2, orders(20))
        again.batch(8, orders(1_000), finished=False)

    watched.before[request_number] = replace
    run = watched.state.run
    for _ in range(10):
        watched.look()
        batch = watched.state.seen.batch
        assert batch is None or batch.offsets != {ORDERS: 1_000}
    assert watched.state.seen.batch_id == (8 if watched.before else 2)
    assert watched.state.run > run or watched.before


@pytest.mark.parametrize(
    ("left", "fails"),
    [
        pytest.param(None, False, id="emptied"),
        pytest.param(0, False, id="by hand"),
        pytest.param(0, True, id="from a backup"),
    ],
)
def test_a_checkpoint_that_is_set_back_begins_a_run(
    watched: Watched, left: int | None, *, fails: bool
) -> None:
    """It has its former id, and the lower batches are not late ones of the run before.

    A list after failures finds them at once.
    """
    watched.written.batch(0, orders(1))
    watched.written.batch(9, orders(9))
    watched.look()
    if fails:
        assert watched.look() is None  # the list that begins the long pauses
        watched.state.failed(watched.state.due_s)
    run = watched.state.run
    for number in (0, 9):
        if number != left:
            watched.remove(f"offsets/{number}")
            watched.remove(f"commits/{number}")
    if left is None:
        assert watched.look() is None
        assert watched.state.seen.batch is None
        watched.written.batch(0, orders(1))
    assert watched.look() == 0
    assert watched.state.run == run + 1
