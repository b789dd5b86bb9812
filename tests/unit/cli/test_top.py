"""The live view: its rows, its keys, and what stands on terminals of two sizes."""

from __future__ import annotations

import io
import math
from itertools import product
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from offsetmgr.cli.top import HELP, TopView, drawn, pressed, rows_of
from offsetmgr.lag.burrow import Status, group_status
from offsetmgr.lag.measure import GroupLag, PartitionLag
from offsetmgr.lag.report import lag_report
from offsetmgr.types import TopicPartition


def partition(
    number: int,
    lag: int | None = 0,
    seconds: float | None = 0.0,
    rate_out: float | None = 10.0,
    status: Status = Status.OK,
) -> PartitionLag:
    made = PartitionLag(TopicPartition("orders", number), None, lag=lag, seconds=seconds)
    rate_in = None if rate_out is None else 10.0
    return made._replace(status=status, rate_in=rate_in, rate_out=rate_out)


def group(name: str, *partitions: PartitionLag) -> GroupLag:
    status = group_status(each.status or Status.OK for each in partitions)
    return GroupLag(name, None, partitions, status=status)


ANSWER = lag_report(
    [
        group("idle", partition(0)),
        group(
            "orders-etl",
            partition(0, 1000, 100.0, 20.0),
            partition(1, 10, 1.0, 5.0, Status.WARN),
        ),
        group("stuck", partition(0, 5000, 7200.0, 0.0, Status.STOP)),
        group("new", partition(0, None, None, None)),
    ]
)


def text(view: TopView, width: int, height: int = 24, answer: Any = ANSWER) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as shown:
        console.print(drawn(answer, view, width, height))
    return shown.get()


def keys(typed: str, view: TopView = TopView()) -> TopView:  # noqa: B008 -- it cannot be changed
    for key in typed:
        view = pressed(view, key)
    return view


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("", "stuck"),  # by lag
        ("b", "stuck"),  # by seconds behind
        ("n", "idle"),
        ("i", "orders-etl"),  # records in
        ("o", "orders-etl"),
        ("c", "orders-etl"),  # never catches up, as stuck, and comes before it by name
        ("s", "stuck"),  # by status
    ],
)
def test_sorted_by_a_key(typed: str, first: str) -> None:
    """Each key sorts by its column, the worst first."""
    assert rows_of(ANSWER, keys(typed))[0].names == (first,)


def test_filter() -> None:
    """Names must contain the text typed after a slash; keys do nothing else meanwhile."""
    view = keys("/ORDq")
    assert view.typing
    assert not view.ended
    assert rows_of(ANSWER, view) == []
    view = keys("\x7f\r", view)
    assert [row.names for row in rows_of(ANSWER, view)] == [("orders-etl",)]
    assert keys("q", view).ended


def test_partitions() -> None:
    """Partitions are shown by p, in the place of groups; the number of each is seen."""
    names = [(*row.names, row.values["partition"]) for row in rows_of(ANSWER, keys("p"))]
    assert names[:2] == [("stuck", "orders", 0), ("orders-etl", "orders", 0)]
    long = lag_report([group("etl-of-" * 9, partition(7))])
    shown = text(keys("p"), 80, answer=long)
    assert all(part in shown for part in ("…", " orders ", " 7 "))
    for view, width in product((TopView(), keys("p")), range(75, 90)):
        assert text(view, width, answer=long).splitlines()[2].endswith("  STATUS")


@pytest.mark.parametrize("name", ["\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\N{GRINNING FACE}", "x"])
@pytest.mark.parametrize("count", [2, 90])
def test_a_wide_name_leaves_the_numbers_in_their_columns(name: str, count: int) -> None:
    """The kind: letters that take two places of a terminal, which pushed the numbers out of it."""
    groups = group(name * count, partition(0, 42)), group("etl", partition(0, 7))
    *_, first, second = text(TopView(), 80, answer=lag_report(groups)).splitlines()
    assert cell_len(first[: first.index("42") + 2]) == cell_len(second[: second.index("7") + 1])
    assert first.endswith("OK")
    assert cell_len(first) == cell_len(second) <= 80


def test_a_group_is_caught_up_when_its_slowest_partition_is() -> None:
    """One that falls behind never catches up, however quick the others are."""
    rows = {row.names[0]: row for row in rows_of(ANSWER, TopView())}
    assert rows["orders-etl"].catch_up_s == math.inf
    assert rows["idle"].catch_up_s == 0
    assert rows["new"].catch_up_s is None
    parts = {(*row.names, row.values["partition"]): row for row in rows_of(ANSWER, keys("p"))}
    assert parts["orders-etl", "orders", 0].catch_up_s == 100


@pytest.mark.parametrize("width", [1, 20, 40, 80, 160])
@pytest.mark.parametrize("typed", ["", "p", "/o"])
def test_nothing_is_wider_than_the_terminal(width: int, typed: str) -> None:
    """Each row is one line, which is cut at the end; the second line has the keys."""
    lines = text(keys(typed), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 3 + len(rows_of(ANSWER, keys(typed)))
    assert width < 20 or any(line.startswith("ord") for line in lines)
    assert width < 40 or "LAG" in lines[2]
    assert width < 80 or HELP in lines[1] or typed == "/o"


def test_pages() -> None:
    """Ten thousand partitions are shown a page at a time, and no page is empty."""
    wide = lag_report([group("etl", *(partition(n, n) for n in range(10_000)))])
    assert "10,000 partitions" in text(keys("p"), 80, answer=wide)
    first, second = (text(keys(typed), 80, answer=wide).splitlines() for typed in ("p", "pj"))
    assert len(first) == len(second) == 23
    assert " 9999 " in first[3]
    assert " 9979 " in second[3]
    last = text(keys("p" + 1_000 * "j"), 80, answer=wide).splitlines()[-1]
    assert last.split()[:3] == ["etl", "orders", "0"]
    assert keys("kkk").page == 0
