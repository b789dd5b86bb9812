# pip install 'offsetmgr[kafka,streams]'
"""Write prices into a table's topic with an emitter, and learn what has become of each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from offsetmgr.streams import TopicManager, codecs, kafka_emitter

if TYPE_CHECKING:
    from concurrent.futures import Future

    from offsetmgr.answers import Written

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--topic", default="prices")
given = parser.parse_args()
servers, topic = given.bootstrap_servers, given.topic

with TopicManager(servers) as topics:
    topics.ensure_table(topic, 4)


def tell(written: Future[Written]) -> None:
    """Called in a thread of the emitter's, once Kafka has the message or has refused it."""
    error = written.exception()
    print(
        f"not written: {error}" if error else f"written to partition {written.result().partition}"
    )


prices = {"bicycle": 499.0, "helmet": 59.0, "lamp": 25.0}
with kafka_emitter(servers, topic, codecs.Json(), default_headers={"from": b"example"}) as emitter:
    for product, price in prices.items():
        promise = emitter.emit(product, {"product": product, "price": price})
        promise.add_done_callback(tell)
    emitter.emit("lamp", None)  # a tombstone deletes the row
    last = emitter.emit_sync("pump", {"product": "pump", "price": 30.0}, timeout=60)
    print(f"the pump is at offset {last.offset} of partition {last.partition}")
# The end of the block has waited for all of them, and raises where one was not written.
