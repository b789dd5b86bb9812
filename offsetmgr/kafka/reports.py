"""The log and the connection errors of Kafka clients."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from actors import MonotonicClock
from offsetmgr.answers import Failure
from offsetmgr.codes import TIMED_OUT, TRANSPORT, error_info
from offsetmgr.kafka.errors import cause_of
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.text import visible

if TYPE_CHECKING:
    from actors import Clock

_SSL: Final = -181
_CREDENTIALS: Final = frozenset({-169, _SSL})
_NETWORK: Final = frozenset({TRANSPORT, -193})
_REPORT_CHARS: Final = 300
_HANDSHAKE_FAILED: Final = (
    re.compile(r"SSL handshake failed|SSL routines"),
    # Without those words where the broker hangs up at once: connect of rdkafka_ssl.c, io_event of
    # rdkafka_transport.c.  A broker that keeps silent ("Connection setup timed out") is not meant.
    re.compile(r"Disconnected\b.*\bin state SSL_HANDSHAKE\b", re.DOTALL),
)
"""librdkafka's own words, and OpenSSL's, such as of a certificate that is not trusted."""

_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Levels of Python's logging, indexed by syslog's from emergency (0) to debug (7)."""

log = SafeLogger("offsetmgr.kafka")
librdkafka = SafeLogger("offsetmgr.librdkafka")
for _name in ("offsetmgr.kafka", "offsetmgr.librdkafka"):
    # Silent until logging is set up: the same failures are in the answers.
    logging.getLogger(_name).addHandler(logging.NullHandler())


class ConnectionReports:
    """Logs the connection errors of clients, with repeats limited.

    The last error is remembered, so that a time-out can name its cause.
    It is also the ``logger`` of confluent-kafka's clients.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._repeats = RepeatLimiter()
        self._trouble: tuple[int, str] | None = None

    def failed(self, code: int, text: str) -> None:
        """Record the failure of a connection."""
        if code == TRANSPORT and any(sign.search(text) for sign in _HANDSHAKE_FAILED):
            code = _SSL
        text = visible(text, _REPORT_CHARS)
        before = None if self._trouble is None else self._trouble[0]
        if code in _CREDENTIALS:
            if before != code:
                log.error("kafka_refuses_credentials", code=error_info(code).name, reason=text)
        elif code not in _NETWORK or before in _CREDENTIALS:
            return
        self._trouble = code, text

    def answered(self) -> None:
        """Record an answer, which ends the trouble."""
        self._trouble = None

    def timed_out(self) -> Failure:
        """Return why a sent request got no answer in time, as far as is known."""
        trouble = self._trouble
        if trouble is None:
            return Failure(error_info(TIMED_OUT))
        code, text = trouble
        if code in _CREDENTIALS:
            text = f"Kafka did not accept the service's credentials: {text}"
            return Failure(error_info(code), text)
        return Failure(error_info(TIMED_OUT), f"no answer from Kafka in time: {text}")

    def logged(self, level: int, kind: str, text: str) -> None:
        """Log a line of librdkafka's; ``level`` as in syslog."""
        self.log(_LEVELS[min(max(level, 0), len(_LEVELS) - 1)], "", kind, "", text)

    def log(self, level: int, template: str, kind: str, client: str, text: str) -> None:
        """Log one line; ``kind`` is one of librdkafka's few facilities, such as FAIL."""
        del template, client
        suppressed = self._repeats.suppressed((kind, cause_of(text)), self._clock.now())
        if suppressed is not None:
            text = visible(text, _REPORT_CHARS)
            librdkafka.log(level, "librdkafka", kind=kind, text=text, not_shown_before=suppressed)
