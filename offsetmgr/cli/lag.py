"""The commands that read groups and their lag."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from typer import Argument, Option

from offsetmgr.admin.service import ServiceReader
from offsetmgr.admin.times import seconds_text
from offsetmgr.cli import common
from offsetmgr.cli import top as live
from offsetmgr.client.wire import reading
from offsetmgr.codes import Fault
from offsetmgr.errors import OffsetManagerError, ServiceError
from offsetmgr.kafka.cluster import ClusterReader, GroupListing
from offsetmgr.lag.measure import GroupLag, measure, worst_seconds
from offsetmgr.lag.report import PARTITION_FIELDS, lag_report, listing_report
from offsetmgr.lag.store_reader import open_cluster
from offsetmgr.lag.watcher import Watcher
from offsetmgr.text import listed, visible
from offsetmgr.types import check_existing_group, check_group

_GROUPS_ASKED = 50
"""In one request to a service."""
_NAME_CHARS = 100
_QUERY_BYTES = 30_000
"""A service takes no longer query."""
_OF_A_NAME = {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN}
"""Statuses of a request that is refused for a group in it, whatever the others are."""

_UNREAD = {Fault.BROKER.value, Fault.NETWORK.value}
"""Faults for which a log could not be read, whatever it holds."""


class KafkaSource:
    """Kafka as the source of answers, in the JSON format of docs/operator.md."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader
        self._watcher = Watcher(reader, time.time)

    def groups(self) -> dict[str, Any]:
        return listing_report(*self._reader.groups())

    def lag(self, names: list[str]) -> dict[str, Any]:
        return lag_report(measure(self._reader, names, time.time()))

    def watched(self, names: list[str]) -> dict[str, Any]:
        """Return the state of watched groups, or of all groups without ``names``."""
        names, errors = _named(self, names)
        return lag_report(self._watcher.poll(names).values()) | errors


class _Service:
    """A running service as the source of the same answers."""

    def __init__(self, reader: ServiceReader) -> None:
        self._reader = reader

    def groups(self) -> dict[str, Any]:
        return self._reader.ask("GET", "/v1/groups")

    def lag(self, names: list[str]) -> dict[str, Any]:
        def ask(query: str) -> list[dict[str, Any]]:
            return list(self._reader.ask("GET", f"/v1/lag?{query}")["groups"])

        return {"groups": _in_parts(ask, names)}

    def watched(self, names: list[str]) -> dict[str, Any]:
        """Return the state of watched groups, or of all groups without ``names``."""
        ask = partial(self._reader.pages, "/v1/watched", "groups")
        return {"groups": _in_parts(ask, names) if names else ask()}


def _in_parts(ask: Callable[[str], list[dict[str, Any]]], names: list[str]) -> list[dict[str, Any]]:
    """Return what ``ask`` answers of groups; one that the service refuses has an error."""
    query = urlencode([("group", name) for name in names])
    text = "the name is too long for a request to the service; ask Kafka itself"
    error = ServiceError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text, "name_too_long")
    if len(names) <= _GROUPS_ASKED and len(query) <= _QUERY_BYTES:
        try:
            return ask(query) if names else []
        except ServiceError as refused:
            if refused.status not in _OF_A_NAME:
                raise
            error = refused
    if len(names) == 1:
        return list(lag_report([GroupLag(names[0], None, (), error)])["groups"])
    half = len(names) // 2
    return _in_parts(ask, names[:half]) + _in_parts(ask, names[half:])


