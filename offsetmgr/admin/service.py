"""Queries to a running service about a group, over HTTP."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from offsetmgr.admin.reset import NOT_KNOWN
from offsetmgr.client.transport import (
    NO_CREDENTIALS,
    Connection,
    Credentials,
    Request,
    Unreachable,
    parse_url,
    read_events,
)
from offsetmgr.client.wire import reading
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError, ServiceError, ServiceUnavailableError
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsetmgr.types import OffsetAndMetadata

_HEADERS: Final = {"Offsetmgr-Client": "offsetmgr-admin", "Accept": "application/json"}
_OK: Final = 200
_UNREADY: Final = 503
_SILENT_S: Final = 30.0
"""The service writes to a stream of events every 10 s; a longer silence is its end."""
_PAGE: Final = 10_000
"""Rows that the service answers in one page."""
_ANSWER_S: Final = 5.0
"""More than the service is given, for its answer to arrive."""


class LiveManager(NamedTuple):
    """A manager of a service, as its operator sees it."""

    group: str
    partition: TopicPartition
    client: str
    error: str
    """Why its newest offset is not committed; empty where all is well."""


class ServiceFacts(NamedTuple):
    """The status that a service reports."""

    url: str
    ready: bool
    draining: bool
    kafka: str
    """``ok``, or what is wrong with it."""
    fenced_groups: int
    """Groups that another service has taken over."""
    managers: list[LiveManager]
    failing_checkpoints: Mapping[str, str] = {}
    """Checkpoints that it follows in vain: location → problem."""


class ServiceReader:
    """Asks one service; each question has a connection of its own."""

    def __init__(
        self, url: str, timeout_s: float = 10.0, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        """Raises InvalidValueError where ``url`` is none of a service."""
        self.url = url
        self._address = parse_url(url, credentials)
        self._timeout_s = timeout_s

    def managers(
        self, group: str | None = None, deadline: Deadline | None = None
    ) -> list[LiveManager]:
        """Return the live managers of a group, or all.  Raises as ``pages``."""
        query = "" if group is None else urlencode({"group": group})
        found = self.pages("/v1/managers", "managers", query, deadline)
        with reading("managers"):
            return list(map(_manager, found))

    def pages(
        self, path: str, rows: str, query: str = "", deadline: Deadline | None = None
    ) -> list[dict[str, Any]]:
        """Return the ``rows`` of all pages; the time-out is for all of them.

        Raises ServiceUnavailableError, ServiceError.
        """
        found: list[dict[str, Any]] = []
        first = f"{path}?limit={_PAGE}{query and '&'}{query}"
        target: str | None = first
        deadline = deadline or self._deadline()
        while target is not None:
            page = self.ask("GET", target, deadline=deadline)
            with reading(rows):
                found += page[rows]
                after = page["next"]
                target = None if after is None else f"{first}&{urlencode({'after': after})}"
        return found

    def facts(self) -> ServiceFacts:
        """Return what the service says of itself; the time-out is for all.  Raises as ``pages``."""
        deadline = self._deadline()
        with reading("its state"):
            ready = self.ask("GET", "/readyz", also=_UNREADY, deadline=deadline)
            return ServiceFacts(
                self.url,
                ready["ready"],
                ready["draining"],
                ready["kafka"],
                ready["fenced_groups"],
                self.managers(deadline=deadline),
                _failing_checkpoints(self.ask("GET", "/v1/queries", deadline=deadline)),
            )

    def failures(self, group: str | None = None) -> Iterator[Any]:
        """Yield each failure from now on, until the service ends.

        It is group, topic, partition, and the ``error`` as ``GET /v1/managers`` has it.
        Raises as ``ask``, and ServiceUnavailableError where the service has gone.
        """
        query = "" if group is None else f"?{urlencode({'group': group})}"
        # Without a client's name: the events of all clients.
        request = Request("GET", f"/v1/events{query}", {"Accept": "text/event-stream"})
        with self._connection(Deadline(self._timeout_s)) as connection:
            answer, pieces = connection.stream(request, _SILENT_S)
            if answer.status != _OK:
                raise self._failure(answer.status, msgspec.json.decode(answer.body))
            for event in read_events(pieces):
                if event.get("event") == "failed":
                    yield msgspec.json.decode(event["data"])
        raise ServiceUnavailableError(f"the service at {self.url} has ended")

    def rewind(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, str],
    ) -> dict[TopicPartition, str]:
        """Have live managers set ``offsets``; return why those of some partitions were not.

        Those of a topic whose id is not that of ``topic_ids`` any more are refused.
        Raises as ``managers``, also for more offsets than the service takes at once.
        """
        entries = [
            {"topic": topic, "partition": partition, "offset": offset, "metadata": metadata}
            for (topic, partition), (offset, metadata, _) in offsets.items()
        ]
        body = {"group": group, "offsets": entries, "wait": True, "timeout_s": self._timeout_s}
        topics = {where.topic for where in offsets}
        body["topic_ids"] = {topic: topic_ids[topic] for topic in topics if topic in topic_ids}
        with reading("the offsets"):
            return rewind_failures(self.ask("POST", "/v1/rewind", body), offsets)

    def ask(
        self,
        method: str,
        target: str,
        body: Mapping[str, object] | None = None,
        also: int = _OK,
        deadline: Deadline | None = None,
    ) -> dict[str, Any]:
        """Return the answer to a request whose status is 200, or ``also``.

        Raises ServiceUnavailableError, ServiceError.
        """
        headers = dict(_HEADERS)
        if body is not None:
            headers["Content-Type"] = "application/json"
        sent = None if body is None else json.dumps(body).encode()
        deadline = deadline or self._deadline()
        with self._connection(deadline) as connection:
            answer = connection.exchange(Request(method, target, headers, sent), deadline)
            data = msgspec.json.decode(answer.body)
        if answer.status not in {_OK, also} or not isinstance(data, dict):
            raise self._failure(answer.status, data)
        return data

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s + _ANSWER_S)

    @contextmanager
    def _connection(self, deadline: Deadline) -> Iterator[Connection]:
        try:
            with closing(Connection(self._address, deadline)) as connection:
                yield connection
        except Unreachable as error:
            raise ServiceUnavailableError(f"the service at {self.url} {error}") from None
        except (msgspec.DecodeError, RecursionError):
            text = f"the service at {self.url} did not answer in JSON; is the url right?"
            raise ServiceUnavailableError(text) from None

    def _failure(self, status: int, data: object) -> ServiceError:
        failure = data.get("error") if isinstance(data, dict) else None
        if not isinstance(failure, dict):  # it is another server
            failure = {}
        message = failure.get("message", f"the service at {self.url} answered {status}")
        return ServiceError(status, str(message), str(failure.get("code", "service_error")))


class _ViewPartition(msgspec.Struct):
    partition: int
    state: str
    next_offset: int | None
    high_watermark: int | None
    lag: int | None
    rows_per_s: float
    recovery: float
    stalled: bool
    last_stable_offset: int | None = None
    rows: int = 0
    recovery_s: float | None = None
    error: str | None = None


class _ViewStatus(msgspec.Struct):
    topic: str | None = None
    state: str | None = None
    lag: int | None = None
    rows_per_s: float | None = None
    recovery: float | None = None
    stalled: bool | None = None
    error: str | None = None
    partitions: list[_ViewPartition] = []


def view_status(
    url: str, timeout_s: float, credentials: Credentials = NO_CREDENTIALS
) -> dict[str, Any]:
    """Return the status that the view at ``url`` reports.

    If it does not answer as a view, ``error`` is the reason, and all else is unknown.  Raises
    InvalidValueError if ``url`` is not an address.
    """
    reader = ServiceReader(url, timeout_s, credentials)
    try:
        answer = reader.ask("GET", "/v1/status")
        if not {"topic", "partitions"} <= answer.keys():
            raise ServiceUnavailableError(f"the service at {url} is not a view")
        status = msgspec.convert(answer, _ViewStatus)
    except msgspec.ValidationError as error:
        status = _ViewStatus(error=f"the service at {url} does not answer as a view: {error}")
    except OffsetManagerError as error:
        status = _ViewStatus(error=str(error))
    return {"url": url, **msgspec.to_builtins(status)}


def rewind_failures(
    answer: Mapping[str, Any], offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, str]:
    """Return why offsets were not set, from the answer of ``POST /v1/rewind`` with ``wait``."""
    failures = {_partition(each): each["error"]["message"] for each in answer["refused"]}
    for each in answer["uncommitted"]:
        text = (each["error"] or {}).get("message", "no answer from Kafka yet")
        failures[_partition(each)] = f"{NOT_KNOWN}{text}; the service goes on trying"
    for each in answer["committed"]:
        if each["offset"] != offsets[_partition(each)].offset:
            text = f"its job has already committed {each['offset']} over it"
            failures[_partition(each)] = text
    return failures


def _failing_checkpoints(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the problem of each followed checkpoint that has one, or another committer."""
    reported = {each["id"]: each["client"] for each in answer["queries"]}
    found = {}
    for each in answer.get("followed", ()):
        other = reported.get(each["query_id"])
        if each["problem"] is not None:
            found[str(each["checkpoint"])] = each["problem"]
        elif other is not None:
            found[str(each["checkpoint"])] = f"client {other} commits this query as well"
    return found


def _manager(view: Mapping[str, Any]) -> LiveManager:
    error = view["last_error"]
    failed = "" if error is None or not view["dirty"] else str(error["message"])
    return LiveManager(str(view["group"]), _partition(view), str(view["client"]), failed)


def _partition(view: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(str(view["topic"]), int(view["partition"]))
