"""Groups and lanes: as many groups in each, and a group always in the same."""

from __future__ import annotations

import threading
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.coordinator.kafka_lanes import LEFT_LIMIT, Lanes


def test_a_thousand_groups_share_the_lanes_evenly_and_keep_them() -> None:
    """A flush of all takes as long as the fullest lane; no commit may overtake an older one."""
    lanes = Lanes(range(12))
    groups = [f"group-{number}" for number in range(1_000)]
    taken = [lanes.of(group) for group in groups]
    assert set(Counter(taken).values()) == {83, 84}
    assert [lanes.of(group) for group in reversed(groups)] == taken[::-1]


def test_groups_meet_in_a_lane_only_where_there_are_more_of_them() -> None:
    """While a lane is empty no group waits behind another one."""
    lanes = Lanes("abc")
    assert {lanes.of("x"), lanes.of("y"), lanes.of("z")} == {"a", "b", "c"}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=100))
def test_a_released_group_gives_its_place_back(steps: list[tuple[bool, int]]) -> None:
    """Who is new takes the lane with the fewest, who comes again its own; a release counts once."""
    lanes = Lanes(range(3))
    model: dict[str, int] = {}
    own: dict[str, int] = {}
    for comes, number in steps:
        group = f"group-{number}"
        if not comes:
            lanes.release(group)
            model.pop(group, None)
            continue
        fewest = Counter(dict.fromkeys(range(3), 0) | Counter(model.values()))
        lane = lanes.of(group)
        if group not in own:
            assert fewest[lane] == min(fewest.values())
        assert own.setdefault(group, lane) == lane
        model[group] = lane


def test_released_groups_are_forgotten_in_the_end() -> None:
    """The last of them keep their lanes; however many come and go, no more are remembered."""
    lanes = Lanes(range(3))
    assert [lanes.of("first"), lanes.of("second"), lanes.of("third")] == [0, 1, 2]
    for group in ("second", "first", "third"):
        lanes.release(group)
    for number in range(LEFT_LIMIT - 1):
        lanes.of(f"other-{number}")
        lanes.release(f"other-{number}")
    # All others were in lane 0 in turn.  The third is known still, the second would be in 1.
    assert lanes.of("third") == 2
    assert lanes.of("second") == 0


def test_threads_that_ask_for_the_same_groups_agree() -> None:
    """Each group is counted once, whoever asks first."""
    lanes = Lanes(range(4))
    groups = [f"group-{number}" for number in range(400)]
    start = threading.Barrier(4)
    seen: list[list[int]] = []

    def ask() -> None:
        start.wait(30)
        seen.append([lanes.of(group) for group in groups])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [seen[0]] * 4
    assert set(Counter(seen[0]).values()) == {100}
