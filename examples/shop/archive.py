# pip install pyspark
"""The archive of all orders: a Spark job of another team, without a line of offsetmgr.

``offsetmgr spark follow`` reads its checkpoint and commits its offsets.
"""

from __future__ import annotations

import argparse

import pyspark
from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--folder", default="shop-data", help="for all results")
parser.add_argument("--available-now", action="store_true", help="stop once all orders are read")
options = parser.parse_args()

scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
messages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", options.bootstrap_servers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
)
trigger = {"availableNow": True} if options.available_now else {"processingTime": "10 seconds"}
query = (
    messages.selectExpr("CAST(value AS STRING) AS value", "timestamp")
    .writeStream.trigger(**trigger)
    .option("checkpointLocation", f"{options.folder}/archive-checkpoint")
    .start(f"{options.folder}/archive", format="parquet")
)
print(f"orders are archived in {options.folder}/archive", flush=True)
query.awaitTermination()
