"""The orders of the demo: made up, the same every time, and counted as they are produced."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Producer

from offsetmgr.demo.errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNTRIES: Final = ("AT", "CH", "DE", "DK", "ES", "FR", "IT", "NL", "PL", "SE")
_ITEMS: Final = {
    "desk lamp": 3990,
    "notebook": 450,
    "pencil case": 890,
    "bookshelf": 12900,
    "office chair": 18950,
    "coffee mug": 1290,
    "wall clock": 2475,
}
"""What is sold, at which price in cents."""

_FIRST_TS_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the orders do not depend on the day they are produced."""

_SEED: Final = 7
_CUSTOMERS: Final = 5_000
_FLUSH_S: Final = 30.0
_REPORT_EVERY: Final = 1_000


class Order(NamedTuple):
    """One order."""

    order_id: str
    customer: str
    """The key of its event, so that a customer's orders keep their order."""
    country: str
    items: dict[str, int]
    """What was bought, and how many of it."""
    cents: int
    ts_ms: int

    def event(self) -> bytes:
        """The order as its event carries it."""
        fields = {
            "order_id": self.order_id,
            "customer": self.customer,
            "country": self.country,
            "items": [{"name": name, "quantity": count} for name, count in self.items.items()],
            "amount": f"{Decimal(self.cents) / 100:.2f}",
            "ts": self.ts_ms,
        }
        return json.dumps(fields).encode()


@dataclass
class Sales:
    """Orders and revenue by country."""

    orders: Counter[str] = field(default_factory=Counter)
    cents: Counter[str] = field(default_factory=Counter)

    def add(self, country: str, orders: int, cents: int) -> None:
        """Count ``orders`` worth ``cents``."""
        self.orders[country] += orders
        self.cents[country] += cents


def make_orders(count: int) -> Iterator[Order]:
    """Make up ``count`` orders: the same ones for every call."""
    rng = random.Random(_SEED)  # noqa: S311 -- nothing secret about these
    names = list(_ITEMS)
    for number in range(count):
        items = {name: rng.randint(1, 3) for name in rng.sample(names, rng.randint(1, 3))}
        customer = rng.randrange(_CUSTOMERS)
        yield Order(
            order_id=f"order-{number:07}",
            customer=f"customer-{customer:05}",
            country=COUNTRIES[customer % len(COUNTRIES)],
            items=items,
            cents=sum(_ITEMS[name] * quantity for name, quantity in items.items()),
            ts_ms=_FIRST_TS_MS + number * 250,
        )


def produce(
    bootstrap_servers: str, topic: str, count: int, advance: Callable[[int], None]
) -> Sales:
    """Produce ``count`` orders, once each, and return what they add up to.

    ``advance`` is told how many more were handed to Kafka.  Raises DemoError where Kafka does
    not take them all.
    """
    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,  # a retry must not make two orders of one
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": count + 1,
            "log_level": 0,
        }
    )
    sales = Sales()
    for number, order in enumerate(make_orders(count), start=1):
        producer.produce(topic, order.event(), order.customer, on_delivery=delivered)
        sales.add(order.country, 1, order.cents)
        if number % _REPORT_EVERY == 0 or number == count:
            producer.poll(0)
            advance((number - 1) % _REPORT_EVERY + 1)
    left = producer.flush(_FLUSH_S)
    if left or failures:
        reason = failures[0] if failures else f"no answer within {_FLUSH_S:.0f} s"
        message = f"{left + len(failures)} of {count} orders were not produced: {reason}"
        raise DemoError(message)
    return sales
