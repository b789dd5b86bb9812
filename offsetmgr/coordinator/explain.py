"""What both sides of the port say to people: who holds a group, and what was never sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import ErrorInfo, Fault, Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMBERS_NAMED: Final = 3
"""Live members named in one message; the rest are counted."""

_NAME_CHARS: Final = 100

NOT_SENT: Final = ErrorInfo(
    -166, "NOT_SENT", True, Scope.GROUP, Fault.NETWORK, Verdict.REFUSED,  # noqa: FBT003
    "the request was still waiting for a free connection at its deadline and was never sent; "
    "tried again; check whether Kafka is slow or down",
)  # fmt: skip
"""The deadline passed before the request was handed to the Kafka client: it had no effect."""

QUEUE_FULL: Final = ErrorInfo(
    -184, "QUEUE_FULL", True, Scope.GROUP, Fault.NETWORK, Verdict.REFUSED,  # noqa: FBT003
    "too many requests are waiting for Kafka, so this one was not sent; tried again; check "
    "whether Kafka is slow or down",
)  # fmt: skip
"""The bounded queue before the Kafka client was full: the request had no effect."""

CLOSED: Final = ErrorInfo(
    -197, "CLOSED", False, Scope.GROUP, Fault.CALLER, Verdict.REFUSED,  # noqa: FBT003
    "the coordinator's connections were closed before this request was sent",
)  # fmt: skip
"""The coordinator was closed before the request was sent: it had no effect."""


class Member(NamedTuple):
    """A live member of a consumer group, as the broker describes it."""

    client_id: str
    host: str


def live_members(group: str, members: Sequence[Member]) -> str:
    """Who holds ``group``, in one line: for the ``detail`` of an UNKNOWN_MEMBER_ID."""
    named = [f"{one_line(m.client_id)}, host {one_line(m.host)}" for m in members[:MEMBERS_NAMED]]
    more = len(members) - len(named)
    if more > 0:
        named.append(f"and {more} more")
    who = "; ".join(named)
    return f"group {one_line(group)} has live members ({who}); commit to another group or stop them"


def one_line(text: str, most_chars: int = _NAME_CHARS) -> str:
    """``text`` with control and unprintable characters escaped, and cut when long."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text[:most_chars]
    )
    return shown if len(text) <= most_chars else f"{shown}…"
