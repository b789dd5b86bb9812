"""Messages of the port: requests that were never sent, and the live members of a group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import ErrorInfo, Fault, Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMBERS_NAMED: Final = 3
"""Live members named in one message; the rest are counted."""

_NAME_CHARS: Final = 100

_VARYING: Final = re.compile(r"\S+/(?:bootstrap|\d+)\b|'[^']*'|\(after .*|\d+", re.DOTALL)
"""Names of brokers, times with counts of repetitions, other numbers."""

NOT_SENT: Final = ErrorInfo(
    -166, "NOT_SENT", True, Scope.GROUP, Fault.NETWORK, Verdict.REFUSED,  # noqa: FBT003
    "the request was still waiting for a free connection at its deadline and was never sent; "
    "tried again; check whether Kafka is slow or down",
)  # fmt: skip
"""The deadline passed before the request was handed to the Kafka client: it had no effect."""

CLOSED: Final = ErrorInfo(
    -197, "CLOSED", False, Scope.GROUP, Fault.CALLER, Verdict.REFUSED,  # noqa: FBT003
    "the coordinator's connections were closed before this request was sent",
)  # fmt: skip
"""The coordinator was closed before the request was sent: it had no effect."""


class LiveMember(NamedTuple):
    """A live member of a consumer group, as the broker describes it."""

    client_id: str
    host: str
    member_id: str = ""
    instance_id: str = ""
    """Its ``group.instance.id``; empty without one."""


def live_members(group: str, members: Sequence[LiveMember]) -> str:
    """Return the members in one line, for the ``detail`` of an UNKNOWN_MEMBER_ID."""
    named = [f"{one_line(m.client_id)}, host {one_line(m.host)}" for m in members[:MEMBERS_NAMED]]
    more = len(members) - len(named)
    if more > 0:
        named.append(f"and {more} more")
    who = "; ".join(named)
    return f"group {one_line(group)} has live members ({who}); commit to another group or stop them"


def cause_of(text: str) -> str:
    """Return librdkafka's ``text`` without what differs from one broker, or time, to the next."""
    return _VARYING.sub("", text)


def one_line(text: str, most_chars: int = _NAME_CHARS) -> str:
    """Return ``text`` with control and unprintable characters escaped, and cut when long."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text[:most_chars]
    )
    return shown if len(text) <= most_chars else f"{shown}…"
