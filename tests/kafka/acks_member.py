"""``python acks_member.py BROKERS GROUP TOPIC FILE``: a consumer that is killed in its work.

It appends a line "number tries" to the file for each message before it acknowledges it, in several
threads, so that acks are out of order.  A message with the value "number/failures" fails so often
before.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from offsetmgr.consumer.acks import AckConsumer, AckSettings
from offsetmgr.consumer.retry import RetryPolicy

if TYPE_CHECKING:
    from offsetmgr.consumer.deliveries import AckMessage


def main(brokers: str, group: str, topic: str, file: str) -> None:
    """Consume until SIGKILL."""
    policy = RetryPolicy(delays_s=(0.2, 0.4))
    settings = AckSettings(
        retry=policy, commit_interval_s=0.2, nack_delay_s=0.2, max_pending=400, dwell_s=0.5
    )
    kafka = {"bootstrap.servers": brokers, "session.timeout.ms": 6000}
    output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(message: AckMessage) -> None:
        number, _, failures = (message.value or b"").decode().partition("/")
        time.sleep(int(number) % 7 / 1000)
        if failures and message.tries <= int(failures):
            raise ValueError(f"{number} fails {failures} times")
        os.write(output, f"{number} {message.tries}\n".encode())

    with AckConsumer(kafka, group, [topic], settings=settings) as consumer:
        consumer.run(handle, workers=8)


if __name__ == "__main__":
    main(*sys.argv[1:])
