"""Lag of any group of the cluster, read in threads of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from os.path import commonprefix
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from offsetmgr.admin.service import view_status
from offsetmgr.errors import OffsetManagerError
from offsetmgr.http.answers import json_response, page_of, rows_that_fit
from offsetmgr.kafka.commit_log import TOPIC, CommitRecord, CommitTail
from offsetmgr.kafka.connections import MOVED_WAIT_S
from offsetmgr.lag.burrow import Status
from offsetmgr.lag.burrow_api import BurrowApi
from offsetmgr.lag.measure import PartitionLag, measure
from offsetmgr.lag.metrics import families, read_errors
from offsetmgr.lag.report import OwningClient, lag_report, listing_report, with_watch
from offsetmgr.lag.store_reader import open_cluster
from offsetmgr.lag.watcher import Watcher
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.service.access import Requester, names_in, no_names
from offsetmgr.service.matching import chosen_names
from offsetmgr.service.messages import (
    ApiRequest,
    ClusterQuery,
    ConsumerQuery,
    LagQuery,
    Next,
    TopicQuery,
    WatchedQuery,
)
from offsetmgr.service.openapi import Operation, operation
from offsetmgr.service.threads import ReadThreads
from offsetmgr.text import listed, visible
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric
    from starlette.responses import Response

    from actors import Clock
    from offsetmgr.kafka.cluster import ClusterReader, GroupListing
    from offsetmgr.lag.measure import GroupLag
    from offsetmgr.manager import Factory
    from offsetmgr.service.settings import Settings

UNREADY_ROUNDS: Final = 3
"""After so many failed rounds in a row the service is not ready."""

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

_LEAST_READ_S: Final = 2 * MOVED_WAIT_S
"""Least time limit of a read: enough to ask again after a group's coordinator has moved."""

_NAME_CHARS: Final = 100

log = SafeLogger("offsetmgr.watch")


class GroupsAnswer(msgspec.Struct, frozen=True):
    """Groups, in the shape that docs/operator.md describes."""

    groups: list[dict[str, Any]]
    errors: Annotated[list[dict[str, Any]], Meta(description="Why some groups are missing.")] = []


class WatchedAnswer(msgspec.Struct, frozen=True):
    """Watched groups, in the shape that docs/operator.md describes."""

    groups: list[dict[str, Any]]
    next: Next = None


class BurrowAnswer(msgspec.Struct, frozen=True):
    """Burrow's answers, each with further fields of its own."""

    error: bool
    message: str
    request: dict[str, str]


class StreamsAnswer(msgspec.Struct, frozen=True):
    """Views and processors, as `offsetmgr streams status --json` prints them."""

    views: list[dict[str, Any]]
    processors: list[dict[str, Any]]


