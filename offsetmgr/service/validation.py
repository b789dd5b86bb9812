"""What request bodies look like, checked over plain JSON: the slow way, which names what is wrong.

The fast way (``validate``) needs to know only *that* something is wrong; this finds the first bad
value and says where it stands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.service.errors import MissingError, WrongValueError
from offsetmgr.service.messages import MAX_TIMEOUT_S
from offsetmgr.types import (
    MAX_OFFSET,
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
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
    if not 0 < number <= highest_s:
        wanted = f"a number of seconds above 0, up to {highest_s:g}"
        raise WrongValueError(field, value, wanted)
    return float(number)


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
            raise InvalidValueError(field, value[value.name], "is given twice", fix)
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
            wanted = f"at most {limit} entries in one request"
            raise WrongValueError(path, len(value), wanted)
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
        raise WrongValueError(path, value, "true or false")


def _group_for_partitions(value: Mapping[str, object]) -> None:
    if value.get("partitions") is not None and value.get("group") is None:
        fix = "name the group of these partitions, or leave partitions out"
        raise MissingError("group", fix)


def _version(value: object, path: str) -> None:
    if value is not None and (
        not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_OFFSET
    ):
        raise WrongValueError(path, value, f"a whole number from 0 to {MAX_OFFSET}")


_REF: Final = Shape(
    {"topic": check_topic, "partition": check_partition}, frozenset({"topic", "partition"})
)
_OPEN_ENTRY: Final = Shape({**_REF.fields, "version": _version}, _REF.required)
_ENTRY: Final = Shape(
    {
        "topic": check_topic,
        "partition": check_partition,
        "offset": check_offset,
        "metadata": check_metadata,
        "leader_epoch": check_leader_epoch,
        "rewind": _flag,
        "version": _version,
    },
    frozenset({"topic", "partition", "offset"}),
)


EMPTY: Final = Shape({})
"""An object without fields."""


def of_open(limit: int) -> Shape:
    """Body of POST /v1/managers; ``limit`` is how many entries it may have, as below."""
    fields = {"group": check_group, "partitions": _entries(_OPEN_ENTRY, limit)}
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


def of_flush(limit: int) -> Shape:
    """Body of POST /v1/flush."""
    return Shape(
        {
            "group": _nullable(check_group),
            "partitions": _nullable(_entries(_REF, limit)),
            "timeout_s": check_timeout,
        },
        whole=_group_for_partitions,
    )


def of_stop(limit: int) -> Shape:
    """Body of POST /v1/stop."""
    flush = of_flush(limit)
    return flush._replace(fields={**flush.fields, "version": _version})


def check(body: bytes, shape: Shape) -> None:
    """Raise InvalidValueError for the first thing wrong with ``body``."""
    shape.check(_plain(body), "")


def explain(body: bytes, shape: Shape, odd: Exception) -> InvalidValueError:
    """The first thing wrong with ``body``, which the fast way refused with ``odd``."""
    try:
        check(body, shape)
    except InvalidValueError as error:
        return error
    return InvalidValueError("body", body, f"is not accepted: {odd}", "see /openapi.json")


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
