# pip install 'offsetmgr[streams]'
"""Find accounts that pass on what they receive: a loop tells the payee's row of a payment.

Run it twice with ``stream_on_spark.py fraud_alerts:graph --available-now``: the second run reads
the loop, and alerts.
"""

from dataclasses import dataclass

from offsetmgr.streams import (
    Context,
    codecs,
    define_group,
    input,
    loop,
    output,
    persist,
)

LEAST_CENTS = 100_000
PASSED_ON = 0.9


@dataclass
class Payment:
    """A payment; its key is the payer's account."""

    payee: str
    cents: int


@dataclass
class Account:
    """Sums that an account has sent and received."""

    sent_cents: int = 0
    received_cents: int = 0
    alerted: bool = False


def sent(ctx: Context, payment: Payment) -> None:
    """Count what the payer has sent, and let the payee's row know."""
    account = ctx.value() or Account()
    account.sent_cents += payment.cents
    check(ctx, account)
    ctx.loopback(payment.payee, payment)


def received(ctx: Context, payment: Payment) -> None:
    """Count what the payee has received; the key is the payee here."""
    account = ctx.value() or Account()
    account.received_cents += payment.cents
    check(ctx, account)


def check(ctx: Context, account: Account) -> None:
    """Alert once if the account has passed on most of a large sum."""
    large = account.received_cents >= LEAST_CENTS
    if large and not account.alerted and account.sent_cents >= PASSED_ON * account.received_cents:
        account.alerted = True
        ctx.emit("fraud-alerts", ctx.key, account)
    ctx.set_value(account)


graph = define_group(
    "fraud",
    input("payments", codecs.Json(Payment), sent),
    loop(codecs.Json(Payment), received),
    persist(codecs.Json(Account)),
    output("fraud-alerts", codecs.Json(Account)),
)

SAMPLES = {
    "payments": [
        ("thief", '{"payee": "mule", "cents": 200000}'),
        ("mule", '{"payee": "boss", "cents": 190000}'),
    ]
}
"""Messages to see it with: keys and values by topic."""
