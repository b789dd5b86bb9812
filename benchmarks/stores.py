"""Rows with their offsets in a transaction, and rows alone.

Batches of 500 rows go into a table of PostgreSQL, each in a transaction that waits for the disk.
Fails where offsets make a batch take more than 1.15 times as long.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from confluent_kafka import Message
from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text, insert

from benchmarks.harness import at_most, in_turn, report
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import TopicPartition
from tests.postgres import Postgres

PARTITIONS: Final = 4
BATCH: Final = 500
MOST: Final = 1.15
BARE: Final = "inserts alone"
OFFSETS: Final = "with offsets"

TABLES: Final = MetaData()
ORDERS: Final = Table(
    "orders",
    TABLES,
    Column("order_id", BigInteger, primary_key=True),
    Column("country", Text),
    Column("product", Text),
    Column("amount", Float),
)


def run(_brokers: str, rounds: int) -> list[str]:
    """Insert batches in turn with and without offsets."""
    with (
        Postgres(durable=True) as server,
        SqlOffsetStore(server.create("bare")) as bare,
        SqlOffsetStore(server.create("exactly_once")) as store,
    ):
        for each in (bare, store):
            each.create_tables()
            TABLES.create_all(each.engine)
        store.claim("etl", [TopicPartition("orders", each) for each in range(PARTITIONS)])

        def batch_of(number: int) -> list[Message]:
            return [_message(each) for each in range(number * BATCH, (number + 1) * BATCH)]

        def without(number: int) -> None:
            with bare.engine.begin() as connection:
                connection.execute(insert(ORDERS), list(map(_row, batch_of(number))))

        def with_offsets(number: int) -> None:
            with store.engine.begin() as connection, store.transaction(connection) as offsets:
                new = offsets.new_messages("etl", batch_of(number))
                connection.execute(insert(ORDERS), list(map(_row, new)))

        took = in_turn({BARE: without, OFFSETS: with_offsets}, rounds=rounds * 250)
    report(f"A transaction of {BATCH} rows into PostgreSQL", took, items=BATCH, unit="rows")
    # Of neighbours in time: a busy disk slows both.
    ratio = median(b / a for a, b in zip(took[BARE], took[OFFSETS], strict=True))
    print(f"median of the ratios of neighbours: {ratio:.2f}")
    return at_most("offsets in the transactions of 500 rows", ratio, MOST, "x the inserts alone")


def _message(number: int) -> Message:
    return Message(topic="orders", partition=number % PARTITIONS, offset=number // PARTITIONS)


def _row(message: Message) -> dict[str, object]:
    number = (message.offset() or 0) * PARTITIONS + (message.partition() or 0)
    return {"order_id": number, "country": "DE", "product": "bicycle", "amount": 42.5}
