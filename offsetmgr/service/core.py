"""The service without its transport: what clients may ask, over the factory and the registry.

Every method runs on one thread (the service's event loop; a simulation's own).  It waits for
nothing but futures of the actor system, so the clock and the schedule are that system's.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import structlog

from offsetmgr.errors import (
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OverloadedError,
)
from offsetmgr.manager import Submission
from offsetmgr.service.errors import DrainingError
from offsetmgr.service.messages import (
    FlushAnswer,
    ManagerState,
    OpenAnswer,
    RefusedEntry,
    SubmitAnswer,
    body_or_none,
    error_body,
    flush_answer,
)
from offsetmgr.service.sessions import NEVER
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from actors import Clock, Future
    from offsetmgr.manager import Factory
    from offsetmgr.service.messages import (
        Caller,
        FlushRequest,
        OpenRequest,
        StopRequest,
        SubmitRequest,
    )
    from offsetmgr.service.sessions import Client, Registry, Sorting
    from offsetmgr.types import StopResult

Refusals: TypeAlias = "dict[TopicPartition, OffsetManagerError]"

log = structlog.get_logger("offsetmgr.service")


class _Stopping(NamedTuple):
    """A stop under way; no client owns its managers any more."""

    client: str
    done: Future[dict[ManagerKey, StopResult]]


class OffsetService:
    """Operations that change something; those that only look are in ``reads``."""

    def __init__(
        self,
        factory: Factory,
        registry: Registry,
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
        self._draining = False

    @property
    def draining(self) -> bool:
        """True if new work is refused because the service is stopping."""
        return self._draining

    def drain(self) -> None:
        self._draining = True

    @contextmanager
    def reading(self, caller: Caller | None) -> Iterator[None]:
        """Keep the lease of a known client while it reads, and renew it.

        Raises ClientFencedError, DrainingError.
        """
        self._check_draining()
        client = None if caller is None else self._registry.renew(caller, self._clock.now())
        if caller is None or client is None:
            yield
        else:
            with self._under_way(client, caller):
                yield

    # The operations; each raises ClientFencedError, OverloadedError and DrainingError, having
    # done nothing then.  Any may be repeated: a version that was seen before has no second effect.

    async def heartbeat(self, caller: Caller) -> float:
        """Renew the lease; return its length in seconds."""
        self._enter(caller)
        return self._registry.lease_s

    async def open(self, caller: Caller, asked: OpenRequest) -> OpenAnswer:
        """Spawn the managers that the client does not have yet, as many as there is room for."""
        wanted = {TopicPartition(e.topic, e.partition): e.version for e in asked.partitions}
        with self._under_way(self._enter(caller), caller):
            await self._wait_for_stops(asked.group, wanted)
            client = self._enter(caller)  # again, as a newer incarnation may have come
            versions = client.versions(wanted)
            sorting = self._registry.sort(client, asked.group, versions)
            errors = self._refusals(asked.group, sorting)
            errors |= self._spawn(client, asked.group, sorting.new)
            taken = [where for where in (*sorting.mine, *sorting.new) if where not in errors]
            self._registry.own(client, asked.group, {where: versions[where] for where in taken})
        return OpenAnswer(
            [ManagerState(*where, body_or_none(errors.get(where))) for where in wanted]
        )

    async def submit(self, caller: Caller, asked: SubmitRequest) -> SubmitAnswer:
        """Take offsets, spawning managers where needed; with ``wait``, see them committed."""
        offsets = asked.submissions()
        given = dict(zip(offsets, [each.version for each in asked.offsets], strict=True))
        with self._under_way(self._enter(caller), caller):
            await self._wait_for_stops(asked.group, offsets)
            client = self._enter(caller)
            refused = self._take(client, asked.group, offsets, given)
            return await self._answer(asked, offsets, refused)

    async def rewind(self, caller: Caller, asked: SubmitRequest) -> SubmitAnswer:
        """Set offsets of live managers, whoever owns them; with ``wait``, see them committed.

        This is an operator's reset: the owners go on from where they are.
        """
        self._check_draining()
        offsets: dict[TopicPartition, int | Submission] = {
            TopicPartition(each.topic, each.partition): Submission(
                each.offset, each.metadata, each.leader_epoch, rewind=True
            )
            for each in asked.offsets
        }
        refused: Refusals = {}
        for where in offsets:
            key = ManagerKey(asked.group, *where)
            if self._registry.owner(key) is None:
                refused[where] = ManagerStoppedError(f"no client of this service holds {key}")
        held = {where: each for where, each in offsets.items() if where not in refused}
        log.warning("rewound", client=caller.name, group=asked.group, partitions=len(held))
        refused |= self._factory.submit(asked.group, held)
        return await self._answer(asked, offsets, refused)

    async def flush(self, caller: Caller, asked: FlushRequest) -> FlushAnswer:
        client = self._enter(caller)
        with self._under_way(client, caller):
            held = [k for k in _chosen(client, asked) if self._registry.owner(k) == client.name]
            return flush_answer(await self._factory.flush(held, asked.timeout_s))

    async def stop(self, caller: Caller, asked: StopRequest) -> FlushAnswer:
        """Commit what the client's managers hold, stop them and give them back.

        A repeated stop is answered together with the one that is still under way.
        """
        client = self._enter(caller)
        with self._under_way(client, caller):
            version = client.version(asked.version)
            chosen = _chosen(client, asked)
            if asked.group is None:
                client.stopped_all = max(client.stopped_all, version)
                chosen += [k for k, each in self._stopping.items() if each.client == client.name]
            keys = self._registry.stop(client, chosen, version)
            stops = {self._stop_managers(client.name, keys, asked.timeout_s)} if keys else set()
            gone = [key for key in chosen if key in self._stopping]
            stops |= {
                self._stopping[k].done for k in gone if self._stopping[k].client == client.name
            }
            results: dict[ManagerKey, StopResult] = {}
            for done in stops:
                results |= await done
            return flush_answer({key: results[key] for key in chosen if key in results})

    def sweep(self) -> None:
        """Stop the managers of clients that were silent for a lease; call it every second or so."""
        self._stopping = {key: each for key, each in self._stopping.items() if not each.done.done()}
        for name, keys in self._registry.lapse(self._clock.now()):
            if not keys:
                log.debug("client_forgotten", client=name)  # it gave all back: it was closed
            else:
                log.warning("client_lapsed", client=name, managers=len(keys))
                done = self._stop_managers(name, keys, self._lapse_timeout_s)
                done.add_done_callback(partial(_log_left, name))

    # How

    def _check_draining(self) -> None:
        if self._draining:
            raise DrainingError

    def _enter(self, caller: Caller) -> Client:
        self._check_draining()
        return self._registry.enter(caller, self._clock.now())

    @contextmanager
    def _under_way(self, client: Client, caller: Caller) -> Iterator[None]:
        """Keep the lease while the client waits for an answer.

        Raises ClientFencedError where a newer incarnation came meanwhile: what is committed then
        may be that one's offset.
        """
        client.begin()
        try:
            yield
            self._registry.check_fence(caller)
        finally:
            client.end(caller.incarnation, self._clock.now())

    def _take(
        self,
        client: Client,
        group: str,
        offsets: Mapping[TopicPartition, int | Submission],
        given: Mapping[TopicPartition, int | None],
    ) -> Refusals:
        """Hand the offsets to their managers; return those that were not taken."""
        versions = client.versions(given)
        sorting = self._registry.sort(client, group, versions)
        refused = self._refusals(group, sorting)
        refused |= self._spawn(client, group, sorting.new)
        taken = [where for where in (*sorting.mine, *sorting.new) if where not in refused]
        refused |= self._factory.submit(group, {where: offsets[where] for where in taken})
        # What was not taken now may be when it is repeated.
        seen = {where: versions[where] for where in taken if where not in refused}
        self._registry.own(client, group, seen)
        return refused

    async def _answer(
        self,
        asked: SubmitRequest,
        offsets: Mapping[TopicPartition, int | Submission],
        refused: Refusals,
    ) -> SubmitAnswer:
        """Return what became of the offsets; with ``wait``, once Kafka has answered."""
        settled = FlushAnswer([], [])
        if asked.wait:
            keys = [ManagerKey(asked.group, *each) for each in offsets if each not in refused]
            results = dict(await self._factory.flush(keys, asked.timeout_s))
            for key in list(results):
                dropped = self._dropped(key, offsets[key.topic_partition], results[key])
                if dropped is not None:
                    refused[key.topic_partition] = dropped
                    del results[key]
            settled = flush_answer(results)
        return SubmitAnswer(
            len(offsets) - len(refused),
            [RefusedEntry(*where, error_body(error)) for where, error in refused.items()],
            settled.committed,
            settled.uncommitted,
        )

    def _dropped(
        self, key: ManagerKey, asked: int | Submission, result: StopResult
    ) -> OffsetRegressionError | None:
        """Return why ``asked`` will never be committed: Kafka turned out to have a higher offset.

        The manager may have learned of that before it heard of the wait, and then answers with
        what Kafka has; no success for whoever submitted the lower one.
        """
        offset = asked if isinstance(asked, int) else asked.offset
        error = result.error
        if error is None and result.committed is not None and result.committed.offset != offset:
            handle = self._factory.get(key)
            error = None if handle is None else handle.status().last_error
        if isinstance(error, OffsetRegressionError) and error.offset == offset:
            return error
        return None

    def _spawn(self, client: Client, group: str, partitions: Sequence[TopicPartition]) -> Refusals:
        if not partitions:
            return {}
        leaving = sum(not each.done.done() for each in self._stopping.values())
        room = self._registry.room(leaving)
        made = self._factory.spawn_many(group, partitions[:room], client.name)
        refused: Refusals = {
            where: each for where, each in made.items() if isinstance(each, ManagerExistsError)
        }
        if len(partitions) > room:
            wait = f"wait until the {leaving} that are being stopped have, " if leaving else ""
            text = f"the service has no room for it (limits.managers); {wait}stop some, or raise it"
            refused |= dict.fromkeys(partitions[room:], OverloadedError(text))
        taken = [where for where in made if where not in refused]
        self._registry.own(client, group, dict.fromkeys(taken, NEVER))
        return refused

    def _refusals(self, group: str, sorting: Sorting) -> Refusals:
        """Return the errors of what is another client's, and of what was stopped since."""
        now = self._clock.now()
        errors: Refusals = {}
        for where, owner in sorting.foreign.items():
            left_s = self._registry.lease_left_s(owner, now)
            errors[where] = ManagerExistsError(str(ManagerKey(group, *where)), owner, left_s)
        for where in sorting.stopped:
            name = str(ManagerKey(group, *where))
            errors[where] = ManagerStoppedError(f"{name} was stopped by a newer request")
        return errors

    def _stop_managers(
        self, name: str, keys: Sequence[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        done = self._factory.stop_managers(keys, timeout_s)
        self._stopping.update(dict.fromkeys(keys, _Stopping(name, done)))
        return done

    async def _wait_for_stops(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Let managers that are being stopped make room first; each stop has a deadline."""
        if not self._stopping:
            return
        keys = [ManagerKey(group, *where) for where in partitions]
        stops = (self._stopping[key].done for key in keys if key in self._stopping)
        for done in dict.fromkeys(stops):
            await done


def _chosen(client: Client, asked: FlushRequest) -> list[ManagerKey]:
    if asked.group is None:
        return client.keys()
    if asked.partitions is None:
        return [ManagerKey(asked.group, *where) for where in client.held.get(asked.group, {})]
    return [ManagerKey(asked.group, each.topic, each.partition) for each in asked.partitions]


def _log_left(client: str, future: Future[dict[ManagerKey, StopResult]]) -> None:
    left = [result for result in future.get().values() if result.uncommitted is not None]
    if left:
        reason = str(left[0].error)
        log.error("lapsed_uncommitted", client=client, partitions=len(left), error=reason)
