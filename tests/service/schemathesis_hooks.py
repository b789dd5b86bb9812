"""Brings valid requests, as schemathesis makes them, in line with what JSON Schema cannot say."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode

from offsetmgr.service.messages import CLIENT


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(_: object, case: schemathesis.Case[Any], __: object) -> None:
    """Name each partition once; percent-encode; write no integer as 1.0.

    Give a time that is one, and a plan a value that its mode takes.
    """
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE:
        return
    client = case.headers.get(CLIENT)
    if client is not None:
        case.headers[CLIENT] = client.replace("%", "%25")
    if "since" in (case.query or {}):
        case.query["since"] = "1h"
    body = case.body
    if isinstance(body, dict) and "mode" in body:
        body |= {"mode": "to-offset", "value": "1", "topics": None}
    if isinstance(body, dict):
        body = case.body = _whole(body)
        for field in ("offsets", "partitions"):
            if body.get(field):
                each = {(one["topic"], one["partition"]): one for one in body[field]}
                body[field] = list(each.values())


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
