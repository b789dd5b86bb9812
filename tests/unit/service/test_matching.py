"""The names that ``watch.groups`` chooses."""

from __future__ import annotations

from offsetmgr.service.matching import chosen_names

CATASTROPHIC = "a" * 60 + "!"


def test_a_name_that_takes_forever_hides_no_other() -> None:
    """``re`` would need years for it, in which no thread of the service runs."""
    names = ["aaa", CATASTROPHIC, "b", "two\nlines", "\ud800"]
    found = chosen_names("(a+)+|two.*", names, {})
    assert list(found.values()) == [True, None, False, True, False]
    assert chosen_names("(a+)+|two.*", [CATASTROPHIC], found) == {CATASTROPHIC: None}