def _named(source: KafkaSource | _Service, names: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the groups to read, and the errors of brokers whose groups are missing."""
    if names:
        return names, {}
    listed = source.groups()
    found = [each["name"] for each in listed["groups"] if _has_offsets(each["type"])]
    return found, {"errors": listed["errors"]}


def _lag(source: KafkaSource | _Service, names: list[str]) -> dict[str, Any]:
    """Return the lag of groups, or of all groups without ``names``."""
    names, errors = _named(source, names)
    return source.lag(names) | errors


def _has_offsets(kind: str) -> bool:
    return GroupListing("", "", kind).has_offsets


def _watched(source: KafkaSource | _Service, names: list[str]) -> dict[str, Any]:
    """Return the state of watched groups, with an error if some of ``names`` are not."""
    answer = source.watched(names)
    shown = {each["name"] for each in answer["groups"]}
    missing = [visible(name, _NAME_CHARS) for name in names if name not in shown]
    if missing:
        text = f"not watched: {listed(missing)}; they do not exist or commit no offsets"
        if isinstance(source, _Service):
            text += ", or the service's setting watch.groups leaves them out"
        errors = lag_report([GroupLag("", None, (), OffsetManagerError(text))])["groups"]
        answer["errors"] = [*answer.get("errors", ()), errors[0]["error"]]
    return answer


@contextlib.contextmanager
def _opened(source: common.SourceOptions) -> Iterator[KafkaSource | _Service]:
    service = source.owner()
    if service is None:
        settings = source.for_librdkafka()
        with open_cluster(settings, source.store, source.timeout) as reader:
            yield KafkaSource(reader)
        return
    if source.store is not None or source.bootstrap_servers is not None:
        option = "--bootstrap-servers" if source.store is None else "--store"
        text = "a service was named too, which has its own; give one of the two"
        raise typer.BadParameter(text, param_hint=option)
    try:
        yield _Service(service)
    except OffsetManagerError:
        raise
    except Exception:  # the answer of a service of another version, or of another server
        with reading("groups"):
            raise


def _checked(groups: Iterable[str] | None) -> list[str]:
    return list(dict.fromkeys(map(check_existing_group, groups or ())))


def groups(*, source: common.SourceOptions, output: common.OutputOptions) -> int:
    """List the groups of the cluster, with their state and type.

    Exits with 3 if a broker did not answer, whose groups are missing.
    """
    with _opened(source) as opened:
        answer = opened.groups()
        heads = "name", "state", "type"
        rows = [[each[head] for head in heads] for each in answer["groups"]]
        output.print(answer, heads, rows, problems=_reasons(answer))
        return _status(answer)


def describe(
    groups: common.Groups, *, source: common.SourceOptions, output: common.OutputOptions
) -> int:
    """Show offsets, lag, members and state of groups, and who commits them.

    Exits with 1 if a group does not exist, an offset is outside its log, or its log is missing.
    """
    names = _checked(groups)
    with _opened(source) as opened:
        answer = _lag(opened, names)
        found = answer["groups"]
        if output.as_table:
            for each in found:
                _print_group(each)
        else:
            output.print(answer, *_partition_rows(found), problems=_problems(answer, output))
        return _status(answer, trouble=_are_missing(found))


def lag(
    groups: common.SomeGroups = None,
    max_lag: Annotated[
        float, Option(min=0, show_default=False, help="Exit with 1 beyond so many records.")
    ] = math.inf,
    max_seconds: Annotated[
        float, Option(min=0, show_default=False, help="Exit with 1 beyond so many seconds.")
    ] = math.inf,
    *,
    source: common.SourceOptions,
    output: common.OutputOptions,
) -> int:
    """Show the lag of groups in records and in seconds, a line for each group and topic.

    Exits with 1 if a group does not exist or is behind by more than --max-lag or --max-seconds, if
    an offset is outside its log, or if its log is missing.
    """
    names = _checked(groups)
    with _opened(source) as opened:
        answer = _lag(opened, names)
        found = answer["groups"]
        shown = _topic_rows(found) if output.as_table else _partition_rows(found)
        output.print(answer, *shown, problems=_problems(answer, output))
        behind = any(
            (group["lag"] or 0) > max_lag or (group["lag_seconds"] or 0) > max_seconds
            for group in found
        )
        status = _status(answer, trouble=_are_missing(found) or behind)
        is_unknown = max_seconds < math.inf and any(each["lag_seconds_unknown"] for each in found)
        return status or (common.Exit.INCOMPLETE if is_unknown else 0)


def top(
    groups: common.SomeGroups = None,
    interval: Annotated[
        float, Option(min=0.5, max=86_400.0, help="Seconds between two reads.")
    ] = 3.0,
    *,
    source: common.SourceOptions,
    output: common.OutputOptions,
) -> int:
    """Watch groups live: lag, rates in and out, time to catch up, status and errors.

    The second line of the screen names the keys. If the output is not a terminal, or a dumb one, or
    with --json or --csv, it reads twice, prints the result and ends. With --service it shows the
    groups that the service watches.
    """
    names = _checked(groups)
    with _opened(source) as opened:
        look = partial(_watched, opened, names)
        if live.is_possible() and output.as_table:
            live.run(look, interval)
            return 0
        look()
        time.sleep(interval)
        answer = look()
        heads, rows = _partition_rows(answer["groups"])
        if output.as_table:
            found = live.rows_of(answer, live.TopView())
            heads, rows = ["group", *live.COLUMNS], [[*row.names, *row.cells()] for row in found]
        output.print(answer, heads, rows, problems=_problems(answer, output))
        return _status(answer)


def errors(
    group: Annotated[str | None, Argument(help="Only of this group.")] = None,
    service: common.ServiceUrl = common.DEFAULT_SERVICE,
    token_file: common.TokenFile = None,
    timeout: common.Timeout = 10.0,
    *,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Print new errors as they come.")
    ] = False,
    output: common.OutputOptions,
) -> int:
    """Show offsets that the service could not commit, and why; exits with 1 if there are any.

    With --follow it prints errors as they come, until Ctrl-C; --json then prints a line for each.
    """
    asked = common.service_reader(service, token_file, timeout)
    if group is not None:
        check_existing_group(group)
    if follow:
        for failure in asked.failures(group):
            with reading("a failed offset"):
                error = failure.pop("error")
                place = f"{failure['group']}/{failure['topic']}/{failure['partition']}"
                text = f"{place}: {error['message']}"
                line = json.dumps({**failure, **error}) if output.as_json else text
            common.say(line)
    found = [each for each in asked.managers(group) if each.error]
    heads = "group", "topic", "partition", "client", "message"
    rows = [[each.group, *each.partition, each.client, each.error] for each in found]
    output.print({}, heads, rows, "errors")
    return common.Exit.TROUBLE if found else 0


def _partition_rows(found: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return every field of every partition, for ``--csv``."""
    rows = []
    for group in found:
        for each in group["partitions"]:
            row = [each[field] for field in PARTITION_FIELDS[:-1]]
            rows.append([group["name"], *row, (each["error"] or {}).get("code")])
    return ["group", *PARTITION_FIELDS], rows


def _topic_rows(found: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return a row for each topic of each group: the sum of its lag, the worst of its seconds."""
    rows: list[list[Any]] = []
    for group in found:
        topics: dict[str, list[Mapping[str, Any]]] = {}
        for each in group["partitions"]:
            topics.setdefault(each["topic"], []).append(each)
        for topic, partitions in topics.items():
            lags = [each["lag"] for each in partitions if each["lag"] is not None]
            codes = sorted({each["error"]["code"] for each in partitions if each["error"]})
            ages = [(each["lag"], each["lag_seconds"]) for each in partitions]
            behind = seconds_text(worst_seconds(ages))
            row = [group["name"], topic, len(partitions), sum(lags) if lags else None, behind]
            rows.append([*row, ", ".join(codes)])
        if not topics:
            rows.append([group["name"], None, 0, None, None, _note(group)])
    return ["group", "topic", "partitions", "lag", "behind", ""], rows


def _print_group(group: Mapping[str, Any]) -> None:
    name, kind, missing = f"Group {group['name']}", group["type"], _missing(group)
    if missing or group["state"] is None:
        common.say(f"{name}: {missing or group['error']['message']}", fg="red")
        if not group["partitions"]:
            return
    elif kind and not _has_offsets(kind):
        text = f"a {kind} group, which commits no offsets; Kafka's own tools show it"
        common.say(f"{name}: {text}", bold=True)
        return
    else:
        facts = [group["state"], kind, f"coordinator {group['coordinator']}"]
        facts += [f"assignor {group['assignor']}"] if group["assignor"] else []
        common.say(f"{name}: {', '.join(facts)}", bold=True)
    behind = seconds_text(group["lag_seconds"])
    lag = "unknown" if group["lag"] is None else f"{group['lag']} records"
    common.say(f"Lag: {lag}{f', {behind}' if behind else ''}")
    common.say(f"Committed by: {_committers(group)}")
    fields = ["topic", "partition", "committed", "end", "lag"]
    owners = ["client_id", "host", "committer"]
    rows = []
    for each in group["partitions"]:
        behind, pending = seconds_text(each["lag_seconds"]), each["pending_acks"] or ""
        note = each["error"]["code"] if each["error"] else each["status"] or ""
        owned = (each[field] or "" for field in owners)
        rows.append([*(each[field] for field in fields), behind, pending, *owned, note])
    common.print_table([*fields, "behind", "pending_acks", *owners, ""], rows)
    for why in _reasons({"groups": [group]}) if group["state"] else ():
        common.say(why)
    if group["members"]:
        fields = ["member_id", "client_id", "host", "group_instance_id"]
        rows = [[*(each[f] for f in fields), len(each["partitions"])] for each in group["members"]]
        common.print_table([*fields, "partitions"], rows)


def _committers(group: Mapping[str, Any]) -> str:
    clients = sorted({each["committer"] for each in group["partitions"] if each["committer"]})
    if clients:
        return f"this service, for {', '.join(clients)}"
    if group["members"]:
        names = sorted({each["client_id"] for each in group["members"]})
        return f"its members ({', '.join(names)})"
    if group["state"] is None:
        return "not known"
    return "no member of the group; perhaps a service or a job"


def _missing(group: Mapping[str, Any]) -> str | None:
    if group["state"] == "Dead" and group.get("partitions") == []:
        return "the group does not exist"
    return None


def _note(group: Mapping[str, Any]) -> str:
    """Return why a group has no rows of its own; empty if it has."""
    code = (group.get("error") or {}).get("code", "")
    return _missing(group) or (code if group.get("partitions") == [] else "")


def _are_missing(found: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if a group does not exist.  Raises InvalidValueError if none could be made."""
    missing = [each["name"] for each in found if _missing(each)]
    for name in missing:
        check_group(name)
    return bool(missing)


def _problems(answer: Mapping[str, Any], output: common.OutputOptions) -> Iterator[str]:
    """Yield why a number or a group is missing from the rows."""
    for group in answer["groups"] if output.as_csv else ():
        if note := _note(group):  # which is in a row of a table, and none of CSV
            yield f"{group['name']}: {note}"
    yield from _reasons(answer)


def _reasons(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a number is missing, each cause once."""
    for error in answer.get("errors", ()):
        yield error["message"]
    failed: dict[str, list[Mapping[str, Any]]] = {}
    unknown: dict[str, list[str]] = {}
    for group in answer["groups"]:
        if group.get("error"):
            failed.setdefault(group["error"]["code"], []).append(group)
        for each in group.get("partitions", ()):
            if each["lag_seconds_unknown"]:
                place = f"{group['name']} {each['topic']}-{each['partition']}"
                unknown.setdefault(each["lag_seconds_unknown"], []).append(place)
    for same in failed.values():
        names = listed([visible(group["name"], _NAME_CHARS) for group in same])
        yield f"{names}: {same[0]['error']['message']}"
    for why, places in unknown.items():
        yield f"seconds behind unknown for {listed(places)}: {why}"


def _status(answer: Mapping[str, Any], *, trouble: bool = False) -> int:
    groups = answer["groups"]
    if answer.get("errors") or any(each.get("error") for each in groups):
        return common.Exit.INCOMPLETE
    errors = [
        (each["error"], each["end"])
        for group in groups
        for each in group.get("partitions", ())
        if each["error"]
    ]
    if any(end is None and error.get("fault") in _UNREAD for error, end in errors):
        return common.Exit.INCOMPLETE
    return common.Exit.TROUBLE if trouble or errors else 0
