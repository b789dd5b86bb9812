"""Where a streaming query is to start so that it goes on from its group."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.places import check_missing, check_topics, places
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsetmgr.client import OffsetClient
    from offsetmgr.spark.places import Missing

_SPARK_NAMES: Final[dict[object, int]] = {"earliest": -2, "latest": -1}
"""How Spark's JSON spells them."""


def starting_offsets(
    client: OffsetClient,
    group: str,
    topics: Collection[str] | None = None,
    missing: Missing = "earliest",
    *,
    pattern: str | None = None,
    timeout: float = 10.0,
) -> str:
    """Where ``group`` stands, as JSON for the option ``startingOffsets`` of a Kafka source.

    It names every partition of ``topics`` and no other, as Spark asks for; or those of all topics
    that ``pattern`` matches as a whole, which is then the source's ``subscribePattern``.  A
    partition without a committed offset starts at ``missing``: an end of its log, the first
    record of a time (a datetime with its time zone), or it is an error.  A committed offset that
    the topic no longer holds is moved to the nearest that it does, with a warning: what lies
    between is lost already.

    Spark ignores the option where the query has a checkpoint, which is its own truth.  ``latest``
    is for streaming queries alone.  Raises InvalidValueError naming a wrong argument;
    ServiceError naming a topic that does not exist; and what else ``client.topics`` and
    ``client.committed`` raise where the service or Kafka does not answer in ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    check_group(group)
    check_missing(missing)
    if pattern is None:
        names = check_topics(topics)
    elif topics is None:
        names = _matching(client, pattern, timeout)
    else:
        raise InvalidValueError("pattern", pattern, "was given beside topics", "give one of them")
    ranges = client.topics(names, timeout=max(0.0, deadline - time.monotonic()))
    found = places(client, group, ranges, missing, max(0.0, deadline - time.monotonic()))
    start: dict[str, dict[str, int]] = {}
    for (topic, number), place in found.items():
        # By name where it has one: the end of a log moves until Spark comes to read it.
        named = None if place.committed is not None else _SPARK_NAMES.get(missing)
        start.setdefault(topic, {})[str(number)] = place.offset if named is None else named
    return json.dumps(start)


def _matching(client: OffsetClient, pattern: object, timeout: float) -> list[str]:
    """The topics that Spark finds by the pattern."""
    if not isinstance(pattern, str):
        fix = 'give a regular expression, such as "orders-.*"'
        raise InvalidValueError("pattern", pattern, "is not text", fix)
    try:
        expression = re.compile(pattern)
    except re.error as error:
        fix = "use what Java's and Python's regular expressions have in common"
        raise InvalidValueError("pattern", pattern, f"cannot be read ({error})", fix) from None
    names = [name for name in client.topic_names(timeout) if expression.fullmatch(name)]
    if not names:
        fix = "create a topic first, or widen it; it has to match the whole name"
        raise InvalidValueError("pattern", pattern, "matches no topic", fix)
    return names
