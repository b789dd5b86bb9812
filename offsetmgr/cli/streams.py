"""The commands of views and stream processors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any
from urllib.parse import quote

from typer import Argument, Option

from offsetmgr.admin.service import view_status
from offsetmgr.cli import common
from offsetmgr.cli.lag import KafkaSource
from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.lag.measure import GroupLag
from offsetmgr.lag.report import lag_report
from offsetmgr.types import check_existing_group

DEFAULT_VIEW = "http://127.0.0.1:8742"

Views = Annotated[
    list[str] | None,
    Option("--view", metavar="URL", help="A view that `offsetmgr view serve` serves."),
]
OneView = Annotated[
    str, Option("--view", metavar="URL", envvar="OFFSETMGR_VIEW", help="Address of the view.")
]

_PROCESSOR_FIELDS = "topic", "partition", "status", "committed", "end", "lag"
_PLACE = "kind", "name", "topic", "partition"
_HEADS = *_PLACE, "state", "offset", "end", "lag", "rate", "recovery", "error"


class CodecName(str, Enum):
    """The codecs that a command can name; the members' names are those of the classes."""

    Bytes = "bytes"
    String = "string"
    Int64 = "int64"
    Json = "json"
    MsgPack = "msgpack"


def serve(
    table: Annotated[str, Option(help="The table's topic, such as <group>-table.")],
    path: Annotated[str, Option(help="Folder of the view's store; created if missing.")],
    codec: Annotated[CodecName, Option(help="Codec of the table's values.")] = CodecName.Json,
    listen: Annotated[str, Option(help="Loopback or unix:///path/to.sock.")] = "127.0.0.1:8742",
    tokens: Annotated[
        str | None,
        Option(metavar="FILE", help="Tokens, one in a line; every request needs one of them."),
    ] = None,
    *,
    fsync: Annotated[bool, Option("--fsync", help="Wait for the disk at each write.")] = False,
    kafka: common.KafkaOptions,
) -> None:
    """Keep a table's rows on this machine and serve them over HTTP, until SIGTERM or Ctrl-C.

    GET /v1/keys/KEY, /v1/rows?prefix=, /v1/rows?start=&limit=, each with &count=, and /v1/status.

    Exit status: 0 if it was stopped by a signal, 1 if it did not start or the view has failed.
    """
    from offsetmgr.http.address import Address, listening
    from offsetmgr.logs import SafeLogger
    from offsetmgr.service import logs
    from offsetmgr.streams import ViewError, codecs
    from offsetmgr.streams.serve import ViewApp
    from offsetmgr.streams.serve import serve as serve_until_signal
    from offsetmgr.streams.storage import LmdbStorage
    from offsetmgr.streams.view import View

    address = Address.parse(listen)
    address.check_reach(["TLS, which a view does not have"])
    logs.set_up("info")
    with listening(address) as (sock, where):
        storage = LmdbStorage(path, fsync=fsync)
        values = getattr(codecs, codec.name)()
        settings = kafka.for_librdkafka()
        with View(settings, table, values, storage=storage, timeout_s=kafka.timeout) as view:
            app = ViewApp(view, address.hosts(), tokens)
            log = SafeLogger("offsetmgr.streams")
            log.info("serving", address=str(where), table=view.topic, tokens=tokens is not None)
            serve_until_signal(app, sock)
            error = view.stats().error
            if error is not None:
                raise ViewError(f"the view of {table} has failed: {error}")


def status(
    groups: common.SomeGroups = None,
    view: Views = None,
    *,
    kafka: common.KafkaOptions,
    output: common.OutputOptions,
) -> int:
    """Show views and processors: partitions, states, lag, rates and recovery.

    Name a processor by its group, a view by its address. The state of a processor is Burrow's
    status of its group, its rate is that of its commits. Its last row is its table. Exits with 1 if
    a row has an error.
    """
    asked = view or ([] if groups else [DEFAULT_VIEW])
    login = common.credentials()
    answer: dict[str, Any] = {
        "views": [view_status(url, kafka.timeout, login) for url in asked],
        "processors": _processors(groups, kafka) if groups else [],
    }
    rows = [row for each in answer["views"] for row in _view_rows(each)]
    rows += [row for each in answer["processors"] for row in _processor_rows(each)]
    output.print(answer, _HEADS, rows)
    return common.Exit.TROUBLE if any(row[-1] for row in rows) else 0


