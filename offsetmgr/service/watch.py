"""Lag of any group of the cluster, read in threads beside the service's own work."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog
from prometheus_client.registry import Collector

from offsetmgr.admin.service import ServiceReader
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.http.errors import json_response
from offsetmgr.kafka.commit_log import TOPIC, CommitTail
from offsetmgr.lag.burrow import BurrowApi, Status
from offsetmgr.lag.measure import measure
from offsetmgr.lag.metrics import families
from offsetmgr.lag.report import OwningClient, lag_report, listing_report, watched_report
from offsetmgr.lag.watcher import Watcher
from offsetmgr.service.access import asker
from offsetmgr.service.messages import (
    ApiRequest,
    ClusterQuery,
    ConsumerQuery,
    LagQuery,
    TopicQuery,
)
from offsetmgr.service.openapi import Operation, operation
from offsetmgr.stores.reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client import Metric
    from starlette.responses import Response

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.lag.watcher import WatchedGroup
    from offsetmgr.service.run import Assembly
    from offsetmgr.types import TopicPartition

_T = TypeVar("_T")

_THREADS: Final = 8
"""Questions that may wait for Kafka at once."""

LOOKED_S: Final = 300.0
"""Groups that are watched only for the page are watched so long after the last look."""

_BURROW: Final = (
    ("/v3/kafka", BurrowApi.clusters, ApiRequest),
    ("/v3/kafka/{cluster}/consumer", BurrowApi.consumers, ClusterQuery),
    ("/v3/kafka/{cluster}/consumer/{consumer}", BurrowApi.consumer, ConsumerQuery),
    ("/v3/kafka/{cluster}/consumer/{consumer}/status", BurrowApi.status, ConsumerQuery),
    ("/v3/kafka/{cluster}/consumer/{consumer}/lag", BurrowApi.full_status, ConsumerQuery),
    ("/v3/kafka/{cluster}/topic", BurrowApi.topics, ClusterQuery),
    ("/v3/kafka/{cluster}/topic/{topic}", BurrowApi.topic, TopicQuery),
)
"""Paths, with what answers there, and to which parameters."""

VIEW_TIMEOUT_S: Final = 2.0

_UNKNOWN_VIEW: Final[dict[str, Any]] = {
    **dict.fromkeys(("topic", "state", "lag", "rows_per_s", "recovery", "stalled")),
    "partitions": [],
}

log = structlog.get_logger("offsetmgr.watch")


class GroupsAnswer(msgspec.Struct, frozen=True):
    """Groups, in the shape that docs/operator.md describes."""

    groups: list[dict[str, Any]]


class BurrowAnswer(msgspec.Struct, frozen=True):
    """Burrow's answers, each with further fields of its own."""

    error: bool
    message: str
    request: dict[str, str]


class StreamsAnswer(msgspec.Struct, frozen=True):
    """Views and processors, as `offsetmgr streams status --json` prints them."""

    views: list[dict[str, Any]]
    processors: list[dict[str, Any]]


