"""A member of the consumers' soak: fails the poisoned messages, writes down the others.

``soak_member.py BROKERS TOPIC LOG``; messages are "NUMBER KIND PADDING".
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from offsetmgr.consumer import AckConsumer, AckSettings, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.consumer import AckMessage

ACK_TIMEOUT_S: Final = 2.0


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

HANGS: Final = "hangs"
"""Its handler returns long after the time-out of the ack."""


def main(brokers: str, topic: str, file: str) -> None:
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(message: AckMessage) -> None:
        number, kind, *_ = (message.value() or b"").decode().split(" ")
        message.headers()
        if kind == HANGS:
            time.sleep(2 * ACK_TIMEOUT_S)
            raise ValueError("it took too long")
        if kind in FAILURES:
            raise FAILURES[kind]()  # noqa: RSE102
        os.write(log, f"{number} {kind}\n".encode())

    settings = AckSettings(
        commit_interval_s=0.2,
        dwell_s=2 * ACK_TIMEOUT_S,
        ack_timeout_s=ACK_TIMEOUT_S,
        retry=RetryPolicy(delays_s=(0.2, 0.5)),
    )
    kafka = {
        "bootstrap.servers": brokers,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    with AckConsumer(kafka, topic, [topic], settings=settings) as consumer:
        consumer.run(handle, workers=8)


if __name__ == "__main__":
    main(*sys.argv[1:])
