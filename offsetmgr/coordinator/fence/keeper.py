"""Takes, keeps and gives up the service's seats; everything here runs in one event loop."""

from __future__ import annotations

import asyncio
import zlib
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from offsetmgr.coordinator.base import CommitResult, Failure
from offsetmgr.coordinator.explain import NOT_SENT
from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.finder import Finder, RefusedError
from offsetmgr.coordinator.fence.link import LinkError
from offsetmgr.coordinator.fence.seat import (
    COMMON_PROTOCOL,
    FENCED_INSTANCE_ID,
    INCONSISTENT_GROUP_PROTOCOL,
    INSTANCE,
    JOINING,
    MOVED,
    NOT_SEATED,
    UNKNOWN_MEMBER_ID,
    UNSEATED,
    Holder,
    Seat,
    Standing,
    alone,
    had_by_another,
    holder_of,
    taken_by,
)
from offsetmgr.coordinator.fence.waits import by, now
from offsetmgr.coordinator.fence.wire import Place
from offsetmgr.errors import Verdict, error_info

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from offsetmgr.coordinator.fence.link import Link, Links
    from offsetmgr.coordinator.fence.wire import Broker, Described, Joined
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

CONNECTIONS: Final = 12
"""To each coordinator: Kafka serves one request of a connection at a time."""

HEARTBEATS: Final = 9
"""How often in its session timeout a seat is confirmed that no commit confirms."""

LOOK_S: Final = 1.0
"""How often it is looked which seats want that."""

JOIN_S: Final = 60.0
"""For an answer to that: Kafka may wait for further members first."""

JOINS: Final = 200
"""Seats asked for at a time, each over a connection of its own."""

NAMES_S: Final = 5.0
"""For the name of the service that has a seat."""

FENCED_LOGGED: Final = 100
"""Lost groups that are logged one by one."""

_TRANSPORT: Final = -195
_TIMED_OUT: Final = -185

log = structlog.get_logger("offsetmgr.coordinator.fence")


class Identity(NamedTuple):
    """Which service asks, and for how long it keeps a seat without a sign of life."""

    service: str
    name: str
    client_id: str
    """Of its requests for a seat, and so of its members; no other service has the same."""
    session_timeout_s: float
    wall: Callable[[], float]
    """The wall clock, for people: when a seat was taken."""