class GroupWatch(Collector):
    """Watches groups, and answers what is asked of them over HTTP."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self._settings = parts.settings.watch
        self._chosen = re.compile(self._settings.groups)
        self._lock = threading.Lock()
        self._reader: ClusterReader | None = None
        self._watcher: Watcher | None = None
        self._started = False
        self._looked_s: float | None = None
        self._look = threading.Event()
        self.listing: dict[str, str] = {}
        """State by group of the cluster, as of the last round."""
        self.listing_error: OffsetManagerError | None = None
        self._workers = anyio.CapacityLimiter(_THREADS)
        self._ended = threading.Event()
        self._host = socket.gethostname()
        self._trouble = ""

    def start(self) -> None:
        """Begin to watch, unless that was done."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._watch, name="offsetmgr-watch", daemon=True).start()

    def look(self) -> Mapping[str, WatchedGroup]:
        """Return the groups as of the last round; the service's own are watched from now on."""
        self._looked_s = self._parts.clock.now()
        self._look.set()
        self.start()
        return self._view()

    def close(self) -> None:
        """Take no more questions, and end the connections."""
        self._ended.set()
        self._look.set()
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the groups of ``watch.groups``; none where none are named."""
        if not self._settings.groups:
            return ()
        cluster, other_names = self._parts.settings.cluster_name, self._settings.other_names
        return families(cluster, self._chosen_view(), other_names=other_names)

    def burrow(self) -> list[Operation]:
        """Return what is offered over HTTP as Burrow offers it."""
        return [self._burrow(*each) for each in _BURROW]

    # Answers

    @operation("GET", "/v1/groups", ApiRequest, GroupsAnswer)
    async def groups(self, *_: object) -> GroupsAnswer:
        """Return the consumer groups of the cluster."""
        found = await self.in_worker(lambda: self.reader().groups())
        return GroupsAnswer(**listing_report(each for each in found if asker().sees(each.name)))

    @operation("GET", "/v1/lag", LagQuery, GroupsAnswer)
    async def lag(self, _: object, asked: LagQuery) -> GroupsAnswer:
        """Return the current lag of groups, read from Kafka."""

        def read() -> dict[str, Any]:
            watcher = self._watcher
            ends = {} if watcher is None else watcher.timelines
            found = measure(self.reader(), asked.group, self._parts.wall(), ends)
            return lag_report(found, self._view(), self._committers(), asked.field)

        return GroupsAnswer(**await self.in_worker(read))

    @operation("GET", "/v1/watched", ApiRequest, GroupsAnswer)
    async def watched(self, *_: object) -> GroupsAnswer:
        """Return the watched groups, as of the last round."""
        return GroupsAnswer(await self.in_worker(lambda: self.report(self._chosen_view())))

    def report(self, view: Mapping[str, WatchedGroup]) -> list[dict[str, Any]]:
        """Return watched groups in the shape that docs/operator.md describes."""
        found: list[dict[str, Any]] = watched_report(view.values(), self._committers())["groups"]
        return found

    @operation("GET", "/v1/streams", ApiRequest, StreamsAnswer)
    async def streams(self, *_: object) -> StreamsAnswer:
        """Return the views of the setting ``streams``, and processors among the watched groups."""
        asked = (self.in_worker(partial(_view, url)) for url in self._parts.settings.streams)
        views = [each for each in await asyncio.gather(*asked) if asker().sees(None, each["topic"])]
        return StreamsAnswer(views, await self.in_worker(self._processors))

    def _processors(self) -> list[dict[str, Any]]:
        from offsetmgr.streams.status import tables_of  # noqa: PLC0415 -- only where asked for

        view = self.look()
        tables = tables_of(self.reader(), view) if view else {}
        found = self.report({group: view[group] for group in tables})
        return [{**each, "table": tables[each["name"]]} for each in found]

    def _burrow(
        self, path: str, read: Callable[..., dict[str, Any] | str], kind: type[ApiRequest]
    ) -> Operation:
        async def answer(_: object, asked: ApiRequest) -> Response:
            fields = msgspec.structs.asdict(asked)
            api = BurrowApi(self._parts.settings.cluster_name, self._chosen_view())
            found = await self.in_worker(lambda: read(api, **fields))
            if isinstance(found, dict) and isinstance(found.get("topics"), list):
                found["topics"] = [each for each in found["topics"] if asker().sees(None, each)]
            request = {"url": path.format(**fields), "host": self._host}
            if isinstance(found, str):
                problem = {"error": True, "message": found, "request": request}
                return json_response(problem, HTTPStatus.NOT_FOUND)
            absent = found.get("status", {}).get("status") == Status.NOTFOUND.name
            status = HTTPStatus.NOT_FOUND if absent else HTTPStatus.OK
            return json_response({"error": False, **found, "request": request}, status)

        answer.__name__ = f"burrow_{read.__name__}"
        answer.__doc__ = f"What Burrow answers at {path}, for watched groups."
        return Operation("GET", path, answer, kind, BurrowAnswer, {404: BurrowAnswer})

    def _view(self) -> Mapping[str, WatchedGroup]:
        """Return the watched groups that whoever asks may see."""
        watcher = self._watcher  # its thread may drop it
        view = {} if watcher is None else watcher.view
        if asker().rights is None:
            return view
        return {name: each for name, each in view.items() if asker().sees(name)}

    def _chosen_view(self) -> dict[str, WatchedGroup]:
        """Return the groups of ``watch.groups``, whether or not somebody looks at others."""
        return {name: each for name, each in self._view().items() if self._is_chosen(name)}

    def _is_chosen(self, group: str) -> bool:
        return self._chosen.fullmatch(group) is not None

    def _committers(self) -> dict[tuple[str, TopicPartition], OwningClient]:
        found = {}
        for each in self._parts.factory.managers():
            status = each.status()
            found[each.key.group, each.key.topic_partition] = OwningClient(
                each.owner,
                status.last_error if status.dirty else None,
                None if status.submitted is None else status.submitted.offset,
                None if status.committed_at is None else self.wall_s(status.committed_at),
                status.phase,
            )
        return found

    def wall_s(self, at_s: float) -> float:
        """Return seconds since 1970 of a time of the managers' clock."""
        return at_s + self._parts.wall() - self._parts.clock.now()

    async def in_worker(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, in a thread of those that may wait for Kafka."""
        return await anyio.to_thread.run_sync(work, limiter=self._workers, abandon_on_cancel=True)

    def reader(self) -> ClusterReader:
        """Return the reader, made at its first use.  Raises InvalidValueError."""
        with self._lock:
            if self._reader is None:
                settings = self._parts.settings
                timeout_s = settings.commit.request_timeout_s
                kafka = settings.kafka.for_librdkafka()
                self._reader = open_reader(kafka, settings.database, timeout_s=timeout_s)
            return self._reader

    # The thread that watches

    def _watch(self) -> None:
        settings, tail = self._parts.settings, None
        if settings.watch.groups and settings.database is None:
            tail = CommitTail(settings.kafka.for_librdkafka())
        while not self._ended.is_set():
            self._look.clear()
            if not self._settings.groups and not self._is_looked_at():
                self._watcher = None
                self._look.wait(LOOKED_S)
                continue
            try:
                self._round(tail)
                self.listing_error = None
            except OffsetManagerError as error:
                self.listing_error = error
                log.warning("watch_failed", code=error.code, error=str(error))
            except Exception:  # one bad round must not end the watch
                if not self._ended.is_set():  # else the reader was closed in its middle
                    log.exception("watch_failed")
            self._ended.wait(self._settings.interval_s)
        if tail is not None:
            tail.close()

    def _is_looked_at(self) -> bool:
        return self._looked_s is not None and self._parts.clock.now() - self._looked_s < LOOKED_S

    def _round(self, tail: CommitTail | None) -> None:
        """Read the groups of ``watch.groups``, and for the page those that the service holds."""
        reader = self.reader()
        if self._watcher is None:
            self._watcher = Watcher(
                reader,
                self._parts.wall,
                min_distance_s=self._settings.min_distance_s,
                allowed_lag=self._settings.allowed_lag,
            )
        self.listing = {each.name: each.state for each in reader.groups()}
        names = dict.fromkeys(filter(self._is_chosen, self.listing))
        if self._is_looked_at():
            names |= dict.fromkeys(each.key.group for each in self._parts.factory.managers())
        self._watcher.poll(names, None if tail is None else self._new_commits(tail))

    def _new_commits(self, tail: CommitTail) -> list[CommitRecord] | None:
        """Return the commits since the last round; None where their log is not read."""
        try:
            return tail.read()
        except KafkaRequestError as error:
            # The topic does not exist before the first commit of a cluster.
            if error.code not in {self._trouble, "UNKNOWN_TOPIC_OR_PARTITION"}:
                log.warning("commit_log_unread", topic=TOPIC, error=str(error))
            self._trouble = error.code
            return None


def _view(url: str) -> dict[str, Any]:
    try:
        status = ServiceReader(url, VIEW_TIMEOUT_S).ask("GET", "/v1/status")
    except OffsetManagerError as error:
        return {"url": url, **_UNKNOWN_VIEW, "error": str(error)}
    return {"url": url, **status}
