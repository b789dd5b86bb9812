"""Answers of a service, for what a real one is too slow or too healthy to show."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qs

Json = dict[str, Any]

UNKNOWN = "\N{EN DASH}"
"""The page's text for null."""


def group_summary(name: str, **fields: object) -> Json:
    return {
        "name": name,
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
        **fields,
    }


def overview(*groups: Json, **fields: object) -> Json:
    return {
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
        "groups": list(groups),
        **fields,
    }


def partition(number: int, **fields: object) -> Json:
    return {
        "topic": "orders",
        "partition": number,
        "submitted": 1_000_042,
        "committed": 1_000_040,
        "end": 1_000_160,
        "lag": 120,
        "lag_seconds": 3.2,
        "committed_at": time.time() - 2,
        "pending_acks": 0,
        "metadata": "",
        "member_id": None,
        "client_id": None,
        "host": None,
        "committer": "etl-driver",
        "phase": "ready",
        "status": "OK",
        "rate_in": 10.0,
        "rate_out": 12.0,
        "catch_up_seconds": 60.0,
        "error": None,
        **fields,
    }


def lag(name: str, *partitions: Json, **fields: object) -> Json:
    group = {
        "name": name,
        "state": "Empty",
        "type": "classic",
        "coordinator": 1,
        "assignor": "",
        "status": "OK",
        "lag": sum(each["lag"] for each in partitions),
        "lag_seconds": 3.2,
        "pending_acks": 0,
        "error": None,
        "members": [],
        "partitions": list(partitions),
        **fields,
    }
    return {"groups": [group]}


def with_fields(answer: Json, query: str) -> Json:
    """Return ``GET /v1/lag`` as ``query`` wants it: with lists of the fields it names."""
    fields = parse_qs(query).get("field", [])
    (group,) = answer["groups"]
    rows = [[each[name] for name in fields] for each in group["partitions"]]
    return {"groups": [{**group, "partitions": rows}]}


def step(minute: int, before: int | None, after: int | None, change: str, **fields: object) -> Json:
    return {
        "time": f"2026-01-31T13:{minute:02}:00.123Z",
        "topic": "orders",
        "partition": 0,
        "from": before,
        "to": after,
        "metadata": "",
        "change": change,
        "cause": "",
        **fields,
    }


def history(group: str, *steps: Json) -> Json:
    return {"group": group, "left_out": 0, "undo_to": None, "steps": list(steps)}


def planned(number: int, current: int | None, new: int | None, **fields: object) -> Json:
    where = {"group": "orders-etl", "topic": "orders", "partition": number}
    return {
        **where,
        "current": current,
        "new": new,
        "lag": 10,
        "metadata": "",
        "note": "",
        **fields,
    }


def plan(*rows: Json, **fields: object) -> Json:
    """Return ``POST /v1/plan`` or, with ``executed``, ``POST /v1/reset``."""
    return {
        "group": "orders-etl",
        "live": False,
        "refused": None,
        "can_live": False,
        "executed": False,
        "partitions": list(rows),
        **fields,
    }


def error(code: str, message: str, **fields: object) -> Json:
    return {"error": {"code": code, "message": message, **fields}}


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

RUNNING = {
    "client": "etl-driver",
    "name": "etl",
    "id": "5f1c7ad0-0b0f-4f53-93c3-6c1c9a0a3a10",
    "run_id": "a1b2c3d4-0b0f-4f53-93c3-6c1c9a0a3a10",
    "groups": ["orders-etl"],
    "batch_id": 1204,
    "input_rows_per_second": 1250.5,
    "processed_rows_per_second": 2310.0,
    "batch_ms": 412,
    "input_rows": 515,
    "time": "2026-01-31T13:05:00.123Z",
    "reported_at": time.time() - 3,
    "state": "running",
    "error": None,
}
QUERIES = {
    "queries": [
        RUNNING,
        {
            **dict.fromkeys(RUNNING),
            "client": "billing-driver",
            "id": "77777777-0b0f-4f53-93c3-6c1c9a0a3a10",
            "run_id": "88888888-0b0f-4f53-93c3-6c1c9a0a3a10",
            "groups": ["billing"],
            "batch_id": 8,
            "time": "2026-01-31T12:05:00.123Z",
            "reported_at": time.time() - 3_600,
            "state": "failed",
            "error": "java.lang.IllegalStateException: the checkpoint is gone",
        },
    ]
}


def view_partition(number: int, state: str, recovery: float, **fields: object) -> Json:
    """Return a partition of a view of ``GET /v1/streams``."""
    return {
        "partition": number,
        "state": state,
        "next_offset": 700,
        "high_watermark": 1_000,
        "lag": 300,
        "rows_per_s": 150_000.0,
        "recovery": recovery,
        "stalled": False,
        **fields,
    }


def streams() -> Json:
    prices = [view_partition(0, "running", 1.0, lag=0), view_partition(1, "recovering", 0.7)]
    processor = lag("revenue", partition(0), partition(1))["groups"][0]
    view = {
        "url": "http://127.0.0.1:8742",
        "topic": "prices-table",
        "state": "recovering",
        "lag": 300,
        "rows_per_s": 150_000.0,
        "recovery": 0.85,
        "stalled": False,
        "error": None,
        "partitions": prices,
    }
    away: Json = {
        **dict.fromkeys(view),
        "url": "http://127.0.0.1:8743",
        "error": "http://127.0.0.1:8743 does not answer: connection refused",
        "partitions": [],
    }
    return {
        "views": [view, away],
        "processors": [
            {**processor, "table": {"topic": "revenue-table", "messages": {"0": 12, "1": 14}}}
        ],
    }


def draining() -> Json:
    """Return ``GET /v1/draining`` of a service that stops while Kafka is down."""
    left = {
        "group": "orders-etl",
        "topic": "orders",
        "partition": 3,
        "client": "etl-driver",
        "submitted": {"offset": 1_000_042},
        "committed": {"offset": 1_000_040},
        "last_error": {"code": "REQUEST_TIMED_OUT", "message": "Kafka did not answer in time"},
    }
    return {
        "draining": True,
        "deadline_s": 12.3,
        "managers": 12,
        "uncommitted": 1,
        "partitions": [left],
    }
