"""A member of a group as a process of its own: writes down each message, then marks or acks it.

``group_member.py BROKERS GROUP STRATEGY LOG marks|acks|retries|poison``; the topic has the name of
the group.  Messages are "NUMBER", "NUMBER FAILURES" to fail so often before, or "NUMBER KIND" to
fail as FAILURES says.  SIGTERM lets it leave in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from offsetmgr.consumer import AckConsumer, AckSettings, GroupConsumer, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.consumer import AckMessage

_WORK_S: Final = 0.001
_ACK_TIMEOUT_S: Final = 2.0  # of poison

HANGS: Final = "hangs"
"""Its handler returns long after the time-out of the ack."""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


FAILURES: Final[dict[str, Callable[[], BaseException]]] = {
    "exit": partial(SystemExit, 3),
    "cancelled": asyncio.CancelledError,
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "unprintable": UnprintableError,
    "surrogates": partial(ValueError, "\udcff\ud800"),
    "nul": partial(ValueError, "\0\u202e"),
    "long": partial(ValueError, "x" * 100_000),
    "headers": partial(ValueError, "the message has headers of ours that are absurd"),
    "name": partial(ValueError, "the message has a header whose name is not UTF-8"),
    "large": partial(ValueError, "the message is as large as its topic takes"),
}


def main(brokers: str, group: str, strategy: str, file: str, kind: str) -> None:
    kafka = {
        "bootstrap.servers": brokers,
        # The marks' members also stand still for longer than their session.
        "session.timeout.ms": 12_000 if kind == "acks" else 6_000,
        "heartbeat.interval.ms": 500,
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    settings = AckSettings(
        strategy=strategy,  # type: ignore[arg-type]
        commit_interval_s=0.02,
        away_s=0.1,
        ack_timeout_s=_ACK_TIMEOUT_S if kind == "poison" else 300.0,
        retry=RetryPolicy(delays_s=(0.2, 0.4)) if kind in {"retries", "poison"} else None,
    )
    stopping = threading.Event()
    if kind == "marks":
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(message: AckMessage) -> None:
        time.sleep(message.offset() % 11 * _WORK_S)  # so that the acks are out of order
        number, *more = (message.value() or b"").decode().split(" ")
        message.headers()
        failure = more[0] if more else "0"
        if failure == HANGS:
            time.sleep(2 * _ACK_TIMEOUT_S)
            raise ValueError("it took too long")
        if failure in FAILURES:
            raise FAILURES[failure]()  # noqa: RSE102
        if failure.isdigit() and message.tries <= int(failure):
            raise ValueError("it fails so often")
        os.write(log, f"{number}\n".encode())

    if kind != "marks":
        with AckConsumer(kafka, group, [group], settings=settings) as acks:
            acks.run(handle)
        return
    with GroupConsumer(kafka, group, [group], settings=settings) as consumer:
        while not stopping.is_set():
            message = consumer.poll(timeout=0.1)
            if message is not None:
                time.sleep(_WORK_S)
                os.write(log, (message.value() or b"") + b"\n")
                consumer.mark_offset(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
