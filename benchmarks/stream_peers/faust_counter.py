"""Counts messages by key with faust-streaming; ends when it has counted ``count`` of them.

Runs in an environment of its own: ``faust_counter.py BROKERS TOPIC GROUP COUNT FOLDER``.
"""

from __future__ import annotations

import os
import sys

import faust

brokers, topic_name, group, wanted, folder = sys.argv[1:6]
sys.argv[1:] = ["worker", "-l", "error", "--without-web"]
app = faust.App(
    group,
    broker=f"kafka://{brokers}",
    datadir=folder,
    topic_partitions=4,
    topic_replication_factor=1,
    topic_allow_declare=True,
    consumer_auto_offset_reset="earliest",
)
topic = app.topic(topic_name, key_type=bytes, value_type=bytes, key_serializer="raw",
                  value_serializer="raw")  # fmt: skip
table = app.Table("counts", default=int, partitions=4)
seen = 0


@app.agent(topic)
async def count(stream):
    global seen  # noqa: PLW0603 -- the end of the process depends on it
    async for key, _ in stream.items():
        table[key.decode()] += 1
        seen += 1
        if seen == int(wanted):
            await app.producer.flush()
            os._exit(0)  # a worker that stops itself waits for this agent


app.main()
