"""The coordinator port with a fence: what a group commits, its newest service alone commits."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import structlog

from actors import Future
from offsetmgr.coordinator.base import CommitResult, Failure, FenceCounts, FetchResult
from offsetmgr.coordinator.explain import CLOSED
from offsetmgr.coordinator.fence.finder import brokers_of
from offsetmgr.coordinator.fence.keeper import Identity, Keeper
from offsetmgr.coordinator.fence.link import Links
from offsetmgr.coordinator.fence.seat import Standing
from offsetmgr.coordinator.fence.security import security_of
from offsetmgr.errors import error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from offsetmgr.coordinator.base import TopicLog, TopicNames
    from offsetmgr.coordinator.kafka import KafkaCoordinator
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

SESSION_TIMEOUT_S: Final = 45.0
"""How long Kafka keeps a group for a service that is silent: it died, or is cut off.  Its
successor does not wait for that; ordinary consumers and Kafka's own tools do."""

MEMBERS_S: Final = 5.0
"""For the names of those who hold a group."""

_LEAVE_SHARE: Final = 0.8
"""Of the time to close, what giving up the seats may take."""

_R = TypeVar("_R")

log = structlog.get_logger("offsetmgr.coordinator.fence")


class Runner(Protocol):
    """Runs the fence's event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """What it runs, until that is stopped."""

    def join(self, timeout_s: float) -> None:
        """Wait for that, so long at most."""


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kafka-fence", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


def with_fence(
    config: Mapping[str, object],
    inner: KafkaCoordinator,
    *,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    wall: Callable[[], float] = time.time,
) -> FencedCoordinator:
    """A fence around ``inner``, which is closed with it; ``config`` as for that one.

    Raises InvalidValueError where the fence's own connections lack what a setting asks for.
    """
    client_id, service = str(config.get("client.id", "offsetmgr")), uuid.uuid4().hex
    name = f"{socket.gethostname()}, process {os.getpid()}"
    keeper = Keeper(
        Links(security_of(config), client_id),
        brokers_of(str(config.get("bootstrap.servers", ""))),
        Identity(service, name, f"{client_id}-{service[:8]}", session_timeout_s, wall),
        lambda group: inner.members(group, MEMBERS_S),
    )
    return FencedCoordinator(keeper, inner, LoopThread())


class FencedCoordinator:
    """Commits as the member of each group; everything else is Kafka's other side as it is.

    Thread-safe; no method but ``close`` blocks.  It is for those who own groups: reading through
    it takes a group over as committing does, so that what is read cannot be changed any more by
    the service that had the group before.
    """

    def __init__(self, keeper: Keeper, inner: KafkaCoordinator, runner: Runner) -> None:
        """``inner`` is closed with this one, and the loop of ``runner`` stopped."""
        self._keeper = keeper
        self._inner = inner
        self._runner = runner
        self._loop = runner.loop
        self._lock = threading.Lock()
        self._open: dict[asyncio.Task[Any], None] = {}
        self._closed = False
        self._loop.call_soon_threadsafe(self._begin)

    @property
    def reader(self) -> KafkaCoordinator:
        """The side that takes no group over."""
        return self._inner

    @property
    def fence(self) -> FenceCounts:
        """How many groups are this service's, and how many another one's by now."""
        count = self._keeper.count
        return FenceCounts(count(Standing.SEATED), count(Standing.FENCED))

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Take the group over, then fetch."""
        asked = () if partitions is None else tuple(partitions)

        def spoil(failure: Failure) -> FetchResult:
            whole = failure if partitions is None else None
            return FetchResult({}, dict.fromkeys(asked, failure), whole)

        async def fetch() -> FetchResult:
            deadline_s = self._loop.time() + timeout_s
            failure = await self._keeper.claim(group, deadline_s)
            if failure is not None:
                return spoil(failure)
            left_s = max(deadline_s - self._loop.time(), 0.0)
            return await self._inner.fetch(group, partitions, left_s)

        return self._start(fetch, spoil)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Take the group over, where that is still to be done, and commit as its member."""
        offsets = dict(offsets)

        async def commit() -> CommitResult:
            return await self._keeper.commit(group, offsets, self._loop.time() + timeout_s)

        return self._start(commit, lambda failure: CommitResult(dict.fromkeys(offsets, failure)))

    def release(self, group: str) -> None:
        """Leave the group, so that others may commit, join or reset it."""
        self._start(lambda: self._keeper.release(group), lambda _: None)

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """As without a fence."""
        return self._inner.topic_logs(topics, timeout_s, at_ms, stable=stable)

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """The topics of the cluster, sorted."""
        return self._inner.topic_names(timeout_s)

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """As without a fence."""
        return self._inner.check(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Leave all groups, as far as the time allows, then close the other side too."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                left_s = timeout_s * _LEAVE_SHARE
                self._loop.call_soon_threadsafe(self._begin_end, left_s)
        self._runner.join(timeout_s)
        self._inner.close(max(deadline_s - time.monotonic(), 0.0))

    # -- the event loop

    def _start(
        self, do: Callable[[], Coroutine[Any, Any, _R]], spoil: Callable[[Failure], _R]
    ) -> Future[_R]:
        future: Future[_R] = Future()

        def begin() -> None:
            task = self._loop.create_task(do())
            self._open[task] = None
            task.add_done_callback(self._open.pop)
            task.add_done_callback(lambda done: future.set(_result(done, spoil)))

        with self._lock:
            closed = self._closed
            if not closed:
                self._loop.call_soon_threadsafe(begin)
        if closed:
            future.set(spoil(Failure(CLOSED)))
        return future

    def _begin(self) -> None:
        self._keeping = self._loop.create_task(self._keeper.keep())

    def _begin_end(self, timeout_s: float) -> None:
        self._ending = self._loop.create_task(self._end(timeout_s))

    async def _end(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._keeper.release_all(), timeout_s)
        except asyncio.TimeoutError:
            pass  # Kafka finds out by itself
        finally:
            self._keeper.close()
            left = [self._keeping, *self._open]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._loop.stop()


def _result(done: asyncio.Task[_R], spoil: Callable[[Failure], _R]) -> _R:
    """What the task ended with; also one that ended otherwise than it should has its answer."""
    if done.cancelled():
        return spoil(Failure(error_info(-197)))
    error = done.exception()
    if error is None:
        return done.result()
    log.error("fence_failed", exc_info=error)
    return spoil(Failure(error_info(-1), f"the fence failed: {error!r}"))
