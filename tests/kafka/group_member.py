"""A member of a group as a process of its own: writes down each message, then marks or acks it.

``group_member.py BROKERS GROUP TOPIC STRATEGY LOG marks|acks|retries``; a SIGTERM lets it leave in
order.  With retries, a message with the value "number/failures" fails so often before.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from offsetmgr.consumer import AckConsumer, AckSettings, GroupConsumer, RetryPolicy

if TYPE_CHECKING:
    from offsetmgr.consumer import AckMessage

_WORK_S = 0.001


def main(brokers: str, group: str, topic: str, strategy: str, file: str, kind: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    # The marks' members also stand still for longer than their session.
    session_ms = 12_000 if kind == "acks" else 6_000
    kafka = {
        "bootstrap.servers": brokers,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": 500,
    }
    settings = AckSettings(
        strategy=strategy,  # type: ignore[arg-type]
        commit_interval_s=0.02,
        away_s=0.1,
        retry=RetryPolicy(delays_s=(0.2, 0.4)) if kind == "retries" else None,
    )
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if kind == "marks":
        mark(GroupConsumer(kafka, group, [topic], settings=settings), log, stopping)
    else:
        acknowledge(AckConsumer(kafka, group, [topic], settings=settings), log, stopping)


def mark(consumer: GroupConsumer, log: int, stopping: threading.Event) -> None:
    with consumer:
        while not stopping.is_set():
            message = consumer.poll(timeout=0.1)
            if message is not None:
                time.sleep(_WORK_S)
                os.write(log, (message.value() or b"") + b"\n")
                consumer.mark_offset(message)


def acknowledge(consumer: AckConsumer, log: int, stopping: threading.Event) -> None:
    """Work in eight threads, so that the acks are out of order."""

    def handle(message: AckMessage) -> None:
        time.sleep(message.offset() % 11 * _WORK_S)
        number, _, failures = (message.value() or b"").partition(b"/")
        if message.tries <= int(failures or 0):
            raise ValueError("it fails so often")
        os.write(log, number + b"\n")

    pool = threading.Thread(target=consumer.run, args=[handle])
    pool.start()
    stopping.wait()
    consumer.close()
    pool.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
