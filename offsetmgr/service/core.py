"""The service without its transport: what clients may ask, over the factory and the registry.

Every method runs on one thread (the service's event loop; a simulation's own).  It waits for
nothing but futures of the actor system, so the clock and the schedule are that system's.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import structlog

from actors import Future
from offsetmgr.errors import (
    InvalidValueError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
)
from offsetmgr.service import sameness
from offsetmgr.service.messages import (
    ManagerState,
    OffsetEntry,
    OpenAnswer,
    Refused,
    SettleAnswer,
    SubmitAnswer,
    Uncommitted,
)
from offsetmgr.service.operations import SEQUENCE
from offsetmgr.service.problems import DrainingError, error_body
from offsetmgr.service.render import body_or_none, entry, settled
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence

    from actors import Clock
    from offsetmgr.manager import Factory, Submission
    from offsetmgr.service.sessions import Answers, Caller, Client, Registry
    from offsetmgr.service.validate import Open, Settle, Submit
    from offsetmgr.types import StopResult

_T = TypeVar("_T")

Refusals: TypeAlias = "dict[TopicPartition, OffsetManagerError]"

log = structlog.get_logger("offsetmgr.service")


class Answer(NamedTuple):
    """The answer to a request that may still be under way; kept for those who ask again."""

    request: int
    """What was asked, as ``sameness`` has it."""
    future: Future[Any]


class _Stopping(NamedTuple):
    """Managers on their way out, of which no client is the owner any more."""

    client: str
    managers: int
    done: Future[dict[ManagerKey, StopResult]]


class OffsetService:
    """Operations that change something; those that only look are in ``reads``."""

    def __init__(
        self,
        factory: Factory,
        registry: Registry[Answer],
        clock: Clock,
        *,
        lapse_timeout_s: float = 10.0,
    ) -> None:
        """``lapse_timeout_s`` is how long managers of a silent client may commit what they hold."""
        self._factory = factory
        self._registry = registry
        self._clock = clock
        self._lapse_timeout_s = lapse_timeout_s
        self._stopping: dict[ManagerKey, _Stopping] = {}
        self._stops: list[_Stopping] = []
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether new work is refused because the service is stopping."""
        return self._draining

    def drain(self) -> None:
        """Refuse new work from now on."""
        self._draining = True

    def owner(self, key: ManagerKey) -> str | None:
        """The client that owns ``key``, or owned it when it was told to stop; for any thread."""
        leaving = self._stopping.get(key)
        return self._registry.owner(key) or (None if leaving is None else leaving.client)

    def held(self, name: str) -> list[ManagerKey]:
        """What the client of that name owns."""
        return self._registry.held(name)

    @contextmanager
    def looking(self, caller: Caller) -> Iterator[None]:
        """A request that only looks: it keeps the lease of a known client, and renews it.

        Raises ClientFencedError.
        """
        client = self._registry.renew(caller, self._clock.now())
        with nullcontext() if client is None else self._under_way(client, caller):
            yield

    # The operations; each raises ClientFencedError, OverloadedError and DrainingError, having
    # done nothing then.

    async def heartbeat(self, caller: Caller) -> float:
        """Renew the lease; how long it is, in seconds."""
        self._enter(caller)
        return self._registry.lease_s

    async def open(self, caller: Caller, asked: Open) -> OpenAnswer:
        """Spawn the managers that the client does not have yet."""
        request = sameness.of_open(asked)
        return await self._once(caller, request, lambda: self._open(caller, asked), _open_weight)

    async def submit(self, caller: Caller, asked: Submit) -> SubmitAnswer:
        """Take offsets, spawning managers where needed; with ``wait``, see them committed."""
        request = sameness.of_submit(asked)
        return await self._once(
            caller, request, lambda: self._submit(caller, asked), _submit_weight
        )

    async def flush(self, caller: Caller, asked: Settle) -> SettleAnswer:
        """Commit what the client's managers hold."""
        request = sameness.of_settle("flush", asked)
        return await self._once(caller, request, lambda: self._flush(caller, asked), _settle_weight)

    async def stop(self, caller: Caller, asked: Settle) -> SettleAnswer:
        """Commit what the client's managers hold, stop them and give them back."""
        request = sameness.of_settle("stop", asked)
        return await self._once(caller, request, lambda: self._stop(caller, asked), _settle_weight)

    def sweep(self) -> None:
        """Stop the managers of clients that were silent for a lease; call it every second or so."""
        self._stopping = {key: each for key, each in self._stopping.items() if not each.done.done()}
        self._stops = [each for each in self._stops if not each.done.done()]
        for name, keys in self._registry.lapse(self._clock.now()):
            log.warning("client_lapsed", client=name, managers=len(keys))
            if keys:
                done = self._stop_managers(name, keys, self._lapse_timeout_s)
                done.add_done_callback(partial(_log_left, name))

    # How

    def _enter(self, caller: Caller) -> Client[Answer]:
        if self._draining:
            raise DrainingError
        return self._registry.enter(caller, self._clock.now())

    async def _once(
        self,
        caller: Caller,
        request: int,
        do: Callable[[], Coroutine[Any, Any, _T]],
        weigh: Callable[[_T], int],
    ) -> _T:
        """Do it, or answer as before where this sequence was asked already."""
        client = self._enter(caller)
        with self._under_way(client, caller):
            if caller.sequence is None:
                return await do()
            # A takeover replaces the client's answers: this must not land among the successor's.
            return await _kept(client.answers, caller.sequence, request, do, weigh)

    @contextmanager
    def _under_way(self, client: Client[Answer], caller: Caller) -> Iterator[None]:
        """The client is not silent while it waits for an answer."""
        client.begin()
        try:
            yield
        finally:
            client.end(caller.incarnation, self._clock.now())

    async def _open(self, caller: Caller, asked: Open) -> OpenAnswer:
        await self._wait_for_stops(asked.group, asked.partitions)
        client = self._enter(caller)
        sequence = _sequence(caller, client)
        sorting = self._registry.sort(client, asked.group, asked.partitions, sequence)
        errors = _foreign(asked.group, sorting.foreign)
        errors |= self._spawn(client, asked.group, sorting.new, sequence)
        self._registry.touch(client, asked.group, sorting.mine, sequence)
        errors |= _stopped(client, asked.group, sorting.late)
        return OpenAnswer(
            [ManagerState(*where, body_or_none(errors.get(where))) for where in asked.partitions]
        )

    async def _submit(self, caller: Caller, asked: Submit) -> SubmitAnswer:
        await self._wait_for_stops(asked.group, asked.offsets)
        refused = self._take(caller, asked)
        committed: list[OffsetEntry] = []
        uncommitted: list[Uncommitted] = []
        if asked.wait:
            keys = [
                ManagerKey(asked.group, *where) for where in asked.offsets if where not in refused
            ]
            results = await self._factory.flush(keys, asked.timeout_s)
            for key in keys:
                if key in results:
                    result = results[key]
                    self._sort_result(key, asked.offsets, result, committed, uncommitted, refused)
        return SubmitAnswer(
            len(asked.offsets) - len(refused),
            [Refused(*where, error_body(error)) for where, error in refused.items()],
            committed,
            uncommitted,
        )

    def _take(self, caller: Caller, asked: Submit) -> Refusals:
        """Hand the offsets to their managers; those that were not taken."""
        client = self._enter(caller)
        sequence, group, offsets = _sequence(caller, client), asked.group, asked.offsets
        refused: Refusals = {}
        if not self._registry.touch_known(client, group, offsets, sequence):
            sorting = self._registry.sort(client, group, offsets, sequence)
            refused = _foreign(group, sorting.foreign)
            refused |= self._spawn(client, group, sorting.new, sequence)
            refused |= _stopped(client, group, sorting.late)
            self._registry.touch(client, group, sorting.mine, sequence)
            aside = {*refused, *sorting.late}
            offsets = {where: each for where, each in offsets.items() if where not in aside}
        found = self._factory.submit(group, offsets)
        if found:
            refused |= self._submit_again(client, group, offsets, found, sequence)
        return refused

    def _submit_again(
        self,
        client: Client[Answer],
        group: str,
        offsets: Mapping[TopicPartition, int | Submission],
        refused: Refusals,
        sequence: int,
    ) -> Refusals:
        """Once more, with new managers, for those whose manager was gone."""
        gone = [where for where, e in refused.items() if isinstance(e, ManagerStoppedError)]
        if not gone:
            return refused
        self._registry.release(client, [ManagerKey(group, *where) for where in gone], sequence)
        still = self._spawn(client, group, gone, sequence)
        again = {where: offsets[where] for where in gone if where not in still}
        left = {where: error for where, error in refused.items() if where not in again}
        return left | still | self._factory.submit(group, again)

    def _sort_result(
        self,
        key: ManagerKey,
        offsets: Mapping[TopicPartition, int | Submission],
        result: StopResult,
        committed: list[OffsetEntry],
        uncommitted: list[Uncommitted],
        refused: Refusals,
    ) -> None:
        """What the wait for one manager ended with."""
        where = key.topic_partition
        asked = offsets[where]
        offset = asked if isinstance(asked, int) else asked.offset
        dropped = self._dropped(key, offset, result)
        if dropped is not None:
            refused[where] = dropped
        elif result.uncommitted is not None:
            left = result.uncommitted
            uncommitted.append(
                Uncommitted(*where, left.offset, left.metadata, body_or_none(result.error))
            )
        elif result.committed is not None:
            committed.append(entry(where, result.committed))

    def _dropped(
        self, key: ManagerKey, offset: int, result: StopResult
    ) -> OffsetRegressionError | None:
        """Why ``offset`` will never be committed: Kafka turned out to have a higher one.

        The manager may have learned of that before it heard of the wait, and then answers with
        what Kafka has; no success for whoever submitted the lower one.
        """
        error = result.error
        if error is None and result.committed is not None and result.committed.offset != offset:
            handle = self._factory.get(key)
            error = None if handle is None else handle.status().last_error
        if isinstance(error, OffsetRegressionError) and error.offset == offset:
            return error
        return None

    def _spawn(
        self,
        client: Client[Answer],
        group: str,
        partitions: Sequence[TopicPartition],
        sequence: int,
    ) -> Refusals:
        if not partitions:
            return {}
        leaving = sum(each.managers for each in self._stops if not each.done.done())
        self._registry.check_room(len(partitions), leaving)
        made = self._factory.spawn_many(group, partitions, client.name)
        refused: Refusals = {
            where: each for where, each in made.items() if isinstance(each, ManagerExistsError)
        }
        taken = [where for where in made if where not in refused]
        self._registry.touch(client, group, taken, sequence)
        return refused

    async def _flush(self, caller: Caller, asked: Settle) -> SettleAnswer:
        client = self._enter(caller)
        keys = _chosen(client, asked)
        return settled(await self._factory.flush(keys, asked.timeout_s))

    async def _stop(self, caller: Caller, asked: Settle) -> SettleAnswer:
        client = self._enter(caller)
        sequence = _sequence(caller, client)
        keys = [
            key
            for key in _chosen(client, asked)
            if client.held[key.group][key.topic_partition] <= sequence
        ]
        self._registry.release(client, keys, sequence)
        return settled(await self._stop_managers(client.name, keys, asked.timeout_s))

    def _stop_managers(
        self, name: str, keys: Sequence[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        done = self._factory.stop_managers(keys, timeout_s)
        stopping = _Stopping(name, len(keys), done)
        self._stops.append(stopping)
        self._stopping.update(dict.fromkeys(keys, stopping))
        return done

    async def _wait_for_stops(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """A manager that is being stopped makes room first; each stop has a deadline."""
        if not self._stopping:
            return
        keys = [ManagerKey(group, *where) for where in partitions]
        stops = (self._stopping[key].done for key in keys if key in self._stopping)
        for done in dict.fromkeys(stops):
            await done


async def _kept(
    answers: Answers[Answer],
    sequence: int,
    request: int,
    do: Callable[[], Coroutine[Any, Any, _T]],
    weigh: Callable[[_T], int],
) -> _T:
    """Do it and keep the answer, or give the one that is kept."""
    earlier = answers.get(sequence)
    if earlier is not None:
        if earlier.request != request:
            fix = "give each request a higher one, and its own again only to a request sent again"
            raise InvalidValueError(SEQUENCE, sequence, "was given to another request before", fix)
        return cast("_T", await earlier.future)
    answer = Answer(request, Future())
    answers.put(sequence, answer)
    try:
        result = await do()
    except BaseException as error:
        answers.drop(sequence)
        answer.future.set_exception(error)
        raise
    answer.future.set(result)
    answers.put(sequence, answer, weigh(result))
    return result


def _sequence(caller: Caller, client: Client[Answer]) -> int:
    return client.highest if caller.sequence is None else caller.sequence


def _foreign(group: str, owners: Mapping[TopicPartition, str]) -> Refusals:
    return {
        where: ManagerExistsError(str(ManagerKey(group, *where)), owner)
        for where, owner in owners.items()
    }


def _stopped(client: Client[Answer], group: str, late: Iterable[TopicPartition]) -> Refusals:
    """What of ``late`` a newer request of this client has stopped: it stays stopped."""
    held = client.held.get(group, {})
    return {
        where: ManagerStoppedError(f"{ManagerKey(group, *where)} was stopped by a newer request")
        for where in late
        if where not in held
    }


def _chosen(client: Client[Answer], asked: Settle) -> list[ManagerKey]:
    if asked.group is None:
        return client.keys()
    held = client.held.get(asked.group, {})
    wanted = held if asked.partitions is None else [p for p in asked.partitions if p in held]
    return [ManagerKey(asked.group, *where) for where in wanted]


def _log_left(client: str, future: Future[dict[ManagerKey, StopResult]]) -> None:
    left = [result for result in future.get().values() if result.uncommitted is not None]
    if left:
        reason = str(left[0].error or "the time was over")
        log.error("lapsed_uncommitted", client=client, partitions=len(left), error=reason)


def _open_weight(answer: OpenAnswer) -> int:
    return len(answer.managers)


def _submit_weight(answer: SubmitAnswer) -> int:
    return len(answer.refused) + len(answer.committed) + len(answer.uncommitted)


def _settle_weight(answer: SettleAnswer) -> int:
    return len(answer.committed) + len(answer.uncommitted)
