"""Counts messages by key with quixstreams; ends when it has counted ``count`` of them.

Runs in an environment of its own: ``quix_counter.py BROKERS TOPIC GROUP COUNT FOLDER``.
"""

from __future__ import annotations

import sys

from quixstreams import Application

brokers, topic_name, group, wanted, folder = sys.argv[1:6]
app = Application(
    broker_address=brokers,
    consumer_group=group,
    auto_offset_reset="earliest",
    state_dir=folder,
    loglevel="ERROR",
)
topic = app.topic(topic_name, key_deserializer="bytes", value_deserializer="bytes")


def count(_value, state):
    state.set("count", state.get("count", 0) + 1)


app.dataframe(topic).update(count, stateful=True)
app.run(count=int(wanted))
