"""The order in which a write tries its clusters."""

from __future__ import annotations

import pytest

from offsetmgr.clusters.link import ALWAYS
from offsetmgr.clusters.writer import ranking

ORDER = ["west", "east", "north"]
FAIL_BACK_S = 60.0


@pytest.mark.parametrize(
    ("answer_since_s", "now_s", "expected"),
    [
        pytest.param((ALWAYS, ALWAYS, ALWAYS), 0, ORDER, id="all is well"),
        pytest.param((None, ALWAYS, ALWAYS), 0, ["east", "north", "west"], id="a silent primary"),
        pytest.param((None, None, ALWAYS), 0, ["north", "west", "east"], id="two silent ones"),
        pytest.param((None, None, None), 0, ORDER, id="all are silent"),
        # A primary that fails again and again must not take the writes with it each time.
        pytest.param((100, ALWAYS, ALWAYS), 159.9, ["east", "north", "west"], id="just back"),
        pytest.param((100, ALWAYS, ALWAYS), 160, ORDER, id="settled"),
        # Tried behind a settled cluster, and before a silent one.
        pytest.param((100, None, ALWAYS), 110, ["north", "west", "east"], id="a failed backup"),
        pytest.param((100, None, None), 110, ORDER, id="nothing but one just back"),
        pytest.param((20, 10, None), 30, ["east", "west", "north"], id="the first one back"),
        pytest.param((20, 10, None), 80, ORDER, id="a preferred one has settled"),
    ],
)
def test_writes_go_to_the_first_settled_cluster(
    answer_since_s: tuple[float | None, ...], now_s: float, expected: list[str]
) -> None:
    """Away from a silent one at once, and back to a preferred one once it has settled."""
    since_s = dict(zip(ORDER, answer_since_s, strict=True))
    assert ranking(since_s, now_s, FAIL_BACK_S) == expected
