"""A member's client of librdkafka: what it is asked for at once, and its errors."""

from __future__ import annotations

from typing import Final

SLICE_S: Final = 0.1
"""Longest single wait for Kafka, so that another thread's turn comes soon."""

PREFETCH: Final = 500
"""Messages taken from librdkafka at once where they are handed out one by one."""

END: Final = -191
"""librdkafka's _PARTITION_EOF."""

FATAL: Final = -150
"""librdkafka's _FATAL, of a client that can do no more."""

OUT_OF_RANGE: Final = frozenset({-140, -139})
"""librdkafka's _AUTO_OFFSET_RESET and _LOG_TRUNCATION."""

REFUSING: Final = frozenset({-169, -181, -187, -193})
"""librdkafka's _AUTHENTICATION, _SSL, _ALL_BROKERS_DOWN and _RESOLVE: errors of connections that
are reported.  Others are followed by one of these, or by none."""
