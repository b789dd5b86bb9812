"""A member of a group as a process of its own: writes down each message, then marks it.

``group_member.py BROKERS GROUP TOPIC STRATEGY LOG``; a SIGTERM lets it leave in order.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from offsetmgr.consumer import ConsumerSettings, GroupConsumer

_WORK_S = 0.001


def main(brokers: str, group: str, topic: str, strategy: str, file: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    kafka = {"bootstrap.servers": brokers, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    settings = ConsumerSettings(strategy=strategy, commit_interval_s=0.02, away_s=0.1)  # type: ignore[arg-type]
    with (
        Path(file).open("ab", buffering=0) as written,
        GroupConsumer(kafka, group, [topic], settings=settings) as consumer,
    ):
        while not stopping.is_set():
            message = consumer.poll(timeout=0.1)
            if message is not None:
                time.sleep(_WORK_S)
                written.write((message.value() or b"") + b"\n")
                consumer.mark_offset(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