def get(
    key: Annotated[str, Argument(help="The key of the row.")],
    view: OneView = DEFAULT_VIEW,
    *,
    kafka: common.KafkaOptions,
) -> None:
    """Print the row of a key of a view as JSON; exits with 1 where there is none."""
    reader = common.service_reader(view, None, kafka.timeout)
    common.print_json(reader.ask("GET", f"/v1/keys/{quote(os.fsencode(key), safe='')}"))


def copy_table(
    source: Annotated[str, Argument(help="The table's topic, such as <group>-table.")],
    target: Annotated[str, Argument(help="A topic that does not exist, or has no messages.")],
    partitions: Annotated[
        int | None, Option(min=1, help="Partitions of a target that does not exist.")
    ] = None,
    *,
    execute: common.Execute = False,
    kafka: common.KafkaOptions,
    output: common.OutputOptions,
) -> None:
    """Copy a table into a topic with another number of partitions; without --execute, show a plan.

    Stop what writes the table first. Then give the processor the new topic (table_suffix) and a
    new checkpoint: it reads the rows from there, and its inputs from the group's offsets.
    """
    from offsetmgr.streams.topics import copy_table as copy
    from offsetmgr.streams.topics import plan_copy

    settings = kafka.for_librdkafka()
    plan = plan_copy(settings, source, target, partitions)
    if execute:
        plan = copy(settings, plan, kafka.timeout)
    answer = {**plan._asdict(), "executed": execute}
    output.print(answer, list(answer), [list(answer.values())])


def _processors(groups: Iterable[str], kafka: common.KafkaOptions) -> list[dict[str, Any]]:
    """Return groups as `offsetmgr lag` has them, with what each group's table holds."""
    from offsetmgr.streams import group_table
    from offsetmgr.streams.topics import tables_of

    names = [check_existing_group(group) for group in groups]
    with ClusterReader(kafka.for_librdkafka(), timeout_s=kafka.timeout) as reader:
        source = KafkaSource(reader)
        source.watched(names)
        time.sleep(1.0)  # rates are of two rounds
        found: list[dict[str, Any]] = source.watched(names)["groups"]
        tables = tables_of(reader, names)
    error = OffsetManagerError("the group does not exist")
    missing = sorted(set(names) - {each["name"] for each in found})
    found += lag_report(GroupLag(name, None, (), error) for name in missing)["groups"]
    for group in found:
        empty = {"topic": group_table(group["name"]), "messages": {}}
        group["table"] = tables.get(group["name"], empty)
    return found


def _view_rows(view: dict[str, Any]) -> list[tuple[object, ...]]:
    who = "view", view["url"], view["topic"]
    rows: list[tuple[object, ...]] = []
    if view["error"] is not None:
        rows.append((*who, None, view["state"], *[None] * 5, view["error"]))
    for each in view["partitions"]:
        state = "stalled" if each["stalled"] else each["state"]
        offsets = each["next_offset"], each["high_watermark"], each["lag"]
        rates = f"{each['rows_per_s']:.0f}/s", f"{each['recovery']:.0%}"
        rows.append((*who, each["partition"], state, *offsets, *rates, each.get("error")))
    return rows


def _processor_rows(group: dict[str, Any]) -> list[tuple[object, ...]]:
    who, table = ("processor", group["name"]), group["table"]
    rows: list[tuple[object, ...]] = []
    if group["error"] is not None:
        rows.append((*who, *[None] * 8, group["error"]["message"]))
    for each in group["partitions"]:
        state = [each[name] for name in _PROCESSOR_FIELDS]
        rate = None if each["rate_out"] is None else f"{each['rate_out']:.0f}/s"
        error = each["error"] and each["error"]["message"]
        rows.append((*who, *state, rate, None, error))
    for number, messages in table["messages"].items():
        rows.append((*who, table["topic"], number, "table", None, messages, *[None] * 4))
    return rows
