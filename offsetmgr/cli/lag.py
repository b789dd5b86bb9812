"""The commands that read groups and their lag."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol
from urllib.parse import urlencode

import typer

from offsetmgr.cli.options import (
    EXIT_INCOMPLETE,
    EXIT_TROUBLE,
    Bootstrap,
    ConfigFile,
    Csv,
    Json,
    Set,
    for_scripts,
    load_settings,
)

if TYPE_CHECKING:
    from offsetmgr.lag.cluster import ClusterReader

Service = Annotated[
    str | None,
    typer.Option(help="Ask a running service: http://host:port or unix:///path/to.sock."),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for Kafka.")]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Consumer groups.")]
SomeGroups = Annotated[
    list[str] | None, typer.Argument(metavar="[GROUP]...", help="These; all, if none is named.")
]

_WIDE = 120
"""From so many columns on, a table tells who reads a partition."""

_PAGE_COLUMNS = 160
_HEADER_LINES = 4
"""Of ``top`` where it is printed and not watched."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (groups, describe, lag, top, errors):
        app.command()(command)


class _Source(Protocol):
    """A source of answers, in the JSON format of docs/operator.md."""

    def groups(self) -> dict[str, Any]:
        """Return all groups of the cluster."""

    def lag(self, names: Iterable[str] | None) -> dict[str, Any]:
        """Return the lag of groups, of all where None."""

    def watched(self, names: Collection[str]) -> dict[str, Any]:
        """Return what a watch of groups has found by now; of all where there is no name."""


class _FromKafka:
    def __init__(self, reader: ClusterReader) -> None:
        from offsetmgr.lag.watcher import Watcher

        self._reader = reader
        self._watcher = Watcher(reader, time.time)

    def groups(self) -> dict[str, Any]:
        from offsetmgr.lag.report import listing_report

        return listing_report(self._reader.groups())

    def lag(self, names: Iterable[str] | None) -> dict[str, Any]:
        from offsetmgr.lag.measure import measure
        from offsetmgr.lag.report import lag_report

        found = self._all() if names is None else names
        return lag_report(measure(self._reader, found, time.time()))

    def watched(self, names: Collection[str]) -> dict[str, Any]:
        from offsetmgr.lag.report import watched_report

        return watched_report(self._watcher.poll(names or self._all()).values())

    def _all(self) -> list[str]:
        return [each.name for each in self._reader.groups()]


class _FromService:
    def __init__(self, url: str, timeout_s: float) -> None:
        from offsetmgr.admin.service import ServiceReader

        self._service = ServiceReader(url, timeout_s)

    def groups(self) -> dict[str, Any]:
        return self._service.ask("GET", "/v1/groups")

    def lag(self, names: Iterable[str] | None) -> dict[str, Any]:
        if names is None:
            names = [each["name"] for each in self.groups()["groups"]]
        asked = urlencode([("group", name) for name in names])
        return self._service.ask("GET", f"/v1/lag?{asked}") if asked else {"groups": []}

    def watched(self, names: Collection[str]) -> dict[str, Any]:
        found = self._service.ask("GET", "/v1/watched")["groups"]
        return {"groups": [each for each in found if not names or each["name"] in names]}


@contextlib.contextmanager
def _source(
    config: Path | None,
    servers: str | None,
    others: list[str] | None,
    service: str | None,
    timeout: float,
) -> Iterator[_Source]:
    from offsetmgr.lag.cluster import ClusterReader

    if service is None:
        kafka = load_settings(config, servers, others).kafka.for_librdkafka()
        with ClusterReader(kafka, timeout_s=timeout) as reader:
            yield _FromKafka(reader)
    elif servers is not None:
        text = "a service was named too, which has a Kafka of its own; give one of the two"
        raise typer.BadParameter(text, param_hint="--bootstrap-servers")
    else:
        yield _FromService(service, timeout)


