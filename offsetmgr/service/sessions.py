"""Who the clients are, what each of them owns, and which request is newer; pure bookkeeping.

Nothing here waits, reads a clock or talks to a manager: ``now`` is handed in, and what has to be
spawned or stopped is the answer.  One thread (the service's) changes a registry; ``owner`` may be
asked from any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from offsetmgr.errors import ClientFencedError, OverloadedError
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")
_K = TypeVar("_K")

ANSWERS_KEPT: Final = 16
"""Answers repeated to a client that sends a request again."""

ANSWER_ENTRIES_KEPT: Final = 20_000
"""Entries in all kept answers of a client but the newest: a limit on their memory."""

RELEASED_KEPT: Final = 10_000
"""Managers a client has given back whose last sequence is remembered."""

FENCES_KEPT: Final = 10_000
"""Names of gone clients whose incarnation is remembered."""


class Caller(NamedTuple):
    """Who sends a request, as its headers say."""

    name: str
    incarnation: int = 0
    """Larger is newer: a restarted client takes over from the one before."""
    sequence: int | None = None
    """Rises with each request that changes something; None stands for the newest."""


class Answers(Generic[_T]):
    """The answers of the last requests, by sequence."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[_T, int]] = {}

    def get(self, sequence: int) -> _T | None:
        """The answer to ``sequence``, which may still be under way."""
        found = self._answers.get(sequence)
        return None if found is None else found[0]

    def put(self, sequence: int, answer: _T, entries: int = 0) -> None:
        """Keep ``answer``; older ones make room, by number and by the ``entries`` they hold."""
        self._answers[sequence] = (answer, entries)
        older = sorted(self._answers)[:-1]
        room = ANSWER_ENTRIES_KEPT
        for number, each in enumerate(reversed(older), start=1):
            room -= self._answers[each][1]
            if number >= ANSWERS_KEPT or room < 0:
                del self._answers[each]

    def drop(self, sequence: int) -> None:
        """Forget an answer: the request had no effect and may be sent again."""
        self._answers.pop(sequence, None)

    def __len__(self) -> int:
        return len(self._answers)


class Client(Generic[_T]):
    """One name, its newest incarnation, and what it owns."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.renewed_s = 0.0
        self.under_way = 0
        """Requests of this incarnation that have no answer yet: till then it is not silent."""
        self.highest = -1
        """Highest sequence seen."""
        self.held: dict[str, dict[TopicPartition, int]] = {}
        """Its managers by group, each with the last sequence that touched it."""
        self.released: dict[ManagerKey, int] = {}
        """Managers it gave back, with the sequence that did it."""
        self.answers: Answers[_T] = Answers()

    def keys(self) -> list[ManagerKey]:
        """Everything it owns."""
        return [ManagerKey(group, *where) for group, held in self.held.items() for where in held]

    def succeed(self, incarnation: int) -> None:
        """A newer incarnation takes over: same managers, sequences from the start."""
        self.incarnation = incarnation
        self.under_way = 0
        self.highest = -1
        self.released.clear()
        self.answers = Answers()
        for held in self.held.values():
            for where in held:
                held[where] = -1

    def begin(self) -> None:
        """A request of this incarnation is under way."""
        self.under_way += 1

    def end(self, incarnation: int, now: float) -> None:
        """A request of ``incarnation`` is over: renew the lease, unless a newer one has it."""
        if incarnation == self.incarnation:
            self.under_way -= 1
            self.renewed_s = now


class Sorting(NamedTuple):
    """Partitions of a request by what stands against or for them."""

    mine: list[TopicPartition]
    new: list[TopicPartition]
    """Nobody's."""
    late: list[TopicPartition]
    """Touched by a newer request already: nothing is to be done."""
    foreign: dict[TopicPartition, str]
    """Another client's, with its name."""