@dataclass(eq=False)
class GroupWatch(Collector):
    """Watches groups, and answers what is asked of them over HTTP."""

    settings: Settings
    factory: Factory
    clock: Clock
    """The clock of ``factory``."""
    wall: Callable[[], float]
    threads: ReadThreads
    listing: Mapping[str, GroupListing] = field(init=False, default_factory=dict)
    """The groups of the cluster, as of the last good round."""
    error: OffsetManagerError | None = field(init=False, default=None)
    """Why the last round failed, or why not all groups are listed."""
    failed_rounds: int = field(init=False, default=0)
    """The last rounds, if they have failed, since the last good one."""
    read_at_s: float | None = field(init=False, default=None)
    """The time of the last good round, in seconds since 1970."""
    _quick: ReadThreads = field(init=False, default_factory=lambda: ReadThreads(1))
    """For answers from memory, which wait for no read of Kafka."""
    _chosen: Mapping[str, bool | None] = field(init=False, default_factory=dict)
    """The groups of the last round, with True if ``watch.groups`` names them."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _reader: ClusterReader | None = field(init=False, default=None)
    _watcher: Watcher | None = field(init=False, default=None)
    _looked_s: float | None = field(init=False, default=None)
    _look: threading.Event = field(init=False, default_factory=threading.Event)
    _tables: Mapping[str, dict[str, Any]] = field(init=False, default_factory=dict)
    """Of processors, as somebody has seen them last."""
    _failures: int = field(init=False, default=0)
    _repeats: RepeatLimiter = field(init=False, default_factory=RepeatLimiter)
    _ended: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._worker = Worker("offsetmgr-watch", self._watch)

    def start(self) -> None:
        """Begin to watch, unless that was done.  The next call tries again where it failed."""
        self._worker.ensure()

    def look(self, by: Requester) -> Mapping[str, GroupLag]:
        """Return the groups as of the last round; the service's own are watched from now on."""
        self._looked_s = self.clock.now()
        self._look.set()
        self.start()
        return self._view(by)

    def close(self) -> None:
        """Take no more questions, and end the connections."""
        self._ended.set()
        self._look.set()
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    @property
    def trouble(self) -> str:
        """Why the service is not ready: the watch of ``watch.groups`` is failing; else empty."""
        rounds, error = self.failed_rounds, self.error  # its thread may replace them
        if not self.settings.watch.groups or rounds < UNREADY_ROUNDS:
            return ""
        code = error.code if error else "unknown"
        return f"the last {rounds} rounds of the watch failed ({code})"

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the watch, and of the groups of ``watch.groups``."""
        cluster, other_names = self.settings.cluster_name, self.settings.watch.other_names
        text = "Rounds of the watch that failed; the groups have no other series until a good one."
        failed = CounterMetricFamily("offsetmgr_failed_watch_rounds", text, labels=["cluster_name"])
        failed.add_metric([cluster], self._failures)
        yield failed
        if self.settings.watch.groups:
            view, unlisted = self._selected(self._watched), self.error is not None
            yield from families(cluster, view, other_names=other_names, unlisted=unlisted)

    def burrow(self) -> list[Operation]:
        """Return what is offered over HTTP as Burrow offers it."""
        return [self._burrow(*each) for each in _BURROW]

    # Answers

    @operation("GET", "/v1/groups", ApiRequest, GroupsAnswer, needs=no_names)
    async def groups(self, by: Requester, _: object) -> GroupsAnswer:
        """Return the groups of the cluster."""

        def read() -> GroupsAnswer:
            found, errors = self.reader().groups()
            seen = [each for each in found if by.sees(each.name)]
            shown, missing = rows_that_fit(seen, lambda _: False)
            return GroupsAnswer(**listing_report(shown, [*errors, *filter(None, [missing])]))

        return await self.threads.run(by, read)

    @operation("GET", "/v1/lag", LagQuery, GroupsAnswer, needs=names_in("group"))
    async def lag(self, by: Requester, asked: LagQuery) -> GroupsAnswer:
        """Return the current lag of groups, read from Kafka."""

        def read() -> GroupsAnswer:
            watcher = self._watcher
            ages = None if watcher is None else watcher.ages
            view = self._view(by)
            measured = measure(self.reader(), asked.group, self.wall(), ages)
            found = (with_watch(each, view.get(each.name)) for each in measured)
            return GroupsAnswer([self._report(each, asked.field) for each in found])

        return await self.threads.run(by, read)

    @operation("GET", "/v1/watched", WatchedQuery, WatchedAnswer, needs=names_in("group"))
    async def watched(self, by: Requester, asked: WatchedQuery) -> WatchedAnswer:
        """Return a page of the watched groups, sorted by name, as of the last round."""

        def read() -> WatchedAnswer:
            view = self._selected(self._view(by))
            names = sorted(view.keys() & set(asked.group) if asked.group else view)
            rows = (self._report(view[name]) for name in names if name >= (asked.after or ""))
            page, following = page_of(rows, asked.limit)
            if following is None:
                return WatchedAnswer(page)
            # Of a name that may be too long for a query, what distinguishes it from the last one.
            both = [page[-1]["name"], following["name"]]
            return WatchedAnswer(page, following["name"][: len(commonprefix(both)) + 1])  # noqa: RUF071 -- names

        return await self._quick.run(by, read)

    def _report(self, group: GroupLag, fields: Sequence[str] = ()) -> dict[str, Any]:
        """Return a group in the shape that docs/operator.md describes.

        It has the partitions, too, of which this service has committed nothing yet.
        """
        owners = {}
        for each in self.factory.managers(group.name):
            status = each.status()
            owners[each.key.group, each.key.topic_partition] = OwningClient(
                each.owner,
                status.last_error if status.dirty else None,
                None if status.submitted is None else status.submitted.offset,
                None if status.committed_at is None else self.wall_s(status.committed_at),
                status.phase,
            )
        known = {(group.name, each.partition) for each in group.partitions}
        further = [PartitionLag(each, None) for name, each in owners if (name, each) not in known]
        whole = group._replace(partitions=tuple(sorted((*group.partitions, *further))))
        rows: list[dict[str, Any]] = lag_report([whole], owners, fields)["groups"]
        return rows[0]

    @operation("GET", "/v1/streams", ApiRequest, StreamsAnswer, needs=no_names)
    async def streams(self, by: Requester, _: object) -> StreamsAnswer:
        """Return the views of the setting ``streams``, and processors among the watched groups."""
        urls = self.settings.streams
        asked = (self.threads.run(by, partial(view_status, url, VIEW_TIMEOUT_S)) for url in urls)
        views = [each for each in await asyncio.gather(*asked) if _may_be_shown(by, each)]
        return StreamsAnswer(views, await self.threads.run(by, partial(self._processors, by)))

    def _processors(self, by: Requester) -> list[dict[str, Any]]:
        from offsetmgr.streams.topics import tables_of  # noqa: PLC0415 -- only where asked for

        view = self.look(by)
        tables = tables_of(self.reader(), view, self._tables) if view else {}
        self._tables = tables
        return [{**self._report(view[group]), "table": table} for group, table in tables.items()]

    def _burrow(
        self, path: str, read: Callable[..., dict[str, Any] | str], kind: type[ApiRequest]
    ) -> Operation:
        async def answer(by: Requester, asked: ApiRequest) -> Response:
            fields = msgspec.structs.asdict(asked)
            api = BurrowApi(self.settings.cluster_name, self._selected(self._view(by)))
            found = await self._quick.run(by, lambda: read(api, **fields))
            if isinstance(found, dict) and isinstance(found.get("topics"), list):
                found["topics"] = [each for each in found["topics"] if by.sees(None, each)]
            request = {"url": path.format(**fields), "host": socket.gethostname()}
            if isinstance(found, str):
                problem = {"error": True, "message": found, "request": request}
                return json_response(problem, HTTPStatus.NOT_FOUND)
            absent = found.get("status", {}).get("status") == Status.NOTFOUND.name
            status = HTTPStatus.NOT_FOUND if absent else HTTPStatus.OK
            return json_response({"error": False, **found, "request": request}, status)

        answer.__name__ = f"burrow_{read.__name__}"
        answer.__doc__ = f"What Burrow answers at {path}, for watched groups."
        needs = names_in(*(name if f"{{{name}}}" in path else "" for name in ("consumer", "topic")))
        return Operation("GET", path, answer, needs, kind, BurrowAnswer, {404: BurrowAnswer})

    @property
    def _watched(self) -> Mapping[str, GroupLag]:
        watcher = self._watcher  # its thread may drop it
        return {} if watcher is None else watcher.view

    def _view(self, by: Requester) -> Mapping[str, GroupLag]:
        if by.sees_everything:
            return self._watched
        return {name: group for name, group in self._watched.items() if by.sees(name)}

    def _selected(self, view: Mapping[str, GroupLag]) -> dict[str, GroupLag]:
        """Return the groups of ``watch.groups``, whether or not somebody looks at others."""
        return {name: group for name, group in view.items() if self._chosen.get(name)}

    def wall_s(self, at_s: float) -> float:
        """Return seconds since 1970 of a time of the managers' clock."""
        return at_s + self.wall() - self.clock.now()

    def reader(self) -> ClusterReader:
        """Return the reader, made at its first use.  Raises InvalidValueError."""
        with self._lock:
            if self._reader is None:
                settings = self.settings
                timeout_s = max(settings.commit.request_timeout_s, _LEAST_READ_S)
                kafka = settings.kafka.for_librdkafka()
                self._reader = open_cluster(kafka, settings.database, timeout_s)
            return self._reader

    # The thread that watches

    def _watch(self) -> None:
        settings, tail = self.settings, None
        if settings.watch.groups and settings.database is None:
            tail = CommitTail(settings.kafka.for_librdkafka())
        while not self._ended.is_set():
            self._look.clear()
            if not self.settings.watch.groups and not self._is_looked_at():
                self._watcher, self.failed_rounds = None, 0
                self._look.wait(LOOKED_S)
                continue
            try:
                self._round(tail)
            except Exception as error:  # noqa: BLE001 -- one bad round must not end the watch
                if not self._ended.is_set():  # else the reader was closed in its middle
                    self._fail(error)
            self._ended.wait(self.settings.watch.interval_s)
        if tail is not None:
            tail.close()

    def _is_looked_at(self) -> bool:
        return self._looked_s is not None and self.clock.now() - self._looked_s < LOOKED_S

    def _round(self, tail: CommitTail | None) -> None:
        """Read the groups of ``watch.groups``, and for the page those that the service holds."""
        reader = self.reader()
        if self._watcher is None:
            self._watcher = Watcher(
                reader,
                self.wall,
                min_distance_s=self.settings.watch.min_distance_s,
                allowed_lag=self.settings.watch.allowed_lag,
            )
        found, errors = reader.groups()
        listing = {each.name: each for each in found}
        # The groups of a broker that did not answer are read all the same, to learn more of them.
        self.listing = {**self.listing, **listing} if errors else listing
        offered = [each.name for each in self.listing.values() if each.has_offsets]
        # A list lacks groups whose coordinator is moving; their descriptions say if they are gone.
        offered += self._selected(self._watched)
        held = [each.key.group for each in self.factory.managers()] if self._is_looked_at() else []
        self._chosen = chosen_names(self.settings.watch.groups, (*offered, *held), self._chosen)
        late = [visible(name, _NAME_CHARS) for name, found in self._chosen.items() if found is None]
        if late:
            text = f"watch.groups takes too long for the names of {listed(late)}; simplify it"
            self._warn("groups_unmatched", OffsetManagerError(text), groups=len(late))
        names = [*filter(self._chosen.get, offered), *held]
        view = self._watcher.poll(names, None if tail is None else self._new_commits(tail))
        self.failed_rounds, self.read_at_s = 0, self.wall()
        self.error = errors[0] if errors else None
        if errors:
            self._warn("groups_unlisted", errors[0])
        unread: dict[str, list[OffsetManagerError]] = {}
        for group in view.values():
            for code, error in {each.code: each for each in read_errors(group)}.items():
                unread.setdefault(code, []).append(error)
        for causes in unread.values():
            self._warn("groups_unread", causes[0], groups=len(causes))
        unknown = (p.seconds_unknown for group in view.values() for p in group.partitions)
        for why, partitions in Counter(filter(None, unknown)).items():
            self._warn("lag_seconds_unknown", OffsetManagerError(why), partitions=partitions)

    def _fail(self, error: Exception) -> None:
        """Take in that a round has failed: nothing is known of the groups until the next one."""
        if not isinstance(error, OffsetManagerError):
            if not isinstance(error, OSError):
                log.error("watch_failed", exc_info=error)
            error = OffsetManagerError(f"{type(error).__name__}: {error}")
        self._failures += 1
        self.failed_rounds += 1
        self.error = error
        self._warn("watch_failed", error, rounds=self.failed_rounds)
        if self._watcher is not None:
            self._watcher.fail(error)

    def _new_commits(self, tail: CommitTail) -> list[CommitRecord] | None:
        """Return the commits since the last round; None where their log is not read."""
        try:
            return tail.read()
        except OffsetManagerError as error:
            # The topic does not exist before the first commit of a cluster.
            if error.code != "UNKNOWN_TOPIC_OR_PARTITION":
                self._warn("commit_log_unread", error, topic=TOPIC)
            return None

    def _warn(self, event: str, error: OffsetManagerError, **more: object) -> None:
        repeats = self._repeats.suppressed((event, error.code, str(error)), self.clock.now())
        if repeats is not None:
            log.warning(event, code=error.code, error=str(error), not_shown_before=repeats, **more)


def _may_be_shown(by: Requester, view: Mapping[str, Any]) -> bool:
    """Return True if ``by`` may see the view; its topic is unknown if it does not answer."""
    return by.sees_everything if view["topic"] is None else by.sees(None, view["topic"])
