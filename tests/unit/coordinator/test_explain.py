"""The texts both sides of the port show to people."""

from __future__ import annotations

from offsetmgr.coordinator.explain import (
    CLOSED,
    NOT_SENT,
    LiveMember,
    live_members,
    one_line,
)
from offsetmgr.errors import Verdict


def test_many_members_are_counted() -> None:
    """At most three members are named, the others counted."""
    members = [LiveMember(f"c{n}", f"/10.0.0.{n}") for n in range(5)]
    assert live_members("g", members) == (
        "group g has live members (c0, host /10.0.0.0; c1, host /10.0.0.1; c2, host /10.0.0.2; "
        "and 2 more); commit to another group or stop them"
    )
    assert "and" not in live_members("g", members[:3])


def test_hostile_names_stay_on_their_line() -> None:
    """Names come from whoever joined the group: control characters are escaped, length is cut."""
    text = live_members("g", [LiveMember("evil\r\n\x1b[2J\u202e", "/h\0")])
    assert text.isprintable()
    assert r"evil\r\n\x1b[2J\u202e, host /h\x00" in text
    assert len(one_line("x" * 1_000)) == 101


def test_what_was_not_sent_is_refused_not_unknown() -> None:
    """A request that never left this process had no effect, so there is nothing to read back."""
    assert {info.verdict for info in (NOT_SENT, CLOSED)} == {Verdict.REFUSED}
