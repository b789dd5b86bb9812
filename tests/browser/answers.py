"""Answers of a service, for what a real one is too slow or too healthy to show.

They are made of the service's own types: a field that it does not have, or lacks, is refused.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qs

import msgspec

from offsetmgr.admin.history import HISTORY_FIELDS
from offsetmgr.admin.reset import PLAN_FIELDS
from offsetmgr.admin.service import _ViewPartition, _ViewStatus
from offsetmgr.http.errors import ErrorAnswer
from offsetmgr.kafka.cluster import GroupDescription
from offsetmgr.lag.burrow import Status
from offsetmgr.lag.measure import GroupLag, PartitionLag
from offsetmgr.lag.report import PARTITION_FIELDS, OwningClient, lag_report
from offsetmgr.service.changes import PlanAnswer, StepsAnswer
from offsetmgr.service.overview import (
    DrainingAnswer,
    OverviewAnswer,
    OverviewGroup,
    QueriesAnswer,
    ReportedQuery,
)
from offsetmgr.types import OffsetAndMetadata, TopicPartition

Json = dict[str, Any]

UNKNOWN = "\N{EN DASH}"
"""The page's text for null."""


def built(kind: type[msgspec.Struct], **fields: object) -> Json:
    """Return an answer of the service as JSON has it."""
    assert fields.keys() <= set(kind.__struct_fields__)
    answer: Json = msgspec.to_builtins(msgspec.convert(fields, kind))
    return answer


def group_summary(name: str, **fields: object) -> Json:
    values = {
        "state": "Empty",
        "watched": True,
        "status": "OK",
        "lag": 120,
        "lag_seconds": 3.2,
        "rate_in": 10.0,
        "rate_out": 12.0,
        "catch_up_seconds": 60.0,
        "members": 0,
        "clients": ["etl-driver"],
        "partitions": 4,
        "pending_acks": 0,
        "uncommitted": 0,
        "failing": 0,
        "error": None,
        "lag_points": [130, 125, None, 120, 118, 120],
    }
    return built(OverviewGroup, name=name, **values | fields)


def overview(*groups: Json, **fields: object) -> Json:
    values = {
        "cluster": "production",
        "instance": "0a1b2c3d4e5f",
        "version": "0.1.0",
        "draining": False,
        "ready": True,
        "reasons": [],
        "clients": 3,
        "managers": 12,
        "uncommitted": 0,
        "failing": 0,
        "watch": {"groups": ".*", "interval_s": 30.0, "hint": None},
        "groups_error": None,
        "identity": None,
        "reload_error": None,
    }
    return built(OverviewAnswer, groups=groups, **values | fields)


def lag(name: str, *partitions: Json, **fields: object) -> Json:
    description = GroupDescription("Empty", "classic", "127.0.0.1:9092 (1)", "", ())
    (group,) = lag_report([GroupLag(name, description, (), None, Status.OK)])["groups"]
    sums = {"lag": sum(each["lag"] for each in partitions), "lag_seconds": 3.2}
    return {"groups": [{**group, **sums, "partitions": list(partitions), **fields}]}


def partition(number: int, **fields: object) -> Json:
    assert fields.keys() <= set(PARTITION_FIELDS)
    where = TopicPartition("orders", number)
    measured = PartitionLag(
        where,
        OffsetAndMetadata(1_000_040),
        end=1_000_160,
        lag=120,
        seconds=3.2,
        status=Status.OK,
        rate_in=10.0,
        rate_out=12.0,
    )
    owner = OwningClient("etl-driver", None, 1_000_042, time.time() - 2, "ready")
    group = GroupLag("", None, (measured,))
    (row,) = lag_report([group], {("", where): owner})["groups"][0]["partitions"]
    return {**row, **fields}


def with_fields(answer: Json, query: str) -> Json:
    """Return ``GET /v1/lag`` as ``query`` wants it: with lists of the fields it names."""
    fields = parse_qs(query).get("field", [])
    (group,) = answer["groups"]
    rows = [[each[name] for name in fields] for each in group["partitions"]]
    return {"groups": [{**group, "partitions": rows}]}


def step(minute: int, before: int | None, after: int | None, change: str, **fields: object) -> Json:
    time_text = f"2026-01-31T13:{minute:02}:00.123Z"
    row = dict(
        zip(HISTORY_FIELDS, (time_text, "orders", 0, before, after, "", change, ""), strict=True)
    )
    return {**row, **fields}


