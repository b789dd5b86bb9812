"""Orders into a table of PostgreSQL by ``foreachBatch``, each exactly once.

Rows and offsets are committed in one transaction.  When Spark runs a batch again after a crash, the
store has its offsets already, and nothing is written.

Needs a database: ``createdb orders``, or another one by ``--database``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import shop
from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text, func, insert, select

from offsetmgr import LocalOffsets
from offsetmgr.spark import batch_ranges, starting_offsets
from offsetmgr.stores.sql import SqlOffsetStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from offsetmgr import TopicPartition
    from offsetmgr.spark import OffsetRange

GROUP = "orders-database"

TABLES = MetaData()
ORDERS = Table(
    "orders",
    TABLES,
    Column("order_id", BigInteger),
    Column("country", Text),
    Column("product", Text),
    Column("amount", Float),
)
AT_ONCE = 1_000


def main() -> None:
    """Produce orders, and write them into the table."""
    given = shop.arguments(__doc__)
    spark = shop.session(given.master)
    shop.place_orders(spark, given.brokers, given.topic, given.orders)
    checkpoint = str(given.folder / "checkpoint")
    store = SqlOffsetStore(given.database)
    store.create_tables()
    TABLES.create_all(store.engine)

    @batch_ranges(checkpoint)
    def write(
        batch: DataFrame, batch_id: int, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> None:
        with store.engine.begin() as connection, store.transaction(connection) as offsets:
            if not offsets.is_new_range(GROUP, ranges):
                print(f"batch {batch_id} is in the table already")
                return
            rows = [row.asDict() for row in batch.drop("placed_at").toLocalIterator()]
            for first in range(0, len(rows), AT_ONCE):
                connection.execute(insert(ORDERS), rows[first : first + AT_ONCE])
        print(f"batch {batch_id}: {len(rows):,} orders")

    # A new checkpoint begins where the table ends.
    with LocalOffsets(given.brokers, store=given.database) as client:
        start = starting_offsets(client, GROUP, [given.topic], checkpoint=checkpoint)
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", given.brokers)
            .option("subscribe", given.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", max(1, given.orders // 2))
            .load()
        )
        query = (
            shop.as_orders(messages)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shop.report_lag(client, GROUP, given.topic)
    with store.engine.connect() as connection:
        numbers = select(func.count(), func.count(ORDERS.c.order_id.distinct()))
        total, different = connection.execute(numbers).one()
    print(f"{total:,} orders in the table, {total - different:,} of them twice")
    store.close()


if __name__ == "__main__":
    main()
