# pip install 'offsetmgr[kafka,spark,streams]'
"""Run a processor of examples/streams on Spark, and print what it has written.

Missing topics are created, and the module's ``SAMPLES`` written to them.  It runs until it is
interrupted or, with ``--available-now``, until it has processed all messages of its topics.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
from pathlib import Path

import pyspark
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from offsetmgr import LocalOffsets
from offsetmgr.streams import Processor, ProcessorSettings, TopicManager

STREAMS = Path(__file__).with_name("streams")


def main() -> None:
    """Start the processor, and run it to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", nargs="?", default="click_counter:graph", help="module:graph")
    parser.add_argument("--no-samples", action="store_true", help="write no messages of its own")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--master", default="local[2]", help="a Spark cluster (local[2])")
    parser.add_argument("--checkpoint", help="a folder that all executors reach, else a new one")
    parser.add_argument("--available-now", action="store_true")
    given = parser.parse_args()
    module, name = given.graph.split(":")
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    builder = SparkSession.builder.master(given.master).config("spark.jars.packages", connector)
    spark = builder.getOrCreate()
    # Executors import the callbacks: they need the module as well.
    spark.sparkContext.addPyFile(str(STREAMS / f"{module}.py"))
    sys.path.append(str(STREAMS))
    streams = importlib.import_module(module)
    graph = getattr(streams, name)
    with TopicManager(given.bootstrap_servers) as topics:
        for edge in (*graph.copartitioned, *graph.lookup_tables, *graph.output_streams):
            topics.ensure_topic(edge.topic, 4, {})
    if not given.no_samples:
        write(given.bootstrap_servers, streams.SAMPLES)
    with LocalOffsets(given.bootstrap_servers) as offsets:
        processor = Processor(
            spark,
            graph,
            given.bootstrap_servers,
            checkpoint=given.checkpoint or tempfile.mkdtemp(prefix="checkpoint-"),
            offsets=offsets,
            settings=ProcessorSettings(missing="earliest"),
        )
        signal.signal(signal.SIGINT, lambda *_: processor.stop())
        processor.run(available_now=given.available_now)
        committed = sum(each.offset for each in offsets.committed(graph.group).values())
    print(f"{graph.group} has processed {committed} messages")
    written = {edge.topic: edge.codec for edge in graph.output_streams}
    if graph.group_table:
        written[graph.table_topic] = graph.group_table.codec
    for topic, codec in written.items():
        source = spark.read.format("kafka").option("subscribe", topic)
        source = source.option("kafka.bootstrap.servers", given.bootstrap_servers)
        for row in source.load().where("value IS NOT NULL").orderBy("timestamp").collect():
            print(f"{topic}: {row.key.decode()} {codec.decode(bytes(row.value))}")


def write(servers: str, samples: dict[str, list[tuple[str, str]]]) -> None:
    """Write messages to their topics, each a key and a value."""
    # The partitioner by which tables and lookups find a key's rows.
    producer = Producer({"bootstrap.servers": servers, "partitioner": "fnv1a"})
    for topic, messages in samples.items():
        for key, value in messages:
            producer.produce(topic, value, key)
    producer.flush()


if __name__ == "__main__":
    main()
