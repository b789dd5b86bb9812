"""The clients of the service: what each owns, and the newest version seen of each partition."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from offsetmgr.errors import ClientFencedError, OverloadedError
from offsetmgr.service.errors import ClientExistsError
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from offsetmgr.service.messages import Caller, StreamingQuery

_K = TypeVar("_K")

STOPS_KEPT: Final = 100_000
"""Partitions whose last stop is remembered, so that no late request undoes it."""

STOPS_SHARE: Final = 1_000
"""Of them for each client, however many there are."""

FENCES_KEPT: Final = 10_000
"""Incarnations that are remembered after another one has taken over, or their lease has ended."""

FENCE_S: Final = 24 * 3600.0
"""Seconds for which they are remembered."""

NEVER: Final = -1
"""Lower than any version."""

LISTENS_S: Final = 3.0
"""The longest time between two calls in which the service listens to its clients: it looks for
silent ones about each second.  What is longer was a standstill, of which no lease runs out."""


class QueryReport(NamedTuple):
    """The streaming queries of a client."""

    queries: Sequence[StreamingQuery] = ()
    at_s: float = 0.0
    """When it reported them."""
    size: int = 0
    """Bytes in JSON."""


NO_QUERIES: Final = QueryReport()


@dataclass(eq=False)
class Client:
    """One name, its newest incarnation, and what it owns."""

    name: str
    incarnation: int
    identity: str = ""
    heard_s: float = 0.0
    """When its lease begins, in seconds of listening: at its last request, or when it has waited
    for the answer."""
    waits: int = 0
    """Requests under way whose answers it waits for."""
    newest: int = NEVER
    """The highest version seen."""
    held: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    """Its managers by group, each with the highest version seen."""
    stopped: dict[ManagerKey, int] = field(default_factory=dict)
    stopped_all: int = NEVER
    """The version of the last stop of everything."""
    queries: QueryReport = NO_QUERIES
    refusal: tuple[ClientExistsError | None, float] = (None, 0.0)
    """Why another incarnation was refused last, and when."""

    @property
    def closed(self) -> bool:
        """True if its last request with a version has stopped everything."""
        return self.stopped_all > NEVER and self.stopped_all >= self.newest

    def keys(self) -> list[ManagerKey]:
        return [ManagerKey(group, *where) for group, held in self.held.items() for where in held]

    def holds(self, key: ManagerKey) -> bool:
        return key.topic_partition in self.held.get(key.group, {})

    def succeed(self, incarnation: int) -> None:
        """Hand all managers to another incarnation, whose versions begin at the lowest again."""
        self.incarnation = incarnation
        self.heard_s, self.waits = 0.0, 0
        self.refusal = (None, 0.0)
        self.newest = self.stopped_all = NEVER
        self.stopped.clear()
        self.queries = NO_QUERIES
        for held in self.held.values():
            for where in held:
                held[where] = NEVER

    def take(self, group: str, versions: Mapping[TopicPartition, int]) -> None:
        if versions:
            self.held[group].update(versions)

    def version(self, given: int | None) -> int:
        """Return ``given``; where there is none, the request is newer than all before."""
        version = self.newest + 1 if given is None else given
        self.newest = max(self.newest, version)
        return version


class Sorting(NamedTuple):
    """The versions of a request's partitions, but of those that were seen before."""

    mine: dict[TopicPartition, int]
    new: dict[TopicPartition, int]
    """Of partitions that are not this client's."""
    stopped: dict[TopicPartition, int]
    """Of partitions that a newer request has stopped."""