class Keeper:
    """All seats of one service."""

    def __init__(
        self,
        links: Links,
        bootstrap: list[Broker],
        identity: Identity,
        members_of: Callable[[str], Awaitable[str]],
    ) -> None:
        """``members_of`` says who the live members of a group are, for people."""
        self._links = links
        self._finder = Finder(links, bootstrap)
        self._identity = identity
        self._members_of = members_of
        self._seats: dict[str, Seat] = {}
        self._joins = asyncio.Semaphore(JOINS)
        self._beats: set[asyncio.Future[None]] = set()
        self._fenced_so_far = 0

    def count(self, standing: Standing) -> int:
        """How many groups the service stands to like that; for any thread."""
        return sum(seat.standing is standing for seat in list(self._seats.values()))

    # -- what the managers ask for

    async def claim(self, group: str, deadline_s: float) -> Failure | None:
        """Have the seat by ``deadline_s`` of the loop's clock; else why not."""
        seat = self._seats.setdefault(group, Seat(group))
        seat.wanted = True
        if seat.standing is Standing.SEATED:
            return None
        if seat.standing is Standing.FENCED:
            return seat.refusal()
        asking = self._ask(seat)
        left_s = max(deadline_s - now(), 0.0)
        done, _ = await asyncio.wait({asking}, timeout=left_s)
        return asking.result() if done else Failure(JOINING)

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline_s: float
    ) -> CommitResult:
        """Commit from the seat."""
        failure = await self.claim(group, deadline_s)
        if failure is not None:
            return CommitResult(dict.fromkeys(offsets, failure))
        seat = self._seats[group]
        try:
            link = await by(deadline_s, self._link(group))
        except (LinkError, asyncio.TimeoutError) as error:
            return CommitResult(dict.fromkeys(offsets, _not_sent(error)))
        place = seat.place
        if place is None or seat.standing is not Standing.SEATED:  # lost since
            return CommitResult(dict.fromkeys(offsets, Failure(NOT_SEATED)))
        try:
            answer = link.send(wire.offset_commit(place, offsets))
            codes = wire.read_committed(await by(deadline_s, answer))
        except asyncio.TimeoutError:
            return CommitResult(dict.fromkeys(offsets, Failure(error_info(_TIMED_OUT))))
        except (LinkError, wire.MalformedError) as error:
            self._finder.forget(group)
            why = f"no answer from Kafka: {error}"
            return CommitResult(dict.fromkeys(offsets, Failure(error_info(_TRANSPORT), why)))
        return await self._committed(seat, place, offsets, codes, deadline_s)

    async def release(self, group: str) -> None:
        """Give the seat up: the group has no manager left."""
        seat = self._seats.get(group)
        if seat is None or not seat.wanted:
            return
        seat.wanted = False
        async with seat.lock:
            if not seat.wanted:  # nor wanted again meanwhile
                await self._leave(seat)
                if seat.forgettable:
                    del self._seats[group]
                    self._finder.forget(group)

    async def release_all(self) -> None:
        """Give all seats up."""
        await asyncio.gather(*(self.release(group) for group in list(self._seats)))

    def close(self) -> None:
        """End all connections."""
        self._links.close()

    async def keep(self) -> None:
        """Confirm seats that no commit confirms, and ask again for lost ones; for ever."""
        interval_s = self._identity.session_timeout_s / HEARTBEATS
        while True:
            await asyncio.sleep(LOOK_S)
            due_s = now() - interval_s
            for seat in list(self._seats.values()):
                if seat.wanted and seat.heard_s <= due_s:
                    self._confirm(seat)

    def _confirm(self, seat: Seat) -> None:
        if seat.standing is Standing.SEATED and not seat.beating:
            seat.beating = True
            beat = asyncio.ensure_future(self._beat(seat))
            self._beats.add(beat)
            beat.add_done_callback(self._beats.discard)
        elif seat.standing is Standing.OUT and seat.place is not None:
            seat.heard_s = now()  # not more often than a heartbeat
            self._ask(seat)

    # -- taking a seat

    def _ask(self, seat: Seat) -> asyncio.Task[Failure | None]:
        if seat.asking is None or seat.asking.done():
            seat.asking = asyncio.ensure_future(self._asked(seat))
        return seat.asking

    async def _asked(self, seat: Seat) -> Failure | None:
        async with seat.lock, self._joins:
            if seat.standing is not Standing.OUT:
                return None if seat.standing is Standing.SEATED else seat.refusal()
            try:
                contested = await self._contested(seat) if seat.contested else None
                if contested is not None:
                    return contested
                broker = await self._finder.find(seat.group)
                # Of its own: Kafka answers when it has waited for further members, and nothing
                # else over the same connection meanwhile.
                link = await self._links.new(broker, self._identity.client_id)
                try:
                    return await self._take(seat, link)
                finally:
                    link.close()
            except (LinkError, wire.MalformedError) as error:
                self._finder.forget(seat.group)
                return _not_sent(error)

    async def _take(self, seat: Seat, link: Link) -> Failure | None:
        if seat.standing is Standing.FENCED:  # found out while the connection was made
            return seat.refusal()
        lost = seat.place
        joined = await self._join(link, lost or Place(seat.group, INSTANCE, ""))
        regaining = twice = False
        if lost is not None and joined.error in {FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID}:
            twice = joined.error == FENCED_INSTANCE_ID
            if twice and not await self._is_ours(seat):
                return await self._fenced(seat)
            regaining = True
            seat.unanswered += 1
            joined = await self._join(link, lost._replace(member=""))
            seat.unanswered -= 1
        if joined.error:
            return await self._not_joined(seat, joined.error, first=lost is None)
        place = Place(seat.group, INSTANCE, joined.member, joined.generation)
        if not alone(joined):
            await link.send(wire.leave_group(place))
            return await self._held_by_members(seat)
        if regaining and not seat.regained(joined, twice=twice):
            await link.send(wire.leave_group(place))
            return self._fence(seat, had_by_another(seat.group))
        if lost is not None:
            seat.grant(place)
        return await self._sit_down(seat, place, link, first=lost is None)

    async def _sit_down(
        self, seat: Seat, place: Place, link: Link, *, first: bool
    ) -> Failure | None:
        code = wire.read_error(await link.send(wire.sync_group(place, wire.NOTHING_ASSIGNED)))
        if code:
            return await self._not_joined(seat, code, first=first)
        seat.take(place, now())
        log.debug("group_held", group=seat.group, generation=place.generation)
        return None

    async def _contested(self, seat: Seat) -> Failure | None:
        """Who was given the place that was ours, before we sat down; None where it is free again.

        A newer service stays there.  An older one, which did not know that it was replaced, finds
        out by that place and leaves it.
        """
        for member in await self._describe(seat.group):
            if not member.metadata:
                return Failure(JOINING)  # it has not heard of its place yet
            holder = holder_of(member)
            if holder is not None:
                return self._fence(seat, taken_by(seat.group, holder, member.host))
        seat.contested = False
        return None

    async def _join(self, link: Link, place: Place) -> Joined:
        joined = await self._joined(link, place, COMMON_PROTOCOL)
        if joined.error != INCONSISTENT_GROUP_PROTOCOL:
            return joined
        # A coordinator that has read the group from its log knows of the holder only the protocol
        # that was in use, which is the holder's own.
        members = await self._members(link, place.group)
        theirs = [_protocol_of(holder.service) for holder in map(holder_of, members) if holder]
        return await self._joined(link, place, COMMON_PROTOCOL, *theirs) if theirs else joined

    async def _joined(self, link: Link, place: Place, *protocols: str) -> Joined:
        """Ask for the seat with our own protocol first, then ``protocols``."""
        identity = self._identity
        since = datetime.fromtimestamp(identity.wall(), timezone.utc).isoformat(timespec="seconds")
        request = wire.join_group(
            place,
            (_protocol_of(identity.service), *protocols),
            Holder(identity.service, identity.name, since).metadata(),
            int(identity.session_timeout_s * 1_000),
            # Also how long Kafka keeps a place of which the answer was lost: see _is_ours.
            int(identity.session_timeout_s * 1_000),
        )
        return wire.read_joined(await link.send(request, JOIN_S))

    async def _not_joined(self, seat: Seat, code: int, *, first: bool) -> Failure:
        if code == FENCED_INSTANCE_ID:
            seat.contested = first
            return Failure(JOINING) if first else await self._fenced(seat)
        if code == INCONSISTENT_GROUP_PROTOCOL:
            return await self._held_by_members(seat)
        if code in MOVED:
            self._finder.forget(seat.group)
        # Whatever the code leaves open: no commit was sent.
        return Failure(error_info(code)._replace(verdict=Verdict.REFUSED))

    async def _held_by_members(self, seat: Seat) -> Failure:
        """Ordinary consumers are in the group: the same answer as a commit without a fence gets."""
        return Failure(error_info(UNKNOWN_MEMBER_ID), await self._members_of(seat.group))

    # -- losing one

    async def _committed(
        self,
        seat: Seat,
        place: Place,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        codes: Mapping[tuple[str, int], int],
        deadline_s: float,
    ) -> CommitResult:
        """What the coordinator's answer to a commit means."""
        seen = set(codes.values())
        refused: dict[int, Failure] = {code: Failure(error_info(code)) for code in seen}
        if FENCED_INSTANCE_ID in seen and not seat.sits_on(place):
            fenced = seat.standing is Standing.FENCED
            refused[FENCED_INSTANCE_ID] = seat.refusal() if fenced else Failure(NOT_SEATED)
        elif FENCED_INSTANCE_ID in seen:
            refused[FENCED_INSTANCE_ID] = await self._fenced(seat, deadline_s)
        elif seen & UNSEATED:
            seat.lose(place)
            refused |= dict.fromkeys(seen & UNSEATED, Failure(NOT_SEATED))
        elif seen & MOVED:
            self._finder.forget(seat.group)
        elif seen:
            seat.heard_s = now()  # Kafka takes a commit for a heartbeat
        missing = Failure(error_info(-1), "Kafka's answer does not name this partition")
        failures = {
            p: refused.get(codes[p], missing) if p in codes else missing
            for p in offsets
            if codes.get(p) != 0
        }
        return CommitResult(failures)

    async def _beat(self, seat: Seat) -> None:
        place = seat.place
        try:
            if place is None:
                return
            link = await self._link(seat.group)
            code = wire.read_error(await link.send(wire.heartbeat(place)))
            if code == FENCED_INSTANCE_ID and seat.sits_on(place):
                await self._fenced(seat)
            elif code in UNSEATED:
                seat.lose(place)
                self._ask(seat)
            elif code in MOVED:
                self._finder.forget(seat.group)
            elif code != FENCED_INSTANCE_ID:
                seat.heard_s = now()
        except (LinkError, wire.MalformedError):
            self._finder.forget(seat.group)
        finally:
            seat.beating = False

    async def _leave(self, seat: Seat) -> None:
        place = seat.place
        if seat.standing is not Standing.SEATED or place is None:
            return
        seat.standing = Standing.OUT
        try:
            link = await self._link(seat.group)
            code = wire.read_left(await link.send(wire.leave_group(place)))
        except (LinkError, wire.MalformedError):
            return  # Kafka finds out; until then the place is remembered
        if code == FENCED_INSTANCE_ID:
            await self._fenced(seat)
        elif not code:
            seat.place = None

    async def _fenced(self, seat: Seat, deadline_s: float | None = None) -> Failure:
        """Another service has the seat: find out which, and never commit again."""
        until_s = now() + NAMES_S if deadline_s is None else deadline_s
        holder, host = None, ""
        try:
            for member in await by(until_s, self._describe(seat.group)):
                holder, host = holder_of(member), member.host
        except (LinkError, wire.MalformedError, asyncio.TimeoutError):
            pass  # that there is one is what matters
        return self._fence(seat, taken_by(seat.group, holder, host))

    async def _describe(self, group: str) -> list[Described]:
        return await self._members(await self._link(group), group)

    async def _members(self, link: Link, group: str) -> list[Described]:
        code, members = wire.read_described(await link.send(wire.describe_group(group)))
        if code in MOVED:
            self._finder.forget(group)
        if code:  # of a group that cannot be read now nothing may be concluded
            raise RefusedError(error_info(code))
        return members

    def _fence(self, seat: Seat, why: str) -> Failure:
        if seat.standing is not Standing.FENCED:
            seat.fence(why)
            self._fenced_so_far += 1  # for good, each of them: no need to count anew
            if self._fenced_so_far <= FENCED_LOGGED:
                log.error("group_fenced", group=seat.group, reason=why)
            elif self._fenced_so_far == FENCED_LOGGED + 1:
                log.error("groups_fenced_more", reason="further ones are counted in the metrics")
        return seat.refusal()

    async def _is_ours(self, seat: Seat) -> bool:
        """Whether the holder is this service: an earlier answer to its request was lost."""
        if not seat.unanswered:
            return False
        # Of a member that has not heard of its place yet Kafka shows no metadata.
        members = await self._describe(seat.group)
        return any(member.client_id == self._identity.client_id for member in members)

    # -- ways

    async def _link(self, group: str) -> Link:
        broker = await self._finder.find(group)
        return await self._links.get(broker, zlib.crc32(group.encode()) % CONNECTIONS)


def _not_sent(error: Exception) -> Failure:
    """Why a commit was not sent, whatever is open about the requests before it."""
    if isinstance(error, RefusedError):
        return Failure(error.info._replace(verdict=Verdict.REFUSED))
    why = str(error) or "the time was over"
    return Failure(NOT_SENT, f"nothing was sent, as the coordinator was not reached: {why}")


def _protocol_of(service: str) -> str:
    """The assignment protocol of a service's own."""
    return f"{COMMON_PROTOCOL}-{service}"
