"""Whether the machine still has room for the threads of a new Kafka client."""

from __future__ import annotations

import threading
from typing import Final

NEEDED: Final = 6
"""Threads of a client of one broker, with some left: its two own, one for each broker it knows."""


def check_thread_room() -> None:
    """Start as many threads as a client needs, and end them again.

    librdkafka ends the whole process with a segmentation fault where a client gets the first of
    its threads but not the second (seen with 2.16), so it is not asked before there is room.

    Raises RuntimeError where there is none.
    """
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(NEEDED):
            thread = threading.Thread(target=over.wait, name="kafka-room", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        message = f"no room for the {NEEDED} threads of one more Kafka client: {error}"
        raise RuntimeError(message) from error
    finally:
        over.set()
        for thread in started:
            thread.join()