class Registry(Generic[_T]):
    """All clients.  ``_T`` is whatever stands for an answer."""

    def __init__(self, *, lease_s: float, clients: int, managers: int) -> None:
        """``clients`` and ``managers`` are how many there may be."""
        self.lease_s = lease_s
        self._client_limit = clients
        self._manager_limit = managers
        self._clients: dict[str, Client[_T]] = {}
        self._owners: dict[str, dict[TopicPartition, str]] = {}
        self._fences: dict[str, int] = {}
        self._managers = 0

    @property
    def client_count(self) -> int:
        """Clients whose lease has not lapsed."""
        return len(self._clients)

    @property
    def manager_count(self) -> int:
        """Managers owned by them."""
        return self._managers

    def owner(self, key: ManagerKey) -> str | None:
        """Name of the client that owns ``key``; for any thread."""
        owners = self._owners.get(key.group)
        return None if owners is None else owners.get(key.topic_partition)

    def held(self, name: str) -> list[ManagerKey]:
        """What the client of that name owns."""
        client = self._clients.get(name)
        return [] if client is None else client.keys()

    def renew(self, caller: Caller, now: float) -> Client[_T] | None:
        """A request that changes nothing: renew the lease of a known client, which it returns.

        Raises ClientFencedError.
        """
        client = self._clients.get(caller.name)
        self._check_fence(caller)
        if client is None or client.incarnation != caller.incarnation:
            return None
        client.renewed_s = now
        return client

    def enter(self, caller: Caller, now: float) -> Client[_T]:
        """A request that changes something: its client, new or renewed.

        A newer incarnation takes over.  Raises ClientFencedError, OverloadedError.
        """
        self._check_fence(caller)
        client = self._clients.get(caller.name)
        if client is None:
            client = self._admit(caller)
        elif client.incarnation < caller.incarnation:
            client.succeed(caller.incarnation)
        client.renewed_s = now
        if caller.sequence is not None:
            client.highest = max(client.highest, caller.sequence)
        return client

    def _admit(self, caller: Caller) -> Client[_T]:
        if len(self._clients) >= self._client_limit:
            raise OverloadedError(
                f"the service has {self._client_limit} clients, its limit (limits.clients); "
                "try again later, or raise it"
            )
        client = self._clients[caller.name] = Client(caller.name, caller.incarnation)
        return client

    def _check_fence(self, caller: Caller) -> None:
        client = self._clients.get(caller.name)
        newest = self._fences.get(caller.name, 0) if client is None else client.incarnation
        if caller.incarnation < newest:
            raise ClientFencedError(
                f"a newer incarnation ({newest}) of client {caller.name!r} has taken over from "
                f"this one ({caller.incarnation}); stop this one, or give it a name of its own; "
                "where this one was started later, its machine's clock was set back: an "
                "incarnation is the time of the start"
            )

    def sort(
        self, client: Client[_T], group: str, partitions: Iterable[TopicPartition], sequence: int
    ) -> Sorting:
        """Who owns ``partitions``, and for which of them ``sequence`` comes too late."""
        sorting = Sorting([], [], [], {})
        mine = client.held.get(group, {})
        owners = self._owners.get(group, {})
        for where in partitions:
            last = mine.get(where)
            if last is not None:
                (sorting.mine if last <= sequence else sorting.late).append(where)
            elif where in owners:
                sorting.foreign[where] = owners[where]
            elif client.released.get(ManagerKey(group, *where), -1) > sequence:
                sorting.late.append(where)
            else:
                sorting.new.append(where)
        return sorting

    def touch_known(
        self, client: Client[_T], group: str, partitions: Iterable[TopicPartition], sequence: int
    ) -> bool:
        """Sort and touch in one go what the client holds, where no newer request came before.

        False, with nothing done, where each has to be looked at.  This is nearly every submit, so
        nothing here runs once for each partition but what the interpreter does in C.
        """
        held = client.held.get(group)
        if held is None or sequence < client.highest:
            return False
        if not all(map(held.__contains__, partitions)):
            return False
        held.update(dict.fromkeys(partitions, sequence))
        return True

    def check_room(self, managers: int, leaving: int) -> None:
        """Raise OverloadedError where ``managers`` more are too many.

        ``leaving`` are nobody's any more, and there until they have stopped.
        """
        if self._managers + leaving + managers > self._manager_limit:
            wait = f"wait until the {leaving} that are being stopped have, " if leaving else ""
            raise OverloadedError(
                f"{managers} more managers would be more than {self._manager_limit}, the limit "
                f"(limits.managers); {wait}stop some, or raise it"
            )

    def touch(
        self, client: Client[_T], group: str, partitions: Iterable[TopicPartition], sequence: int
    ) -> None:
        """``client`` owns ``partitions`` from now on, as of ``sequence``."""
        held = client.held.setdefault(group, {})
        owners = self._owners.setdefault(group, {})
        for where in partitions:
            if where not in held:
                owners[where] = client.name
                self._managers += 1
                client.released.pop(ManagerKey(group, *where), None)
            held[where] = sequence
        _prune(client.held, group)
        _prune(self._owners, group)

    def release(self, client: Client[_T], keys: Iterable[ManagerKey], sequence: int) -> None:
        """``client`` gives ``keys`` back, as of ``sequence``."""
        for key in keys:
            held = client.held.get(key.group, {})
            if held.pop(key.topic_partition, None) is None:
                continue
            del self._owners[key.group][key.topic_partition]
            self._managers -= 1
            client.released[key] = sequence
            _prune(client.held, key.group)
            _prune(self._owners, key.group)
        _bound(client.released, RELEASED_KEPT)

    def lapse(self, now: float) -> list[tuple[str, list[ManagerKey]]]:
        """Forget clients that were silent for a lease; their names and what they owned."""
        silent = [
            each
            for each in self._clients.values()
            if now - each.renewed_s > self.lease_s and not each.under_way
        ]
        lapsed = []
        for client in silent:
            keys = client.keys()
            self.release(client, keys, client.highest)
            del self._clients[client.name]
            self._fences.pop(client.name, None)
            self._fences[client.name] = client.incarnation
            lapsed.append((client.name, keys))
        _bound(self._fences, FENCES_KEPT)
        return lapsed


def _prune(groups: dict[str, dict[TopicPartition, _T]], group: str) -> None:
    if not groups.get(group, True):
        del groups[group]


def _bound(kept: dict[_K, int], limit: int) -> None:
    while len(kept) > limit:
        del kept[next(iter(kept))]
