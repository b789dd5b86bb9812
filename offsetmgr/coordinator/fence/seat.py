"""What the fence knows of one group, and what Kafka's answers mean for it; nothing here waits.

A service has its *seat* in a group as the only member.  All services ask for the same
``group.instance.id``, so a newer one gets the seat and Kafka refuses whatever the older one sends
(FENCED_INSTANCE_ID).  Who loses its seat because it was silent for too long asks for it again,
and has to know whether somebody else has had it meanwhile.  Generations tell: Kafka counts one up
when a group becomes empty and one for each new holder of the seat, so alone it is two.
"""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.explain import one_line
from offsetmgr.coordinator.fence import wire
from offsetmgr.errors import ErrorInfo, Fault, Scope, Verdict, error_info

if TYPE_CHECKING:
    from offsetmgr.coordinator.fence.wire import Described, Joined, Place

INSTANCE: Final = "offsetmgr"
"""``group.instance.id`` of every service: there is one seat in a group."""

COMMON_PROTOCOL: Final = "offsetmgr"
"""Name of the assignment protocol that all services offer, and nobody else: Kafka keeps ordinary
consumers out of the group.  Each also offers one of its own, first: Kafka then chooses another one
with each new holder of the seat, which is what makes it count a new generation."""

UNKNOWN_MEMBER_ID: Final = 25
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
REBALANCE_IN_PROGRESS: Final = 27
FENCED_INSTANCE_ID: Final = 82

UNSEATED: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS})
"""Answers that say: ask for the seat again."""

MOVED: Final = frozenset({14, 15, 16})
"""Answers that say: ask who coordinates the group."""

_ALONE: Final = 2
"""How many generations pass while a group loses its only member and gets it back."""

NOT_SEATED: Final = ErrorInfo(
    UNKNOWN_MEMBER_ID, "NOT_SEATED", True, Scope.GROUP, Fault.NETWORK, Verdict.REFUSED,  # noqa: FBT003
    "the service was silent for too long and lost its place in the group, so nothing was "
    "committed; it takes it again unless another service has had it; tried again",
)  # fmt: skip
"""A commit came after the seat was lost: it had no effect."""

JOINING: Final = ErrorInfo(
    REBALANCE_IN_PROGRESS, "JOINING", True, Scope.GROUP, Fault.BROKER, Verdict.REFUSED,  # noqa: FBT003
    "the service is still asking for its place in the group, which takes as long as the broker's "
    "group.initial.rebalance.delay.ms; nothing was sent; tried again",
)  # fmt: skip
"""The deadline passed before the service had its seat: the request was not sent."""


class Standing(Enum):
    """How the service stands to a group."""

    OUT = "out"
    """It has no seat: not yet, not any more, or lost."""
    SEATED = "seated"
    FENCED = "fenced"
    """Another service has, or had, the seat: for good."""


class Seat:
    """One group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.standing = Standing.OUT
        self.place: Place | None = None
        """The last place that was had and not given up; None where there was none."""
        self.wanted = False
        """Whether there are managers that commit."""
        self.unanswered = 0
        """Requests for the lost seat whose answer was lost too."""
        self.contested = False
        """Whether somebody else was given the first place of ours before we sat down."""
        self.heard_s = 0.0
        """When the coordinator last confirmed the seat, in the event loop's seconds."""
        self.beating = False
        """Whether a heartbeat is under way."""
        self.lock = asyncio.Lock()
        """Held while the seat is asked for or given up."""
        self.asking: asyncio.Task[Failure | None] | None = None
        """The request for the seat, where one is under way."""
        self.why = ""
        """Who has the seat, where the service is fenced."""

    @property
    def forgettable(self) -> bool:
        """Whether there is nothing to remember of the group."""
        return self.standing is Standing.OUT and self.place is None and not self.wanted

    def grant(self, place: Place) -> None:
        """It was given back: whatever becomes of the next request, this place is asked for."""
        self.place = place
        self.unanswered = 0

    def take(self, place: Place, now_s: float) -> None:
        """It is ours."""
        self.grant(place)
        self.heard_s = now_s
        self.standing = Standing.SEATED

    def sits_on(self, place: Place) -> bool:
        """Whether ``place`` is ours, as far as is known.

        Kafka says of one that we have lost, and are about to replace or have replaced by a newer
        one, that somebody else has it: that is ourselves, or it is found out when we ask.
        """
        return self.standing is Standing.SEATED and self.place == place

    def lose(self, place: Place) -> None:
        """``place`` is lost, unless it has been replaced by a newer one."""
        if self.sits_on(place):
            self.standing = Standing.OUT

    def fence(self, why: str) -> None:
        """Never commit again."""
        self.standing = Standing.FENCED
        self.why = why

    def refusal(self) -> Failure:
        """Why nothing is committed, where the service is fenced."""
        return Failure(error_info(FENCED_INSTANCE_ID), self.why)

    def regained(self, joined: Joined, *, twice: bool) -> bool:
        """Whether nobody else can have had the seat since it was lost.

        ``twice``: the one that was in it was this service already, and had not heard of it.  Where
        nobody was in it, one generation more is that of somebody else who has come and gone.
        """
        if self.place is None:
            return True
        alone = self.place.generation + _ALONE
        # With two answers lost, one more generation may be ours or somebody else's.
        return alone <= joined.generation <= alone + twice


def alone(joined: Joined) -> bool:
    """Whether the member leads a group of one: not so beside consumers of the newer protocol."""
    return joined.leader == joined.member and joined.members == (joined.member,)


class Holder(NamedTuple):
    """Which service has a seat, as it wrote into its membership."""

    service: str
    """Never the same for two processes."""
    name: str
    """For people: host and process."""
    since: str
    """When it took the seat, ISO 8601 in UTC."""

    def metadata(self) -> bytes:
        """As a member's metadata."""
        return wire.subscription(json.dumps(self._asdict()).encode())


def holder_of(member: Described) -> Holder | None:
    """The service behind ``member``; None where it is none of ours."""
    try:
        found = json.loads(wire.user_data_of(member.metadata))
        return Holder(*(str(found[field]) for field in Holder._fields))
    except (ValueError, TypeError, KeyError):
        return None


def taken_by(group: str, holder: Holder | None, host: str) -> str:
    """What an operator has to know of a group that is lost to another service."""
    who = "another service"
    if holder is not None:
        name, since = one_line(holder.name), one_line(holder.since)
        who = f"the service on {name} (address {one_line(host)}) since {since}"
    return (
        f"group {one_line(group)} is now owned by {who}; this service commits nothing of it any "
        "more; run one service for a group: stop this one, or, where this is the right one, stop "
        "the other and restart this one"
    )


def had_by_another(group: str) -> str:
    """The same, where the other one is gone again."""
    return (
        f"group {one_line(group)} was owned by another service while this one was cut off from "
        "Kafka, so what this one holds may be old; it commits nothing of the group any more; "
        "check what is committed, then restart this service"
    )
