"""Prints the seconds that quixstreams takes to recover its state from a changelog of 4 partitions.

Runs in an environment of its own: ``quix_view.py BROKERS GROUP TOPIC FOLDER``, where the topic has
a message in each partition.  They are processed once the state is recovered.
"""

from __future__ import annotations

import logging
import sys

from quixstreams import Application

brokers, group, topic_name, folder = sys.argv[1:5]
times = []


class Times(logging.Handler):
    """Notes when the recovery begins and when it is complete."""

    def emit(self, record):
        if record.msg.startswith(("Beginning recovery check", "Recovery process complete")):
            times.append(record.created)


app = Application(
    broker_address=brokers,
    consumer_group=group,
    auto_offset_reset="earliest",
    state_dir=folder,
    loglevel="INFO",
)
log = logging.getLogger("quixstreams")
log.handlers = [Times()]
topic = app.topic(topic_name, key_deserializer="bytes", value_deserializer="bytes")
app.dataframe(topic).update(lambda _value, state: state.get("count"), stateful=True)
app.run(count=1)
print(times[1] - times[0])
