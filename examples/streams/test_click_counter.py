"""Clicks are counted by user."""

from click_counter import graph

from offsetmgr.streams import Tester


def test_clicks_are_counted_by_user() -> None:
    """Each user has a count."""
    tester = Tester()
    counter = tester.add_processor(graph)
    tester.consume("clicks", "bob", "/cart")
    tester.consume("clicks", "bob", "/pay")
    tester.consume("clicks", "ann", "/cart")
    assert counter.get("bob") == 2
    assert tester.table_value("click-counter-table", "ann") == 1