def groups(
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    service: Service = None,
    timeout: Timeout = 10.0,
    *,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List the consumer groups of the cluster, with their state.

    \b
    Exit status:
      0    they are listed
      1    Kafka refused
      2    an option is wrong
      3    Kafka did not answer in time
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with for_scripts(), _source(config, bootstrap_servers, set_, service, timeout) as source:
        answer = source.groups()
    heads = "name", "state", "type"
    _print(answer, heads, [[each[head] for head in heads] for each in answer["groups"]],
           as_json=as_json, as_csv=as_csv)  # fmt: skip


def describe(
    groups: Groups,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    service: Service = None,
    timeout: Timeout = 10.0,
    *,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show offsets, lag, members and state of groups, and who commits them.

    \b
    Exit status:
      0    nothing is wrong
      1    a group does not exist, or an offset or its log is in trouble
      2    an option is wrong
      3    something could not be read
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.types import check_group

    with for_scripts():
        names = list(dict.fromkeys(check_group(name) for name in groups))
        with _source(config, bootstrap_servers, set_, service, timeout) as source:
            answer = source.lag(names)
    found = answer["groups"]
    if as_json or as_csv:
        _print(answer, *_partition_rows(found), as_json=as_json, as_csv=as_csv)
    else:
        for each in found:
            _print_group(each)
    _exit(found, trouble=[each for each in found if _missing(each)])


def lag(
    groups: SomeGroups = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    service: Service = None,
    timeout: Timeout = 10.0,
    max_lag: Annotated[
        int | None, typer.Option(min=0, help="More records behind than this are trouble.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="More seconds behind than this are trouble.")
    ] = None,
    *,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show how far groups are behind, in records and in seconds; a line for each group and topic.

    \b
    Exit status:
      0    nothing is wrong
      1    a group does not exist, is behind by more than --max-lag or
           --max-seconds, or an offset or its log is in trouble
      2    an option is wrong
      3    something could not be read
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.types import check_group

    with for_scripts():
        names = list(dict.fromkeys(check_group(name) for name in groups)) if groups else None
        with _source(config, bootstrap_servers, set_, service, timeout) as source:
            answer = source.lag(names)
    found = answer["groups"]
    if as_json or as_csv:
        _print(answer, *_partition_rows(found), as_json=as_json, as_csv=as_csv)
    else:
        _print(answer, *_topic_rows(found), as_json=False, as_csv=False)
        for each in found:
            if each["error"]:
                print(f"{each['name']}: {each['error']['message']}", file=sys.stderr)
    most = math.inf if max_lag is None else max_lag
    most_s = math.inf if max_seconds is None else max_seconds
    behind = [
        each
        for each in found
        if _missing(each) or (each["lag"] or 0) > most or (each["lag_seconds"] or 0) > most_s
    ]
    _exit(found, behind)


def top(
    groups: SomeGroups = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    service: Service = None,
    timeout: Timeout = 10.0,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two reads.")] = 3.0,
    *,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Watch groups live: lag, rates in and out, time to catch up, status and errors.

    Keys sort and filter; h shows them. Where the output is no terminal, or with --json or --csv,
    it reads twice, prints what it saw and ends. With --service it shows what the service watches.
    """
    from offsetmgr.types import check_group

    names = [check_group(name) for name in groups or ()]
    with for_scripts(), _source(config, bootstrap_servers, set_, service, timeout) as source:
        look = partial(source.watched, names)
        if sys.stdout.isatty() and not as_json and not as_csv:
            from offsetmgr.cli.top import run

            run(look, interval)
            return
        look()
        time.sleep(interval)
        answer = look()
    found = answer["groups"]
    if as_json or as_csv:
        _print(answer, *_partition_rows(found), as_json=as_json, as_csv=as_csv)
    else:
        from offsetmgr.cli.output import console
        from offsetmgr.cli.top import Screen, drawn

        console().print(drawn(answer, Screen(), _PAGE_COLUMNS, len(found) + _HEADER_LINES))
    _exit(found, [])


def errors(
    group: Annotated[str | None, typer.Argument(help="Of this group alone.")] = None,
    service: Annotated[
        str, typer.Option(envvar="OFFSETMGR_SERVICE", help="Where the service listens.")
    ] = "http://127.0.0.1:8741",
    timeout: Timeout = 10.0,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show what the service could not commit, and why.

    With --follow it prints errors as they come, until Ctrl-C; then --json is a line for each.

    \b
    Exit status:
      0    all is committed
      1    something is not; or the service refused
      2    an option is wrong
      3    the service did not answer
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.admin.service import ServiceReader
    from offsetmgr.types import check_group

    with for_scripts():
        asked = ServiceReader(service, timeout)
        if group is not None:
            check_group(group)
        if follow:
            for key, error in asked.failures(group):
                text = f"{key['group']}/{key['topic']}/{key['partition']}: {error['message']}"
                print(json.dumps({**key, **error}) if as_json else text, flush=True)
        found = [each for each in asked.managers(group) if each.error]
    heads = "group", "topic", "partition", "client", "message"
    rows = [[each.group, *each.partition, each.client, each.error] for each in found]
    answer = {"errors": [dict(zip(heads, row, strict=True)) for row in rows]}
    _print(answer, heads, rows, as_json=as_json, as_csv=as_csv)
    raise typer.Exit(EXIT_TROUBLE if found else 0)


def _print(
    answer: Mapping[str, Any],
    heads: Iterable[str],
    rows: list[list[Any]],
    *,
    as_json: bool,
    as_csv: bool,
) -> None:
    from offsetmgr.cli.output import print_csv, print_json, print_table

    if as_json:
        print_json(answer)
    elif as_csv:
        print_csv(list(heads), rows)
    else:
        print_table([head.replace("_", " ") for head in heads], rows)


def _partition_rows(found: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return every field of every partition, for ``--csv``."""
    from offsetmgr.lag.report import PARTITION_FIELDS

    rows = []
    for group in found:
        for each in group["partitions"]:
            row = [each[field] for field in PARTITION_FIELDS[:-1]]
            rows.append([group["name"], *row, (each["error"] or {}).get("code")])
    return ["group", *PARTITION_FIELDS], rows


def _topic_rows(found: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return a row for each topic of each group: the sum of its lag, the worst of its seconds."""
    from offsetmgr.lag.measure import worst_seconds

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
            rows.append([group["name"], None, 0, None, None, _missing(group) or ""])
    return ["group", "topic", "partitions", "lag", "behind", ""], rows


def _print_group(group: Mapping[str, Any]) -> None:
    from offsetmgr.cli.output import console, print_table

    out = console()
    missing = _missing(group)
    if missing or group["state"] is None:
        out.print(f"Group {group['name']}: {missing or group['error']['message']}", style="red")
        if not group["partitions"]:
            return
    members, partitions = group["members"], group["partitions"]
    facts = [group["state"], group["type"], f"coordinator {group['coordinator']}"]
    facts += [f"assignor {group['assignor']}"] if group["assignor"] else []
    out.print(f"Group {group['name']}: {', '.join(facts)}", style="bold")
    behind = seconds_text(group["lag_seconds"])
    out.print(f"Lag: {group['lag']} records{f', {behind}' if behind else ''}")
    out.print(f"Committed by: {_committers(group)}")
    wide = out.width >= _WIDE
    heads = ["topic", "partition", "committed", "end", "lag", "behind"]
    heads += ["client", "host", "committer", ""] if wide else [""]
    rows = []
    for each in partitions:
        row = [each[name] for name in ("topic", "partition", "committed", "end", "lag")]
        row.append(seconds_text(each["lag_seconds"]))
        row += [each["client_id"], each["host"], each["committer"]] if wide else []
        rows.append([*row, each["error"]["code"] if each["error"] else each["status"] or ""])
    print_table(heads, rows)
    if members:
        fields = ["member_id", "client_id", "host", "group_instance_id"]
        fields = fields if wide else fields[1:]
        print_table(
            [*(field.replace("_", " ") for field in fields), "partitions"],
            [[each[field] for field in fields] + [len(each["partitions"])] for each in members],
        )


def _committers(group: Mapping[str, Any]) -> str:
    """Return who commits a group, as far as it can be known."""
    clients = sorted({each["committer"] for each in group["partitions"] if each["committer"]})
    if clients:
        return f"this service, for {', '.join(clients)}"
    if group["members"]:
        names = sorted({each["client_id"] for each in group["members"]})
        return f"its members ({', '.join(names)})"
    return "no member of the group: a service such as this one, or nobody any more"


def _missing(group: Mapping[str, Any]) -> str | None:
    """Return why a group has nothing to show although it was asked for; None where it has."""
    if group["state"] == "Dead" and not group["partitions"]:
        return "there is no such group"
    return None


def _exit(found: Iterable[Mapping[str, Any]], trouble: Iterable[object]) -> NoReturn:
    """End with the status of what was found."""
    groups = list(found)
    if any(each["error"] for each in groups):
        raise typer.Exit(EXIT_INCOMPLETE)
    wrong = any(each["error"] for group in groups for each in group["partitions"])
    raise typer.Exit(EXIT_TROUBLE if wrong or list(trouble) else 0)


def seconds_text(seconds: float | None) -> str | None:
    """Return a length of time as people say it, such as ``25 s`` or ``3.5 h``."""
    if seconds is None or math.isinf(seconds):
        return None
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
