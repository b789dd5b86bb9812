"""Burrow's rules: the situations that its own evaluator is tested with."""

from __future__ import annotations

import pytest

from offsetmgr.lag.burrow import (
    ObservedCommit,
    Status,
    group_status,
    partition_status,
)


def window(text: str, every_s: int = 100) -> list[ObservedCommit]:
    """``offset:lag`` for each commit, one every 100 s from 100 s on; ``-`` is a lag not known."""
    commits = []
    for number, each in enumerate(text.split(), start=1):
        offset, lag = each.split(":")
        at_ms = number * every_s * 1000
        commits.append(ObservedCommit(int(offset), at_ms, at_ms, None if lag == "-" else int(lag)))
    return commits


CAUGHT_UP_AT_FIRST = "1000:0 2000:50 3000:100 4000:150 5000:200"
ALWAYS_BEHIND = "1000:50 2000:100 3000:150 4000:200 5000:250"
SAME_OFFSET = "1000:100 1000:150 1000:200 1000:250 1000:300"
REGAINED = "1000:100 2000:150 3000:200 2000:1250 4000:300"
UP_TO_DATE = " ".join(f"{offset}:0" for offset in range(8079, 8094))

# What Burrow's evaluator is tested with, by the number of its case.
CASES = [
    pytest.param(CAUGHT_UP_AT_FIRST, [5200], 200, 600, 0, Status.OK, id="0-lag-was-zero-once"),
    pytest.param(CAUGHT_UP_AT_FIRST, [5200], 200, 900, 0, Status.OK, id="1-silent-as-long-as-span"),
    pytest.param(CAUGHT_UP_AT_FIRST, [5200], 200, 1000, 0, Status.STOP, id="2-silent-for-longer"),
    pytest.param(ALWAYS_BEHIND, [5250], 250, 1000, 0, Status.STOP, id="3-stop-goes-before-warn"),
    pytest.param(
        "1000:0 1000:50 1000:100 1000:150 1000:200", [1200], 200, 600, 0, Status.OK,
        id="4-same-offset-but-lag-was-zero",
    ),
    pytest.param(SAME_OFFSET, [1300], 300, 600, 0, Status.STALL, id="5-stall"),
    pytest.param(
        "1000:100 1000:100 1000:100", [1100], 100, 400, 0, Status.STALL, id="6-stall-equal-lag"
    ),
    pytest.param(REGAINED, [4300], 300, 600, 0, Status.OK, id="7-rewind-regained"),
    pytest.param(ALWAYS_BEHIND, [5250], 0, 1000, 0, Status.OK, id="8-no-lag-now"),
    pytest.param(UP_TO_DATE, [9024, 9000, 8800], 931, 4000, 0, Status.STOP, id="9-new-records"),
    pytest.param(UP_TO_DATE, [8094, 8093, 8093], 1, 4000, 0, Status.OK, id="10-zero-lag-recently"),
    pytest.param(
        "1000:0 1500:- 2000:50 2500:- 3000:100 3500:- 4000:150", [4350], 200, 800, 0, Status.OK,
        id="11-unknown-lags-do-not-count",
    ),
    pytest.param("1000:2 2000:1 2000:1", [2001], 1, 550, 1, Status.OK, id="12-allowed-lag"),
    pytest.param(SAME_OFFSET, [1300], 300, 600, 99, Status.STALL, id="13-stall-above-allowed"),
    pytest.param(REGAINED, [4300], 300, 600, 99, Status.OK, id="14-regained-above-allowed"),
    pytest.param(
        "1000:100 2000:150 3000:200 2000:1250 2500:300", [4300], 300, 600, 0, Status.REWIND,
        id="15-rewind",
    ),
    # Beyond Burrow's own cases.
    pytest.param(ALWAYS_BEHIND, [5250], 250, 600, 0, Status.WARN, id="falls-further-behind"),
    pytest.param(
        "1000:250 2000:200 3000:150", [3150], 150, 400, 0, Status.OK, id="catches-up"
    ),
    pytest.param(
        "3000:0 1000:2000 1500:1500", [3000], 1500, 400, 0, Status.REWIND,
        id="rewind-although-lag-was-zero",
    ),
    pytest.param(
        "3000:100 2000:1100 3000:100 2500:600", [3100], 600, 500, 0, Status.OK,
        id="the-first-rewind-regained",
    ),
    pytest.param("1000:7", [1007], 7, 101, 0, Status.STOP, id="a-single-commit"),
    pytest.param("1000:-", [1007], 7, 100, 0, Status.STALL, id="no-lag-known"),
    pytest.param("", [7], 7, 100, 0, Status.OK, id="no-commit"),
]  # fmt: skip


@pytest.mark.parametrize(("commits", "ends", "lag", "now_s", "allowed", "expected"), CASES)
def test_rules(
    commits: str, ends: list[int], lag: int, now_s: int, allowed: int, expected: Status
) -> None:
    """A window is judged as Burrow judges it."""
    assert partition_status(window(commits), ends, lag, now_s, allowed) == expected


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([], Status.OK),
        ([Status.OK, Status.OK], Status.OK),
        ([Status.OK, Status.WARN], Status.WARN),
        ([Status.STOP, Status.WARN], Status.ERR),
        ([Status.STALL], Status.ERR),
        ([Status.OK, Status.REWIND], Status.ERR),
        ([Status.STOP, Status.OUT_OF_RANGE, Status.OK], Status.OUT_OF_RANGE),
    ],
)
def test_a_group_is_as_bad_as_its_worst_partition(
    partitions: list[Status], expected: Status
) -> None:
    """States of partitions show as ERR."""
    assert group_status(partitions) == expected
