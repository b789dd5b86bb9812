"""Run a processor of examples/streams on Spark: ``stream_on_spark.py click_counter:graph``.

Its topics are created where they are missing.  It runs until it is interrupted or, with
``--available-now``, until it has processed what its topics hold.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

import shop

from offsetmgr import LocalOffsets
from offsetmgr.streams import Processor, ProcessorSettings, TopicManager

STREAMS = Path(__file__).with_name("streams")


def main() -> None:
    """Start the processor, and run it to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", help="module:graph, such as click_counter:graph")
    parser.add_argument("--brokers", default="localhost:9092")
    parser.add_argument("--master", default="local[2]", help="a Spark cluster (local[2])")
    parser.add_argument("--checkpoint", required=True, help="a folder that all executors reach")
    parser.add_argument("--available-now", action="store_true")
    given = parser.parse_args()
    module, name = given.graph.split(":")
    spark = shop.session(given.master)
    # Executors import the callbacks: they need the module as well.
    spark.sparkContext.addPyFile(str(STREAMS / f"{module}.py"))
    sys.path.append(str(STREAMS))
    graph = getattr(importlib.import_module(module), name)
    with TopicManager(given.brokers) as topics:
        for edge in (*graph.copartitioned, *graph.lookup_tables, *graph.output_streams):
            topics.ensure_topic(edge.topic, 4, {})
    with LocalOffsets(given.brokers) as offsets:
        processor = Processor(
            spark,
            graph,
            given.brokers,
            checkpoint=given.checkpoint,
            offsets=offsets,
            settings=ProcessorSettings(missing="earliest"),
        )
        signal.signal(signal.SIGINT, lambda *_: processor.stop())
        processor.run(available_now=given.available_now)
        processor.stop()
        committed = sum(each.offset for each in offsets.committed(graph.group).values())
    print(f"{graph.group} has processed {committed} messages")


if __name__ == "__main__":
    main()
