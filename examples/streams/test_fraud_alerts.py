"""An account that passes on most of what it receives is reported once."""

from fraud_alerts import Account, Payment, graph

from offsetmgr.streams import Tester


def test_an_account_that_passes_on_a_large_sum_is_reported_once() -> None:
    """Both sides of a payment are counted when consume returns."""
    tester = Tester()
    tester.add_processor(graph)
    alerts = tester.queue_tracker("fraud-alerts")
    tester.consume("payments", "victim", Payment("mule", 150_000))
    assert tester.table_value("fraud-table", "mule") == Account(received_cents=150_000)
    assert alerts.next() is None
    tester.consume("payments", "mule", Payment("boss", 140_000))
    tester.consume("payments", "mule", Payment("boss", 5_000))
    (alert,) = list(alerts)
    assert alert.key == "mule"
    assert alert.value == Account(140_000, 150_000, alerted=True)


def test_small_sums_are_not_reported() -> None:
    """An account may pass on what is little."""
    tester = Tester()
    tester.add_processor(graph)
    alerts = tester.queue_tracker("fraud-alerts")
    tester.consume("payments", "ann", Payment("bob", 5_000))
    tester.consume("payments", "bob", Payment("eve", 5_000))
    assert alerts.next() is None
