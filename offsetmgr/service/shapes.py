"""What request bodies look like, checked over plain JSON: the slow way, which names what is wrong.

The fast way (``validate``) needs to know only *that* something is wrong; this finds the first bad
value and says where it stands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.service.messages import MAX_TIMEOUT_S
from offsetmgr.service.problems import MissingError
from offsetmgr.types import (
    check_group,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Check = Callable[[object, str], object]

MAX_INT_DIGITS: Final = 4300
"""Digits of an integer that Python reads and prints."""


def check_timeout(value: object, field: str, highest_s: float = MAX_TIMEOUT_S) -> float:
    """A wait in seconds, above 0 and up to ``highest_s``."""
    fix = f"give seconds above 0, up to {highest_s:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValueError(field, value, f"is a {type(value).__name__}, not a number", fix)
    if not 0 < value <= highest_s:
        raise InvalidValueError(field, value, "is out of range", fix)
    return float(value)


class _Twice(dict[str, object]):
    """A JSON object in which the key ``name`` stands twice."""

    def __init__(self, pairs: Sequence[tuple[str, object]], name: str) -> None:
        super().__init__(pairs)
        self.name = name


class Shape(NamedTuple):
    """Fields of an object, those that must be there, and what concerns several at once."""

    fields: Mapping[str, Check]
    required: frozenset[str] = frozenset()
    whole: Callable[[Mapping[str, object]], None] = lambda _: None

    def check(self, value: object, path: str) -> None:
        """Raise InvalidValueError for the first thing that is wrong."""
        where = path or "body"
        if not isinstance(value, dict):
            fix = f"send an object with {_listed(self.fields)}"
            raise InvalidValueError(where, value, "is not a JSON object", fix)
        prefix = f"{path}." if path else ""
        if isinstance(value, _Twice):
            fix = f"give it once in {where}"
            field = prefix + _key(value.name)
            raise InvalidValueError(field, value[value.name], "stands twice", fix)
        for name in value:
            if name not in self.fields:
                fix = f"remove it; known here: {_listed(self.fields)}"
                field = prefix + _key(name)
                raise InvalidValueError(field, value[name], "is an unknown field", fix)
        for name, check in self.fields.items():
            if name in value:
                check(value[name], prefix + name)
            elif name in self.required:
                fix = f"add {name!r} to {where}"
                raise MissingError(prefix + name, fix)
        self.whole(value)


def _key(name: str) -> str:
    """A key that anybody may have made up: as it is where it is plain, else escaped and cut."""
    text = shown(name)
    return name if text == f"'{name}'" else text


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) if names else "no fields"


def _entries(shape: Shape, limit: int) -> Check:
    def check(value: object, path: str) -> None:
        if not isinstance(value, list):
            raise InvalidValueError(path, value, "is not a list", "send a list of objects")
        if not value:
            raise InvalidValueError(path, value, "is empty", "name at least one partition")
        if len(value) > limit:
            fix = f"send at most {limit} in one request"
            raise InvalidValueError(path, len(value), "are too many entries", fix)
        first: dict[tuple[str, int], int] = {}
        for index, entry in enumerate(value):
            shape.check(entry, f"{path}[{index}]")
            key = (entry["topic"], entry["partition"])
            if first.setdefault(key, index) != index:
                name = f"{key[0]}-{key[1]}"
                fix = f"give each partition once; the other is {path}[{first[key]}]"
                raise InvalidValueError(f"{path}[{index}]", name, "is named twice", fix)

    return check


def _nullable(check: Check) -> Check:
    return lambda value, path: None if value is None else check(value, path)


def _flag(value: object, path: str) -> None:
    if not isinstance(value, bool):
        raise InvalidValueError(path, value, "is neither true nor false", "give true or false")


def _group_for_partitions(value: Mapping[str, object]) -> None:
    if value.get("partitions") is not None and value.get("group") is None:
        fix = "name the group of these partitions, or leave partitions out"
        raise MissingError("group", fix)


_REF: Final = Shape(
    {"topic": check_topic, "partition": check_partition}, frozenset({"topic", "partition"})
)
_ENTRY: Final = Shape(
    {
        "topic": check_topic,
        "partition": check_partition,
        "offset": check_offset,
        "metadata": check_metadata,
        "leader_epoch": check_leader_epoch,
        "rewind": _flag,
    },
    frozenset({"topic", "partition", "offset"}),
)


EMPTY: Final = Shape({})
"""An object without fields."""


def of_open(limit: int) -> Shape:
    """Body of POST /v1/managers; ``limit`` is how many entries it may have, as below."""
    fields = {"group": check_group, "partitions": _entries(_REF, limit)}
    return Shape(fields, frozenset(fields))


def of_submit(limit: int) -> Shape:
    """Body of POST /v1/offsets."""
    return Shape(
        {
            "group": check_group,
            "offsets": _entries(_ENTRY, limit),
            "wait": _flag,
            "timeout_s": check_timeout,
        },
        frozenset({"group", "offsets"}),
    )


def of_settle(limit: int) -> Shape:
    """Body of POST /v1/flush and /v1/stop."""
    return Shape(
        {
            "group": _nullable(check_group),
            "partitions": _nullable(_entries(_REF, limit)),
            "timeout_s": check_timeout,
        },
        whole=_group_for_partitions,
    )


def check(body: bytes, shape: Shape) -> None:
    """Raise InvalidValueError for the first thing wrong with ``body``."""
    shape.check(_plain(body), "")


def explain(body: bytes, shape: Shape, odd: Exception) -> InvalidValueError:
    """The first thing wrong with ``body``, which the fast way refused with ``odd``."""
    try:
        check(body, shape)
    except InvalidValueError as error:
        return error
    return InvalidValueError("body", body, f"is not accepted: {odd}", "send what the API describes")


def _plain(body: bytes) -> object:
    fix = "send one JSON object"
    try:
        return json.loads(
            body.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_int=_read_int,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        near = body[error.start : error.start + 20]
        problem = f"at byte {error.start} is not UTF-8"
        raise InvalidValueError("body", near, problem, "encode the body in UTF-8") from None
    except json.JSONDecodeError as error:
        text = error.doc[error.pos : error.pos + 40]
        problem = f"at line {error.lineno}, column {error.colno} is not JSON ({error.msg})"
        raise InvalidValueError("body", text, problem, fix) from None
    except RecursionError:
        raise InvalidValueError("body", body[:20], "is nested too deeply", fix) from None


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return _Twice(pairs, name)
        seen.add(name)
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidValueError("body", name, "is not JSON", "send whole numbers; JSON has no " + name)


def _read_int(digits: str) -> int:
    # Python converts no more than this; so long a number is too large wherever it stands.
    return int(digits[:MAX_INT_DIGITS])