def history(group: str, *steps: Json) -> Json:
    return built(StepsAnswer, group=group, left_out=0, undo_to=None, steps=steps)


def planned(number: int, current: int | None, new: int | None, **fields: object) -> Json:
    values = "orders-etl", "orders", number, current, new, "", 10, ""
    return {**dict(zip(PLAN_FIELDS, values, strict=True)), **fields}


def plan(*rows: Json, **fields: object) -> Json:
    """Return ``POST /v1/plan`` or, with ``executed``, ``POST /v1/reset``."""
    values = {"group": "orders-etl", "live": False, "refused": None, "can_live": False}
    return built(PlanAnswer, partitions=rows, **values | {"executed": False} | fields)


def error(code: str, message: str, **fields: object) -> Json:
    return built(ErrorAnswer, error={"code": code, "message": message, **fields})


def failed(number: int, group: str, partition: int, body: Json) -> str:
    where = {"group": group, "topic": "orders", "partition": partition}
    data = json.dumps({**where, "at": time.time(), "error": body})
    return f"id: {number}\nevent: failed\ndata: {data}\n\n"


REFUSED = {
    "code": "UNKNOWN_MEMBER_ID",
    "message": "commit of orders-0 of group 'billing' at 42: the group has live members, so Kafka "
    "takes commits from them alone; commit to another group or stop them",
    "hint": "stop the members, or commit to another group",
    "fault": "operator",
    "retriable": False,
}

RUNNING = built(
    ReportedQuery,
    client="etl-driver",
    name="etl",
    id="5f1c7ad0-0b0f-4f53-93c3-6c1c9a0a3a10",
    run_id="a1b2c3d4-0b0f-4f53-93c3-6c1c9a0a3a10",
    groups=["orders-etl"],
    batch_id=1204,
    input_rows_per_second=1250.5,
    processed_rows_per_second=2310.0,
    batch_ms=412,
    input_rows=515,
    time="2026-01-31T13:05:00.123Z",
    reported_at=time.time() - 3,
    state="running",
)
FAILED = built(
    ReportedQuery,
    client="billing-driver",
    id="77777777-0b0f-4f53-93c3-6c1c9a0a3a10",
    run_id="88888888-0b0f-4f53-93c3-6c1c9a0a3a10",
    groups=["billing"],
    batch_id=8,
    time="2026-01-31T12:05:00.123Z",
    reported_at=time.time() - 3_600,
    state="failed",
    error="java.lang.IllegalStateException: the checkpoint is gone",
)
QUERIES = built(QueriesAnswer, queries=[RUNNING, FAILED], followed=[])


def streams() -> Json:
    """Return ``GET /v1/streams``: a view, one that is away, and a processor."""
    offsets = 700, 1_000, 300, 150_000.0
    partitions = [
        _ViewPartition(0, "running", 700, 1_000, 0, 150_000.0, 1.0, stalled=False),
        _ViewPartition(1, "recovering", *offsets, 0.7, stalled=False),
    ]
    view = _ViewStatus(
        "prices-table", "recovering", 300, 150_000.0, 0.85, stalled=False, partitions=partitions
    )
    away = _ViewStatus(error="http://127.0.0.1:8743 does not answer: connection refused")
    urls = {"http://127.0.0.1:8742": view, "http://127.0.0.1:8743": away}
    processor = lag("revenue", partition(0), partition(1))["groups"][0]
    table = {"topic": "revenue-table", "messages": {"0": 12, "1": 14}}
    views = [{"url": url, **msgspec.to_builtins(each)} for url, each in urls.items()]
    return {"views": views, "processors": [{**processor, "table": table}]}


def draining() -> Json:
    """Return ``GET /v1/draining`` of a service that stops while Kafka is down."""
    left = {
        "group": "orders-etl",
        "topic": "orders",
        "partition": 3,
        "client": "etl-driver",
        "phase": "stopping",
        "submitted": {"offset": 1_000_042, "metadata": "", "leader_epoch": None},
        "committed": {"offset": 1_000_040, "metadata": "", "leader_epoch": None},
        "dirty": True,
        "last_error": {"code": "REQUEST_TIMED_OUT", "message": "Kafka did not answer in time"},
        "regressions": 0,
    }
    values = {"draining": True, "deadline_s": 12.3, "managers": 12, "uncommitted": 1}
    return built(DrainingAnswer, partitions=[left], **values)
