"""The faults that the product has to survive, by number, and what must hold under each.

A test that proves one carries ``@pytest.mark.fault(number)``; ``make chaos`` runs them all.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Fault(NamedTuple):
    what: str
    promise: str
    """The guarantee that holds under a fault."""


FAULTS: Final = {
    1: Fault("a retriable error on one of many commits", "committed never falls"),
    2: Fault("a timed-out commit that lands later", "unknown; read back before the next"),
    3: Fault("a lower offset is submitted", "refused unless it is a rewind"),
    4: Fault("any schedule", "committed never exceeds the highest submitted"),
    5: Fault("kill -9 at random points", "an interval lost at most; nothing acknowledged by sync"),
    6: Fault("a sync submit that is refused first", "acknowledged by the coordinator alone"),
    7: Fault("a second service on the same group", "fenced, or detected and told"),
    8: Fault("a zombie resumes", "its old commits do not win"),
    9: Fault("the coordinator moves", "found again, order kept"),
    10: Fault("the coordinator is loading", "waited for, within bounds"),
    11: Fault("the coordinator is slower than the deadline", "caller freed, actor not blocked"),
    12: Fault("all brokers down at the start", "alive, not ready, no crash loop"),
    13: Fault("brokers down for an hour", "memory flat, the newest offset only"),
    14: Fault("a half-open connection", "found within the socket timeout"),
    15: Fault("a reset in the middle of a response", "unknown, then verified"),
    16: Fault("a duplicate of a client's request", "same answer, no second effect"),
    17: Fault("a client retries out of order", "the last sequence wins"),
    18: Fault("a client dies", "what it held is committed, its managers are released"),
    19: Fault("the wall clock jumps by a day", "intervals unaffected"),
    20: Fault("the disk is full", "commits go on; logs dropped and counted"),
    21: Fault("bad SASL or TLS", "told as such after bounded tries, once; unready"),
    22: Fault("the group's ACL denies it", "told once per submit, not looped"),
    23: Fault("a topic is deleted while held", "told; others of the batch are committed"),
    24: Fault("an offset outside the log", "checked, by an explicit policy"),
    25: Fault("metadata too long or with a NUL", "refused at the door, peers unaffected"),
    26: Fault("the group has active members", "told who holds it"),
    27: Fault("a bad group id", "refused before librdkafka sees it"),
    28: Fault("an offset that is none", "refused; the edges of 64 bits are right"),
    29: Fault("a hundred thousand managers", "few threads; start and stop bounded"),
    30: Fault("a slow client or a full inbox", "back-pressure, no growth"),
    31: Fault("SIGTERM with the broker down", "exits by the deadline, non-zero, says what is left"),
    32: Fault("SIGTERM twice", "the second forces the exit"),
    33: Fault("an actor raises", "restarted from the coordinator, siblings unhurt"),
    34: Fault("nothing committed, or expired", "its own value, never 0; live ones refreshed"),
    35: Fault("out of file descriptors or threads", "refuses new, keeps old"),
    36: Fault("a topic is deleted and recreated", "no offset of the former log is used"),
}
