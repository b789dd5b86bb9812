"""What Kafka's answers mean for a place in a group."""

from __future__ import annotations

import pytest

from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.seat import (
    Holder,
    Seat,
    Standing,
    alone,
    holder_of,
    taken_by,
)

PLACE = wire.Place("g", "offsetmgr", "m-1", 7)


def joined(generation: int) -> wire.Joined:
    """A place as the only member."""
    return wire.Joined(0, generation, "m-2", "m-2", ("m-2",))


def lost_seat() -> Seat:
    """A seat that was lost."""
    seat = Seat("g")
    seat.take(PLACE, 1.0)
    seat.lose(PLACE)
    return seat


@pytest.mark.fault(8)
@pytest.mark.parametrize(
    ("generation", "twice", "regained"),
    [
        pytest.param(9, False, True, id="empty, then ours"),
        pytest.param(10, False, False, id="somebody replaced us and has lapsed"),
        pytest.param(11, False, False, id="somebody came and left"),
        pytest.param(1, False, False, id="the group was deleted meanwhile"),
        pytest.param(10, True, True, id="one more, which is our own lost answer"),
        pytest.param(11, True, False, id="two more: ours or somebody else's, nobody knows"),
    ],
)
def test_the_generation_tells_whether_somebody_else_was_there(
    generation: int, *, twice: bool, regained: bool
) -> None:
    """In doubt somebody was: to commit nothing is safe."""
    assert lost_seat().regained(joined(generation), twice=twice) is regained


def test_a_first_place_is_always_good() -> None:
    """Who had none has nothing old to commit."""
    assert Seat("g").regained(joined(1_000), twice=False)


@pytest.mark.fault(8)
def test_a_place_that_was_given_back_is_the_last_one() -> None:
    """Though the answer to the request after it was lost: what comes later is held against it."""
    seat = lost_seat()
    seat.grant(PLACE._replace(member="m-2", generation=9))
    assert seat.standing is Standing.OUT
    assert seat.regained(joined(11), twice=False)
    assert not seat.regained(joined(12), twice=False)


def test_a_late_answer_does_not_unseat() -> None:
    """What was said of an earlier place says nothing of the present one."""
    seat = lost_seat()
    seat.take(PLACE._replace(generation=9), 2.0)
    seat.lose(PLACE)
    assert seat.standing is Standing.SEATED


def test_fenced_is_for_good() -> None:
    """Nothing but a restart ends it, and the first reason stays."""
    seat = lost_seat()
    seat.fence("why")
    seat.lose(PLACE)
    assert seat.standing is Standing.FENCED
    assert not seat.forgettable
    assert seat.refusal().detail == "why"


@pytest.mark.parametrize(
    ("leader", "members"),
    [("m-2", ("m-2", "m-3")), ("m-3", ()), ("", ())],
    ids=["leads others", "is led", "KIP-848"],
)
def test_not_alone(leader: str, members: tuple[str, ...]) -> None:
    """Beside other members a place is no fence."""
    assert not alone(wire.Joined(0, 1, leader, "m-2", members))
    assert alone(joined(1))


def test_a_holder_is_read_from_its_membership() -> None:
    """And everybody else is no service of ours."""
    holder = Holder("1f", "host-1, process 7", "2026-01-02T03:04:05+00:00")
    assert holder_of(wire.Described("offsetmgr", "/10.0.0.1", holder.metadata())) == holder
    for metadata in (b"", b"\0", wire.subscription(b"{}"), wire.subscription(b"[1]")):
        assert holder_of(wire.Described("spark", "/10.0.0.1", metadata)) is None


def test_what_an_operator_is_told() -> None:
    """Whose the group is, since when, and what to do; hostile names cannot break the line."""
    text = taken_by("g", Holder("1f", "evil\nhost", "2026-01-02"), "/10.0.0.1")
    assert "group g is now owned by the service on evil\\nhost (address /10.0.0.1)" in text
    assert "since 2026-01-02" in text
    assert "stop this one" in text
    assert "owned by another service;" in taken_by("g", None, "")
