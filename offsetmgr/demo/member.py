"""An ordinary consumer of the demo, for a group that has a live member."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer

from offsetmgr.demo.errors import DemoError

if TYPE_CHECKING:
    from offsetmgr.demo.stage import Stage

MEMBER: Final = "orders-app-1"
"""What the consumer calls itself."""

_JOIN_S: Final = 30.0
_POLL_S: Final = 0.2


class LiveMember:
    """A consumer that is a member of the busy group while the block runs."""

    def __init__(self, stage: Stage) -> None:
        """Prepare it; the block starts it."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": stage.brokers,
                "group.id": stage.names.busy_group,
                "client.id": MEMBER,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._topic = stage.names.topic

    def __enter__(self) -> None:
        self._consumer.subscribe([self._topic])
        deadline = time.monotonic() + _JOIN_S
        while not self._consumer.assignment():
            if time.monotonic() >= deadline:
                self._consumer.close()
                message = f"the consumer did not join its group within {_JOIN_S:.0f} s"
                raise DemoError(message)
            self._consumer.poll(_POLL_S)

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()
