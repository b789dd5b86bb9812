"""Changes that clients ask for, over factory and registry; on one thread, without transport."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from offsetmgr.client.offsets import by_group
from offsetmgr.errors import (
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OverloadedError,
)
from offsetmgr.http.errors import error_body
from offsetmgr.logs import SafeLogger
from offsetmgr.service.access import Names, Requester, no_names, partitions_of
from offsetmgr.service.errors import ClientExistsError, DrainingError
from offsetmgr.service.follow import OWNER as FOLLOW_OWNER
from offsetmgr.service.messages import (
    FlushAnswer,
    FlushRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    OpenAnswer,
    OpenRequest,
    PartitionOutcome,
    StopRequest,
    SubmitAnswer,
    SubmitEntry,
    SubmitRequest,
    body_or_none,
    flush_answer,
)
from offsetmgr.service.openapi import operation
from offsetmgr.types import ManagerKey, StopResult, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from actors import Clock, Future
    from offsetmgr.manager import Factory, Submission
    from offsetmgr.service.audit import AuditLog
    from offsetmgr.service.events import EventHub
    from offsetmgr.service.sessions import Client, Registry

Refusals: TypeAlias = "dict[TopicPartition, OffsetManagerError]"

FOLLOWED: Final = "a checkpoint that the service follows (its setting [follow.NAME])"

LAPSE_TIMEOUT_S: Final = 10.0
"""So long may managers of a silent client commit what they hold."""

log = SafeLogger("offsetmgr.service")


class _Stopping(NamedTuple):
    """A stop under way; no client owns its managers any more."""

    client: str
    identity: str
    done: Future[dict[ManagerKey, StopResult]]


def _names_of_offsets(asked: SubmitRequest) -> Names:
    return partitions_of(asked.group, asked.offsets)


def _names_of_managers(asked: FlushRequest) -> Names:
    return partitions_of(asked.group, asked.partitions)


@dataclass(eq=False)
class OffsetService:
    """Operations that change something; ``reads`` has those that only look."""

    factory: Factory
    registry: Registry
    clock: Clock
    audit: AuditLog
    hub: EventHub
    drained_by_s: float | None = None
    """If the service is stopping, and refuses new work: when it gives up what is left."""
    _stopping: dict[ManagerKey, _Stopping] = field(default_factory=dict)

    @property
    def draining(self) -> bool:
        return self.drained_by_s is not None

    def drain(self, within_s: float) -> None:
        """Refuse new work from now on; what is held has ``within_s`` to be committed."""
        self.drained_by_s = self.clock.now() + within_s

    def renew(self, by: Requester) -> None:
        """Renew the lease of a client that reads.  Raises ClientFencedError, DrainingError."""
        self.check_draining()
        if by.caller is not None:
            self.registry.renew(by.caller, self.clock.now())

    # The operations; each raises ClientFencedError, ClientExistsError, OverloadedError and
    # DrainingError, having done nothing then.  Any may be repeated: a version that was seen before
    # has no second effect.

    @operation(
        "POST", "/v1/heartbeat", HeartbeatRequest, HeartbeatAnswer, needs=no_names, reads=True
    )
    async def heartbeat(self, by: Requester, _: object) -> HeartbeatAnswer:
        """Renew the client's lease."""
        with self.under_way(by) as client:
            topic_ids = self.factory.topic_ids(client.held)
            return HeartbeatAnswer(self.registry.lease_s, self.hub.newest, topic_ids)

    @operation(
        "POST",
        "/v1/managers",
        OpenRequest,
        OpenAnswer,
        needs=lambda asked: partitions_of(asked.group, asked.partitions),
    )
    async def open(self, by: Requester, asked: OpenRequest) -> OpenAnswer:
        """Start the managers that the client does not have yet, up to the limit."""
        wanted = [each.where for each in asked.partitions]
        versions = [each.version for each in asked.partitions]
        with self.under_way(by):
            client, taken, errors = await self._acquire(by, asked.group, wanted, versions)
            client.take(asked.group, taken)
        return OpenAnswer(
            [PartitionOutcome(*where, body_or_none(errors.get(where))) for where in wanted]
        )

    @operation("POST", "/v1/offsets", SubmitRequest, SubmitAnswer, needs=_names_of_offsets)
    async def submit(self, by: Requester, asked: SubmitRequest) -> SubmitAnswer:
        """Submit offsets, and start missing managers; with ``wait``, answer after the commit."""
        offsets = asked.submissions()
        versions = [each.version for each in asked.offsets]
        rewound = self._moves(asked.group, [each for each in asked.offsets if each.rewind])
        with self.under_way(by, asked.timeout_s if asked.wait else 0.0):
            client, taken, refused = await self._acquire(by, asked.group, offsets, versions)
            chosen = offsets
            if len(taken) < len(offsets):
                chosen = {where: offsets[where] for where in taken}
            refused |= self.factory.submit(asked.group, chosen, topic_ids=asked.topic_ids)
            for where in refused:  # it may be taken when it is repeated
                taken.pop(where, None)
            client.take(asked.group, taken)
            lower = [each for each in rewound if each["from"] is None or each["to"] < each["from"]]
            if lower:
                facts = {"group": asked.group, "partitions": lower}
                self.audit.record(by, "submit_rewind", "taken", **facts)
            return await self._answer(asked, offsets, refused)

    @operation("POST", "/v1/rewind", SubmitRequest, SubmitAnswer, needs=_names_of_offsets)
    async def rewind(self, by: Requester, asked: SubmitRequest) -> SubmitAnswer:
        """Set offsets of live managers of any client; with ``wait``, answer after the commit.

        This is an operator's reset: the owners go on from where they are.
        """
        offsets = asked.submissions()
        keys = {where: ManagerKey(asked.group, *where) for where in offsets}
        refused: Refusals = {
            where: ManagerStoppedError(f"no client of this service holds {key}")
            for where, key in keys.items()
            if self.factory.get(key) is None
        }
        held = {where: each for where, each in offsets.items() if where not in refused}
        log.warning("rewound", client=by.client, group=asked.group, partitions=len(held))
        moves = self._moves(asked.group, asked.offsets)
        refused |= self.factory.submit(asked.group, held, rewind=True, topic_ids=asked.topic_ids)
        answer = await self._answer(asked, offsets, refused)
        self.audit.record(
            by,
            "rewind",
            "taken",
            group=asked.group,
            partitions=moves,
            refused=[f"{each.topic}-{each.partition}" for each in answer.refused],
            uncommitted=[f"{each.topic}-{each.partition}" for each in answer.uncommitted],
        )
        return answer

    @operation("POST", "/v1/flush", FlushRequest, FlushAnswer, needs=_names_of_managers)
    async def flush(self, by: Requester, asked: FlushRequest) -> FlushAnswer:
        """Commit the submitted offsets of the client's managers now."""
        with self.under_way(by, asked.timeout_s) as client:
            held = [key for key in _chosen(client, asked) if client.holds(key)]
            results = await self.factory.flush(held, asked.timeout_s)
            # So that the client can name the topics, should it have to send the offsets again.
            topic_ids = self.factory.topic_ids(by_group(held))
            return flush_answer(results, topic_ids)

    @operation("POST", "/v1/stop", StopRequest, FlushAnswer, needs=_names_of_managers)
    async def stop(self, by: Requester, asked: StopRequest) -> FlushAnswer:
        """Commit the submitted offsets of the client's managers, then stop the managers.

        A repeated stop is answered together with the one that is still under way.
        """
        with self.under_way(by, asked.timeout_s) as client:
            version = client.version(asked.version)
            chosen = _chosen(client, asked)
            if asked.group is None:
                client.stopped_all = max(client.stopped_all, version)
                chosen += [k for k, each in self._stopping.items() if each.client == client.name]
            keys = self.registry.stop(client, chosen, version)
            if keys:
                self._stop_managers(client.name, client.identity, keys, asked.timeout_s)
            # A stop may have ended a former manager of a key that another one is for.
            leaving = {key: self._stopping[key] for key in chosen if key in self._stopping}
            results = {
                key: (await stop.done)[key]
                for key, stop in leaving.items()
                if stop.client == client.name
            }
            answer = flush_answer(results)
            left = len(answer.uncommitted)
            facts = {"group": asked.group, "managers": len(results), "uncommitted": left}
            self.audit.record(by, "stop", "done", **facts)
            return answer

    def sweep(self) -> None:
        """Stop the managers of clients that were silent for a lease; call it about each second."""
        self._stopping = {key: each for key, each in self._stopping.items() if not each.done.done()}
        for client, keys in self.registry.lapse(self.clock.now()):
            if keys:  # else it gave all back: it was closed
                log.warning("client_lapsed", client=client.name, managers=len(keys))
                facts = {"client": client.name, "managers": len(keys)}
                self.audit.record(None, "lapse", "done", **facts)
                done = self._stop_managers(client.name, client.identity, keys, LAPSE_TIMEOUT_S)
                done.add_done_callback(partial(_log_left, client.name))

    def check_draining(self) -> None:
        if self.draining:
            raise DrainingError

    def refusal(self, client: str) -> OffsetManagerError | None:
        """Return why another process of a client's name does not get its managers yet."""
        return self.registry.refusal(client, self.clock.now())

    def _enter(self, by: Requester, wait_s: float = 0.0) -> Client:
        caller = by.sender
        self.check_draining()
        holder, is_reported = self.registry.find(caller.name), self.refusal(caller.name)
        before = None if holder is None else holder.incarnation
        try:
            client = self.registry.enter(caller, self.clock.now(), wait_s, by.identity)
        except ClientExistsError as error:
            # Once for each group: thousands of partitions would push out the failures of others.
            groups = {} if holder is None or is_reported else holder.held
            for group, held in groups.items():
                self.hub.failed(ManagerKey(group, *next(iter(held))), error)
            raise
        if before not in {None, client.incarnation}:
            self.audit.record(by, "take_over", "done", managers=len(client.keys()))
        return client

    def _moves(self, group: str, entries: Iterable[SubmitEntry]) -> list[dict[str, Any]]:
        moves = []
        for each in entries:
            handle = self.factory.get(ManagerKey(group, each.topic, each.partition))
            committed = None if handle is None else handle.status().committed
            before = None if committed is None else committed.offset
            where = {"topic": each.topic, "partition": each.partition}
            moves.append({**where, "from": before, "to": each.offset})
        return moves

    @contextmanager
    def under_way(self, by: Requester, wait_s: float = 0.0) -> Iterator[Client]:
        """Yield the client, whose lease is kept while it waits, up to ``wait_s``, for its answer.

        Raises ClientFencedError where a newer incarnation came meanwhile: what is committed then
        may be that one's offset.
        """
        client = self._enter(by, wait_s)
        try:
            yield client
            self.registry.check_fence(by.sender)
        finally:
            if wait_s and client.incarnation == by.sender.incarnation:
                self.registry.answered(client, self.clock.now())

    async def _acquire(
        self,
        by: Requester,
        group: str,
        partitions: Collection[TopicPartition],
        versions: Iterable[int | None],
    ) -> tuple[Client, dict[TopicPartition, int], Refusals]:
        """Return the client, the versions of what it has or is given now, and other's errors."""
        await self._wait_for_stops(group, partitions)
        client = self._enter(by)  # again, as a newer incarnation may have come
        given = zip(partitions, versions, strict=True)
        sorting = self.registry.sort(client, group, given)
        refused = self._spawn(by, client, group, list(sorting.new))
        for where in sorting.stopped:
            name = str(ManagerKey(group, *where))
            refused[where] = ManagerStoppedError(f"{name} was stopped by a newer request")
        started = {where: each for where, each in sorting.new.items() if where not in refused}
        return client, {**sorting.mine, **started}, refused

    async def _answer(
        self,
        asked: SubmitRequest,
        offsets: Mapping[TopicPartition, int | Submission],
        refused: Refusals,
    ) -> SubmitAnswer:
        settled = FlushAnswer([], [])
        if asked.wait:
            keys = [ManagerKey(asked.group, *each) for each in offsets if each not in refused]
            results = dict(await self.factory.flush(keys, asked.timeout_s))
            for key in list(results):
                dropped = self._dropped(key, offsets[key.topic_partition], results[key])
                if dropped is not None:
                    refused[key.topic_partition] = dropped
                    del results[key]
            settled = flush_answer(results)
        return SubmitAnswer(
            settled.committed,
            settled.uncommitted,
            accepted=len(offsets) - len(refused),
            refused=[PartitionOutcome(*key, error_body(error)) for key, error in refused.items()],
            topic_ids=self.factory.topic_ids({asked.group: offsets}),
        )

    def _dropped(
        self, key: ManagerKey, asked: int | Submission, result: StopResult
    ) -> OffsetRegressionError | None:
        """Return why ``asked`` will never be committed: Kafka has turned out to be ahead."""
        offset = asked if isinstance(asked, int) else asked.offset
        error = result.error
        # The manager may have learned of that before the wait began.
        if error is None and result.committed is not None and result.committed.offset != offset:
            handle = self.factory.get(key)
            error = None if handle is None else handle.status().last_error
        if isinstance(error, OffsetRegressionError) and error.offset == offset:
            return error
        return None

    def _spawn(
        self, by: Requester, client: Client, group: str, partitions: Sequence[TopicPartition]
    ) -> Refusals:
        refused: Refusals = {}
        if not partitions:
            return refused
        for where in partitions:
            other = self.factory.get(ManagerKey(group, *where))
            if other is not None:
                refused[where] = self._held(other.key, other.owner)
        free = [where for where in partitions if where not in refused]
        leaving: dict[str, list[ManagerKey]] = {}
        for key, stop in self._stopping.items():
            if not stop.done.done():
                leaving.setdefault(stop.identity, []).append(key)
        room, limit = self.registry.room(client, group, leaving)
        if len(free) > room:
            count = sum(map(len, leaving.values()))
            whose = ", or its share is used up" if by.identity else ""
            wait = f"wait for the {count} that are being stopped, " if count else ""
            text = f"the service has no room for it{whose} ({limit}); {wait}stop some, or raise it"
            refused |= dict.fromkeys(free[room:], OverloadedError(text))
        if free[:room]:
            self.factory.spawn_many(group, free[:room], client.name)
            self.registry.own(client, group, free[:room])
            topics = sorted({each.topic for each in free[:room]})
            managers = min(room, len(free))
            facts = {"group": group, "topics": topics, "managers": managers}
            self.audit.record(by, "spawn", "done", **facts)
        return refused

    def _held(self, key: ManagerKey, owner: str) -> ManagerExistsError:
        """Return the error that says who has a manager, and when the lease of a client ends."""
        client = self.registry.find(owner)
        if owner == FOLLOW_OWNER and (client is None or not client.holds(key)):
            return ManagerExistsError(str(key), FOLLOWED)
        return ManagerExistsError(
            str(key), owner, self.registry.lease_left_s(owner, self.clock.now())
        )

    def _stop_managers(
        self, name: str, identity: str, keys: Sequence[ManagerKey], timeout_s: float
    ) -> Future[dict[ManagerKey, StopResult]]:
        done = self.factory.stop_managers(keys, timeout_s)
        self._stopping.update(dict.fromkeys(keys, _Stopping(name, identity, done)))
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
    return [ManagerKey(asked.group, *each.where) for each in asked.partitions]


def _log_left(client: str, future: Future[dict[ManagerKey, StopResult]]) -> None:
    left = [result for result in future.get().values() if result.uncommitted is not None]
    if left:
        reason = str(left[0].error)
        log.error("lapsed_uncommitted", client=client, partitions=len(left), error=reason)
