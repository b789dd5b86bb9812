# pip install 'offsetmgr[kafka,spark,streams]'
"""A Spark job that looks keys up in a view, on its executors; and the view as a DataFrame.

The view's store is a folder, which any process on its host may read.  It has to be on the host of
each executor; here Spark is local.  Write the prices with emitter_promises.py first.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from offsetmgr.streams import View, ViewReader, codecs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd


def main(servers: str, topic: str) -> None:
    """Price some orders."""
    path = tempfile.mkdtemp(prefix="prices-view-")
    spark = SparkSession.builder.getOrCreate()
    orders = spark.createDataFrame(
        [(1, "bicycle"), (2, "helmet"), (3, "rocket")], "order_id int, product string"
    )

    def priced(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with ViewReader(path, codecs.Json()) as prices:  # a task's own, opened once
            for frame in frames:
                rows = map(prices.get, frame["product"])
                yield frame.assign(price=[None if row is None else row["price"] for row in rows])

    with View(servers, topic, codecs.Json(), path) as view:
        view.wait_until_running()
        schema = "order_id int, product string, price double"
        for order in orders.mapInPandas(priced, schema).sort("order_id").collect():
            print(f"order {order.order_id}: {order.product} for {order.price}")
        # Spark 3.5 takes no Arrow table: view.to_arrow().to_pandas() there.
        prices = spark.createDataFrame(view.to_arrow())
        (dearest,) = prices.sort("value.price", ascending=False).head(1)
        print(f"{prices.count()} prices, the highest is that of the {dearest.key}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--topic", default="prices")
    given = parser.parse_args()
    main(given.bootstrap_servers, given.topic)
