# pip install 'offsetmgr[spark,sql]'
"""Orders into a table of PostgreSQL by ``foreachBatch``, each exactly once.

Rows and offsets are committed in one transaction.  When Spark runs a batch again after a crash, the
store has its offsets already, and nothing is written.

Needs a database: ``createdb orders``, or another one by ``--database``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program
from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text, func, insert, select

from offsetmgr import LocalOffsets, TopicPartition
from offsetmgr.spark import batch_ranges, starting_offsets
from offsetmgr.stores.sql import SqlOffsetStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from offsetmgr import Offsets
    from offsetmgr.spark import OffsetRange

SCHEMA = "order_id BIGINT, placed_at TIMESTAMP, country STRING, product STRING, amount DOUBLE"
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
    """Write new orders into the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--database", default="postgresql+psycopg:///orders")
    parser.add_argument("--topic", default="orders")
    parser.add_argument(
        "--folder", type=Path, default=Path("orders-database"), help="for all results"
    )
    given = parser.parse_args()
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
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
    with LocalOffsets(given.bootstrap_servers, store=given.database) as client:
        start = starting_offsets(client, GROUP, [given.topic], checkpoint=checkpoint)
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", given.bootstrap_servers)
            .option("subscribe", given.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", 5_000)
            .load()
        )
        query = (
            as_orders(messages)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        show_group(client, GROUP, given.topic)
    with store.engine.connect() as connection:
        numbers = select(func.count(), func.count(ORDERS.c.order_id.distinct()))
        total, different = connection.execute(numbers).one()
    print(f"{total:,} orders in the table, {total - different:,} of them twice")
    store.close()


def show_group(client: Offsets, group: str, topic: str) -> None:
    """Print how far the group is, as every lag tool sees it now."""
    committed = client.committed(group)
    for partition, log in client.topics([topic])[topic].items():
        entry = committed.get(TopicPartition(topic, partition))
        offset = "nothing" if entry is None else entry.offset
        print(f"{group}: {topic}/{partition}: {offset} committed of {log.high_watermark}")


def as_orders(messages: DataFrame) -> DataFrame:
    """Return Kafka's messages as orders."""
    order = F.from_json(F.col("value").cast("string"), SCHEMA).alias("order")
    return messages.select(order).select("order.*")


if __name__ == "__main__":
    main()
