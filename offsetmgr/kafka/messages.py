"""Parts of messages that confluent-kafka cannot hand out safely."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Message

UNREADABLE: Final = "\ufffd"
"""Stands for the name of a header that is not UTF-8."""

_PAIR: Final = 2


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Return the headers of ``message``; a name that is not UTF-8 becomes ``UNREADABLE``.

    For such a name ``Message.headers()`` of confluent-kafka 2.16 returns with an exception set,
    once.  A call from Python may overlook it, and it appears anywhere later; ``map`` raises
    SystemError.  From then on the method returns tuples in which the name is a null pointer, and
    reading that ends the process.  The garbage collector's view of such a tuple leaves it out.
    """
    pairs: Any = None
    with suppress(SystemError):
        pairs = next(map(Message.headers, (message,)))
    if pairs is None:  # there are none, or it has raised
        pairs = next(map(Message.headers, (message,)))
    return [
        pair if len(gc.get_referents(pair)) == _PAIR else (UNREADABLE, pair[1])
        for pair in pairs or ()
    ]