class Registry:
    """The clients of the service, and the order of the incarnations of each.

    An incarnation is the time at which a client started, by the clock of its own machine, which
    may be wrong.  So it decides only while two are alive: the higher one takes over at once.  Once
    a client is closed or its lease has ended, any other incarnation takes over.  An incarnation
    that another one has replaced stays fenced, whatever the clocks say.

    A lease runs while the service listens.  A service that was paused, or whose machine stood
    still, has heard nobody meanwhile, and calls nobody silent for it.
    """

    def __init__(
        self,
        *,
        lease_s: float,
        clients: int,
        managers: int,
        groups: int = sys.maxsize,
        share: Callable[[str, int], int] = lambda _identity, limit: limit,
    ) -> None:
        """The numbers are limits; ``share`` returns how much of one an identity may use."""
        self.lease_s = lease_s
        self.share = share
        self._group_limit = groups
        self._client_limit = clients
        self._manager_limit = managers
        self._clients: dict[str, Client] = {}
        self._lapsed: dict[str, tuple[int, float]] = {}
        """The last incarnation of each client whose lease has ended, and when.

        It may come back until another one comes.
        """
        self._fenced: dict[tuple[str, int], float] = {}
        """Names with a replaced incarnation → when it was replaced."""
        self._managers = 0
        self._anybody_came = False
        self._called_s = -math.inf
        self._listened_s = 0.0

    @property
    def deserted(self) -> bool:
        """True if clients have come, and all of them have closed or lapsed."""
        return self._anybody_came and all(each.closed for each in self._clients.values())

    def clients(self) -> list[Client]:
        """Return the clients whose lease has not lapsed."""
        return list(self._clients.values())

    def find(self, name: str) -> Client | None:
        return self._clients.get(name)

    def lease_left_s(self, name: str, now: float) -> float:
        """Return the seconds until a client that stays silent loses what it owns."""
        client, listened_s = self._clients.get(name), self._listen(now)
        return 0.0 if client is None else min(0.0, client.heard_s - listened_s) + self.lease_s

    def refusal(self, name: str, now: float) -> ClientExistsError | None:
        """Return why another incarnation of a client was refused within the last lease."""
        client = self._clients.get(name)
        error, at_s = (None, now) if client is None else client.refusal
        return error if now - at_s <= self.lease_s else None

    def renew(self, caller: Caller, now: float) -> None:
        """Renew the lease of a known client.  Raises ClientFencedError."""
        self.check_fence(caller)
        client, listened_s = self._clients.get(caller.name), self._listen(now)
        if client is not None and client.incarnation == caller.incarnation:
            client.heard_s = max(client.heard_s, listened_s)

    def answered(self, client: Client, now: float) -> None:
        """Begin the lease of a client that has waited until now, and waits for no other answer."""
        client.waits -= 1
        if not client.waits:
            client.heard_s = self._listen(now)

    def enter(self, caller: Caller, now: float, wait_s: float = 0.0, identity: str = "") -> Client:
        """Return the client, new or renewed, of a request that changes something.

        It may wait up to ``wait_s`` for the answer, and is not silent meanwhile.  Raises
        ClientFencedError, ClientExistsError, OverloadedError.
        """
        self.check_fence(caller)
        name, incarnation = caller.name, caller.incarnation
        client = self._clients.get(name)
        if client is None:
            share = self.share(identity, self._client_limit)
            for taken, limit, whose in (
                (len(self._clients), self._client_limit, "the service"),
                (len(self._of(identity)), share, f"identity {identity!r}"),
            ):
                if taken >= limit:
                    text = f"{whose} has {limit} clients, its limit (limits.clients)"
                    raise OverloadedError(f"{text}; try again later, or raise it")
            client = self._clients[name] = Client(name, incarnation, identity)
            self._anybody_came = True
            before, _ = self._lapsed.pop(name, (incarnation, now))
            if before != incarnation:
                self._fenced[name, before] = now
        elif client.incarnation != incarnation:
            left_s = self.lease_left_s(name, now)
            if incarnation < client.incarnation and left_s >= 0 and not client.closed:
                error = ClientExistsError(name, left_s)
                client.refusal = error, now
                raise error
            self._fenced[name, client.incarnation] = now
            client.succeed(incarnation)
        client.heard_s = max(client.heard_s, self._listen(now) + wait_s)
        client.waits += wait_s > 0
        return client

    def check_fence(self, caller: Caller) -> None:
        """Raise ClientFencedError if another incarnation has taken over from the caller."""
        if (caller.name, caller.incarnation) in self._fenced:
            raise ClientFencedError(
                f"another process has taken over as client {caller.name!r}; stop this one, or "
                "give it a name of its own"
            )

    def sort(
        self, client: Client, group: str, given: Iterable[tuple[TopicPartition, int | None]]
    ) -> Sorting:
        """Return which partitions the client owns, and for which the version comes too late."""
        mine, new, stopped = sorting = Sorting({}, {}, {})
        held, newest = client.held.get(group, {}), client.newest
        for where, number in given:
            version = newest + 1 if number is None else number  # ``version``, without a call
            if version > newest:  # noqa: PLR1730 -- faster than max
                newest = version
            seen = held.get(where)
            if seen is not None:
                if seen < version:  # else it was taken before
                    mine[where] = version
            elif (
                client.stopped_all >= version
                or client.stopped.get(ManagerKey(group, *where), NEVER) >= version
            ):
                stopped[where] = version
            else:
                new[where] = version
        client.newest = newest
        return sorting

    def room(
        self, client: Client, group: str, leaving: Mapping[str, Sequence[ManagerKey]]
    ) -> tuple[int, str]:
        """Return how many more managers of a group the client may have, and the setting's name.

        ``leaving`` are those being stopped, by identity.
        """
        identity = client.identity
        held, mine = [each.held for each in self._of(identity)], leaving.get(identity, ())
        groups = {key.group for key in mine}.union(*held)
        share = self.share(identity, self._group_limit)
        if identity and group not in groups and len(groups) >= share:
            return 0, "limits.fenced_groups"
        taken = sum(len(partitions) for names in held for partitions in names.values())
        left = self._manager_limit - self._managers - sum(map(len, leaving.values()))
        own = self.share(identity, self._manager_limit) - taken - len(mine)
        return max(0, min(left, own)), "limits.managers"

    def _of(self, identity: str) -> list[Client]:
        return [each for each in self._clients.values() if each.identity == identity]

    def own(self, client: Client, group: str, partitions: Collection[TopicPartition]) -> None:
        """Note that ``client`` owns ``partitions`` from now on; of none a version was taken."""
        client.held.setdefault(group, {}).update(dict.fromkeys(partitions, NEVER))
        self._managers += len(partitions)
        for where in partitions:
            client.stopped.pop(ManagerKey(group, *where), None)

    def stop(self, client: Client, keys: Iterable[ManagerKey], version: int) -> list[ManagerKey]:
        """Take ``keys`` from ``client``; return those that it owned and did not touch since.

        No request with a lower version gives them back to it.
        """
        stopped = []
        for key in keys:
            seen = client.held.get(key.group, {}).get(key.topic_partition, NEVER)
            if seen > version:
                continue
            if self.disown(client, key):
                stopped.append(key)
            client.stopped[key] = max(version, client.stopped.pop(key, NEVER))
        _bound(client.stopped, max(STOPS_KEPT // len(self._clients), STOPS_SHARE))
        return stopped

    def disown(self, client: Client, key: ManagerKey) -> bool:
        """Take ``key`` from ``client``; return True if it owned it."""
        held = client.held.get(key.group, {})
        if held.pop(key.topic_partition, None) is None:
            return False
        self._managers -= 1
        if not held:
            del client.held[key.group]
        return True

    def lapse(self, now: float) -> list[tuple[Client, list[ManagerKey]]]:
        """Forget clients that were silent for a lease; return them, and what they owned.

        Call it about each second: what is longer than LISTENS_S counts as a standstill.
        """
        ended_s = self._listen(now) - self.lease_s
        silent = [each for each in self._clients.values() if each.heard_s < ended_s]
        lapsed = []
        for client in silent:
            keys = client.keys()
            self._managers -= len(keys)
            del self._clients[client.name]
            self._lapsed[client.name] = client.incarnation, now
            lapsed.append((client, keys))
        self._expire(now)
        return lapsed

    def _listen(self, now: float) -> float:
        """Return for how many seconds the service has listened to its clients."""
        self._listened_s += min(now - self._called_s, LISTENS_S)
        self._called_s = now
        return self._listened_s

    def _expire(self, now: float) -> None:
        # Both are in the order of time.
        while self._fenced and now - next(iter(self._fenced.values())) > FENCE_S:
            del self._fenced[next(iter(self._fenced))]
        while self._lapsed and now - next(iter(self._lapsed.values()))[1] > FENCE_S:
            del self._lapsed[next(iter(self._lapsed))]
        _bound(self._fenced, FENCES_KEPT)
        _bound(self._lapsed, FENCES_KEPT)


def _bound(kept: dict[_K, Any], limit: int) -> None:
    while len(kept) > limit:
        del kept[next(iter(kept))]
